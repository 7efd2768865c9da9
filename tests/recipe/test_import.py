"""A script is read as text: what it sets becomes YAML, what it says otherwise is listed with its line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from npucompose.errors import ConfigError
from npucompose.recipe import import_script
from npucompose.recipe.vendor_options import filter_source
from npucompose.vendor.compiler import CompilerOptions
from tests.recipe.importing import compiler, experiment_of, read

HAND_WRITTEN = """
import logging, os
import torch, torch_npu
import torchair as tng
from torchair.configs.compiler_config import CompilerConfig

DUMP = "dumps"
LIMIT = 2 ** 3

class Runner:
    def __init__(self, model, args):
        self.config = CompilerConfig()
        ec = self.config.experimental_config
        ec.frozen_parameter = True
        ec.topology_sorting_strategy = args.sorting
        self.config.debug.graph_dump.type, self.other = "py", 3
        self.config.debug.graph_dump.path = DUMP
        setattr(self.config.ge_config, "oo_level", "O1")
        self.config.debug.aclgraph.static_capture_size_limit = LIMIT
        if args.quick:
            ec.remove_noop_ops = False
        backend = tng.get_npu_backend(compiler_config=self.config)
        self.tune(self.config)
        self.model = torch.compile(model, dynamic=True, fullgraph=True, backend=backend)

    def tune(self, config):
        config.ge_config.enable_single_stream = 1
        config.experimental_config.no_such_option = True
        config.ge_config.export_compile_stat = "7"

    def step(self, ids, cache):
        torch._dynamo.mark_static(cache)
        tng.inference.set_dim_gears(ids, {0: [2, 4]})
        tng.inference.readable_cache("cache")
        return self.model(ids, cache)

logging.getLogger("torchair").setLevel(logging.DEBUG)
"""


FILTER = filter_source()


POOL = "aclgraph_config.use_custom_pool"


KERNEL = "experimental_config.aclgraph._super_kernel_optimize_options"


RANGE = "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"


def test_a_hand_written_script_is_followed_through_aliases_methods_and_constants() -> None:
    imported = read(HAND_WRITTEN)
    assert imported.tree["mode"] == {"name": "max-autotune"}
    assert compiler(imported) == {
        "debug": {"graph_dump": {"type": "py", "path": "dumps"}, "aclgraph": {"static_capture_size_limit": 8}},
        "experimental_config": {"frozen_parameter": True},
        "ge_config": {"enable_single_stream": True, "oo_level": "O1"},
    }
    assert imported.tree["shapes"] == {
        "name": "dynamic",
        "dynamic": True,
        "mark_static": ["cache"],
        "mark_dynamic": {},
        "gears": {"ids.0": [2, 4]},
    }
    assert imported.tree["compile"] == {"fullgraph": True}
    assert imported.tree["logs"] == {"artifacts": [], "levels": {"torchair": "DEBUG"}}


def test_lines_that_cannot_be_read_are_listed_with_number_code_and_reason() -> None:
    unread = {u.line: u for u in read(HAND_WRITTEN).unread}
    assert {line: u.why.partition(".")[0] for line, u in unread.items()} == {
        15: "'args",
        21: "it depends on a condition (line 20: args",
        28: "torchair's CompilerConfig has no such option",
        29: "takes 0 | 1 | 2; given 7 (str)",
        34: "no YAML is known for torchair",
    }
    assert unread[21].code == "ec.remove_noop_ops = False"
    assert str(unread[28]).startswith("line 28: config.experimental_config.no_such_option = True: torchair's")


def test_a_value_that_a_condition_may_have_given_is_not_taken_for_certain() -> None:
    imported = read(
        """
        import torch, torchair
        config = torchair.CompilerConfig()
        frozen = False
        if unknown():
            frozen = True
        config.experimental_config.frozen_parameter = frozen
        model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        """
    )
    assert compiler(imported) == {}
    assert [(u.line, u.why) for u in imported.unread] == [
        (7, "it depends on a condition (line 5: unknown()): True (line 6) or False (line 4)")
    ]


def test_of_a_condition_that_is_known_one_branch_is_read() -> None:
    imported = read(
        """
        import torch, torchair
        config = torchair.CompilerConfig()
        DEBUG = False
        if DEBUG:
            config.experimental_config.frozen_parameter = True
        else:
            config.experimental_config.remove_noop_ops = False
        if True:
            config.ge_config.enable_single_stream = True
        else:
            config.ge_config.oo_level = "O1"
        model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        """
    )
    assert imported.unread == ()
    assert compiler(imported) == {
        "experimental_config": {"remove_noop_ops": False},
        "ge_config": {"enable_single_stream": True},
    }


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    import_script(f"import torchair\nopen({str(witness)!r}, 'w')\nc = torchair.CompilerConfig()\n1 / 0\n")
    assert not witness.exists()


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("config.mode = 'reduce-overhead'", {"mode": "reduce-overhead"}),
        ("ec = config.experimental_config; ec.tiling_schedule_optimize = True", {"tiling": "sink"}),
        ("d = config.debug.aclgraph\nd.clone_input = not True", {"debug.aclgraph.clone_input": False}),
        ("config.ge_config.aicore_num = '24' + '|48'", {"ge_config.aicore_num": "24|48"}),
        ("for x in range(3):\n    pass\nconfig.debug.run_eagerly = True", {"debug.run_eagerly": True}),
        ("with open('f') as f:\n    config.debug.run_eagerly = True", {"debug.run_eagerly": True}),
        ("try:\n    config.debug.run_eagerly = True\nexcept E:\n    raise", {"debug.run_eagerly": True}),
        ("if 1:\n    config.debug.run_eagerly = True", {"debug.run_eagerly": True}),
        ("if __name__ == '__main__':\n    config.debug.run_eagerly = True", {"debug.run_eagerly": True}),
        ("config.debug.run_eagerly = True\nconfig.debug.run_eagerly = False", {}),
        ("pool = torch.npu.graph_pool_handle()\nconfig.aclgraph_config.use_custom_pool = pool", {POOL: "pool"}),
        ("def f(c, on=True):\n    c.debug.run_eagerly = on\nf(config)", {"debug.run_eagerly": True}),
        ("getattr(config, 'debug').run_eagerly = True", {"debug.run_eagerly": True}),
        ("x: bool = True\nconfig.debug.run_eagerly = x", {"debug.run_eagerly": True}),
        (f"f = lambda: 0\nconfig.{KERNEL} = {{'a': 1}}", {KERNEL: {"a": 1}}),
        (f"config.{RANGE} = [1, 2]", {RANGE: [1, 2]}),
        (f"{FILTER}\nconfig.debug.data_dump.filter = node_filter(('mm',))", {"debug.data_dump.filter": ["mm"]}),
    ],
)  # fmt: skip
def test_a_line_sets_its_option(line: str, option: dict[str, Any]) -> None:
    imported = import_script(f"import torch, torchair\nconfig = torchair.CompilerConfig()\n{line}\n")
    assert imported.unread == ()
    wanted = dict(option)
    assert imported.tree["mode"]["name"] == wanted.pop("mode", "max-autotune")
    assert imported.tree["tiling"] == {"schedule": wanted.pop("tiling", "host")}
    assert compiler(imported) == CompilerOptions(values=wanted).as_tree(changed_only=True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("config.mode = sys.argv[1]", "known only when the script runs"),
        ("config.mode = 'fast'", "takes max-autotune | reduce-overhead | npugraph_ex; given fast"),
        ("config.debug = other", "a whole sub-configuration is replaced"),
        ("config.debug.run_eagerly = a if b else c", "not a constant"),
        ("config.debug.run_eagerly |= True", "computed from what it was"),
        ("try:\n    config.debug.run_eagerly = True\nexcept E:\n    pass", "in an except clause, against the default"),
        ("while True:\n    config.debug.run_eagerly = True", "in a loop"),
        ("config.post_grad_custom_pre_pass = my_pass", "a pass is Python"),
        ("config.debug.data_dump.filter = lambda n: n", "it is a function"),
        ("config.debug.data_dump.filter = ['mm']", "it takes a function of nodes"),
        (f"{FILTER}\nconfig.debug.run_eagerly = node_filter(('mm',))", "it is a function"),
        (f"{FILTER}\nconfig.debug.data_dump.filter = node_filter(sys.argv)", "patterns of the filter are not constant"),
        (f"{FILTER.replace('any(', 'all(')}\nconfig.debug.data_dump.filter = node_filter(('mm',))", "it is a function"),
        ("torchair.inference.set_dim_gears(x(), {0: [2, 4]})", "not known which input"),
        ("torchair.inference.set_dim_gears(x, {0: [1]})", "2 to 100 constant sizes"),
        ("torchair.inference.set_dim_gears(x, {0: [1, n]})", "2 to 100 constant sizes"),
        ("torchair.inference.set_dim_gears(x, {'a': [2, 4]})", "2 to 100 constant sizes"),
        ("if a:\n    torchair.inference.set_dim_gears(x, {0: [2, 4]})", "depends on a condition"),
        ("setup(config)", "handed to code that is not in this script"),
        ("torch.compile(m, backend='inductor')", "'inductor', is none of TorchAir's"),
        ("torch._dynamo.mark_static(x, 0)", "not single dimensions"),
        ("torch._dynamo.maybe_mark_dynamic(x, 0)", "no YAML is known"),
        ("torchair.register_replacement(a, b)", "a replacement is Python"),
        ("torch._dynamo.config.cache_size_limit = 3", "no YAML is known"),
        ("torch.compile(m, backend=torchair.get_npu_backend(compiler_config=config), dynamic=D)", "dynamic is not a"),
        ("b = torchair.get_npu_backend(compiler_config=config, custom_decompositions=t)", "custom_decompositions"),
        ("def f(c):\n    f(c)\n    c.mode = 'no'\nf(config)", "takes max-autotune"),
        ("x = 10 ** 10 ** 10\nconfig.debug.run_eagerly = x", "not a constant"),
    ],
)
def test_a_line_that_says_more_is_listed(line: str, why: str) -> None:
    imported = import_script(f"import torch, torchair, sys\nconfig = torchair.CompilerConfig()\n{line}\n")
    assert any(why in u.why and u.line >= 3 for u in imported.unread), imported.unread
    assert compiler(imported) == {}


@pytest.mark.parametrize(
    ("brought", "call", "mode"),
    [
        ("import torchair", "torchair.inference.cache_compile", "max-autotune"),
        ("import torchair as tng", "tng.inference.cache_compile", "max-autotune"),
        ("from torchair import inference", "inference.cache_compile", "max-autotune"),
        ("from torchair.inference import cache_compile as cc", "cc", "max-autotune"),
        ("from torchair.inference._cache_compiler import cache_compile", "cache_compile", "max-autotune"),
        ("from torch_npu.dynamo import torchair", "torchair.inference.cache_compile", "max-autotune"),
        ("import torch_npu", "torch_npu.dynamo.torchair.inference.cache_compile", "max-autotune"),
        ("import npugraph_ex", "npugraph_ex.inference.cache_compile", "npugraph_ex"),
        ("import torch", "torch.npu.npugraph_ex.inference.cache_compile", "npugraph_ex"),
        ("import torch_npu", "torch_npu.npu.npugraph_ex.inference.cache_compile", "npugraph_ex"),
        ("from torch_npu.npu.npugraph_ex import inference as i", "i.cache_compile", "npugraph_ex"),
        ("from torch_npu.dynamo import npugraph_ex as ex", "ex.inference.cache_compile", "npugraph_ex"),
    ],
)
def test_every_spelling_of_cache_compile_is_one(brought: str, call: str, mode: str) -> None:
    imported = import_script(f"{brought}\nf = {call}(model.forward, dynamic=False, fullgraph=True)\n")
    assert imported.tree["mode"] == {"name": mode}
    assert imported.tree["compile"] == {"fullgraph": True, "cache": True}
    assert imported.tree["shapes"]["dynamic"] is False
    assert imported.unread == ()


def test_npugraph_ex_is_read_from_the_options_of_torch_compile() -> None:
    imported = read(
        """
        import torch, torch_npu
        opts = dict(clone_output=True)
        opts["capture_limit"] = 3
        model = torch.compile(net, backend="npugraph_ex", options=opts, dynamic=False)
        """
    )
    assert imported.tree["mode"] == {"name": "npugraph_ex"}
    assert compiler(imported) == {"npugraph_ex": {"capture_limit": 3, "clone_output": True}}
    assert imported.tree["shapes"]["name"] == "static"


def test_torchairs_own_mode_npugraph_ex_is_written_with_the_options_of_that_package() -> None:
    imported = read(
        """
        import torchair
        c = torchair.CompilerConfig()
        c.mode = "npugraph_ex"
        c.debug.aclgraph.disable_reinplace_inplaceable_ops_pass = True
        c.ge_config.oo_level = "O1"
        """
    )
    assert compiler(imported) == {"npugraph_ex": {"inplace_pass": False}}
    assert [u.why for u in imported.unread] == ["ge_config.oo_level=O1 has no counterpart among npugraph_ex's options"]


def test_an_option_that_does_not_act_in_the_scripts_mode_needs_strict_off(tmp_path: Path) -> None:
    imported = read(
        "import torchair\nc = torchair.CompilerConfig()\nc.mode='reduce-overhead'\nc.ge_config.oo_level='O1'"
    )
    experiment = experiment_of(imported, tmp_path)
    assert (experiment.strict, experiment.compiler.changed()) == ("off", {"ge_config.oo_level": "O1"})


def test_gears_of_a_script_that_is_not_dynamic_are_listed() -> None:
    imported = import_script(
        "import torch, torchair\n"
        "backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())\n"
        "torchair.inference.set_dim_gears(x, {0: [2, 4]})\n"
        "torch.compile(m, backend=backend)\n"
    )
    assert "gears" not in imported.tree["shapes"]
    assert [u.why for u in imported.unread] == ["gears need torch.compile(dynamic=True)"]


def test_the_yaml_holds_only_what_differs() -> None:
    imported = read(
        "import torchair\nc = torchair.CompilerConfig()\nc.debug.run_eagerly = True\nc.mode = 'max-autotune'"
    )
    assert yaml.safe_load(imported.yaml()) == {
        "defaults": [{"override /mode": "max-autotune"}, {"override /shapes": "auto"}],
        "compiler": {"debug": {"run_eagerly": True}},
        "compile": {"fullgraph": False},
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        (b"def (", ":1 is not Python"),
        (b"print(1)\n", "nothing found"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"a\x00b", "is not Python"),
    ],
)
def test_bad_files_are_told_in_one_paragraph(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.cli import main

    path = tmp_path / "script.py"
    if content is not None:
        path.write_bytes(content)
    assert main(["recipe", "import", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1


OPTIONS = "import torchair\ncfg = torchair.CompilerConfig()\n"
CALLS = "def f0(c):\n    c.mode = 'reduce-overhead'\n" + "".join(
    f"def f{n}(c):\n    f{n - 1}(c)\n    f{n - 1}(c)\n" for n in range(1, 40)
)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (CALLS + OPTIONS + "f39(cfg)\n", "or its values depend on one another, too often: reading it would not end."),
        (OPTIONS + "cfg.mode = " + "(" * 40 + "2" + "**64)" * 40 + "\n", "its value is not a constant"),
        (OPTIONS + "cfg.mode = " + "(" * 40 + "'ab'" + "*64)" * 40 + "\n", "its value is not a constant"),
        (
            OPTIONS + "a0 = [1, 2]\n" + "".join(f"a{n} = [a{n - 1}] * 2\n" for n in range(1, 3)) + "cfg.mode = a2",
            "its value is not a constant",
        ),
        (
            OPTIONS + "a0 = 1\n" + "".join(f"a{n} = [a{n - 1}, a{n - 1}]\n" for n in range(1, 40)) + "cfg.mode = a39",
            "it holds too many values",
        ),
        (
            OPTIONS + f"a = {[1] * 5000}\nb = {{{', '.join(f'{str(n)!r}: a' for n in range(5000))}}}\ncfg.mode = b\n",
            "it holds too many values",
        ),
    ],
    ids=["calls", "powers", "texts", "repeated", "lists", "dicts"],
)  # fmt: skip
def test_reading_a_script_is_bounded_in_work(script: str, words: str) -> None:
    begun = time.process_time()
    try:
        told = "\n".join(map(str, import_script(script).unread))
    except ConfigError as refused:
        told = str(refused)
    assert words in told
    assert time.process_time() - begun < 8
