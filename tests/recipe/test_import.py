"""A script is read as text: what it sets becomes YAML, what it says otherwise is listed with its line."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.recipe import Imported, eject, header, import_script, node_filters, of_config
from npucompose.recipe.ejected import Parts
from npucompose.recipe.genuine import Unread
from npucompose.recipe.script import text
from npucompose.schema.compiler import LEAVES, CompilerOptions
from npucompose.schema.experiment import CompileKeywords, Experiment, Mode, Shapes
from npucompose.schema.leaf import Leaf
from npucompose.targets.npu_offline.option_trees import node_filter
from tests.recipe.experiments import EXPERIMENTS, OTHER_VERSIONS
from tests.recipe.fakes import FakeConfig

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
        tng.inference.set_dim_gears(ids, {0: [1, 2]})
        tng.inference.readable_cache("cache")
        return self.model(ids, cache)

logging.getLogger("torchair").setLevel(logging.DEBUG)
"""

FILTER = node_filters.source()
POOL = "aclgraph_config.use_custom_pool"
KERNEL = "experimental_config.aclgraph._super_kernel_optimize_options"
RANGE = "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"


def read(script: str) -> Imported:
    return import_script(dedent(script))


def compiler(imported: Imported) -> dict[str, Any]:
    return dict(imported.tree.get("compiler", {}))


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
        "gears": {"ids.0": [1, 2]},
    }
    assert imported.tree["compile"] == {"fullgraph": True}
    assert imported.tree["logs"] == {"artifacts": [], "levels": {"torchair": "DEBUG"}}


def test_lines_that_cannot_be_read_are_listed_with_number_code_and_reason() -> None:
    unread = {u.line: u for u in read(HAND_WRITTEN).unread}
    assert {line: u.why.partition(".")[0] for line, u in unread.items()} == {
        15: "'args",
        21: "it depends on a condition",
        28: "torchair's CompilerConfig has no such option",
        29: "takes 0 | 1 | 2; given 7 (str)",
        34: "no YAML is known for torchair",
    }
    assert unread[21].code == "ec.remove_noop_ops = False"
    assert str(unread[28]).startswith("line 28: config.experimental_config.no_such_option = True: torchair's")


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
        ("try:\n    config.debug.run_eagerly = True\nexcept E:\n    pass", {"debug.run_eagerly": True}),
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
        ("while True:\n    config.debug.run_eagerly = True", "in a loop"),
        ("config.post_grad_custom_pre_pass = my_pass", "a pass is Python"),
        ("config.debug.data_dump.filter = lambda n: n", "it is a function"),
        ("config.debug.data_dump.filter = ['mm']", "it takes a function of nodes"),
        (f"{FILTER}\nconfig.debug.run_eagerly = node_filter(('mm',))", "it is a function"),
        (f"{FILTER}\nconfig.debug.data_dump.filter = node_filter(sys.argv)", "patterns of the filter are not constant"),
        (f"{FILTER.replace('any(', 'all(')}\nconfig.debug.data_dump.filter = node_filter(('mm',))", "not a constant"),
        ("torchair.inference.set_dim_gears(x(), {0: [1, 2]})", "not known which input"),
        ("torchair.inference.set_dim_gears(x, {0: [1]})", "2 to 100 constant sizes"),
        ("torchair.inference.set_dim_gears(x, {0: [1, n]})", "2 to 100 constant sizes"),
        ("torchair.inference.set_dim_gears(x, {'a': [1, 2]})", "2 to 100 constant sizes"),
        ("if a:\n    torchair.inference.set_dim_gears(x, {0: [1, 2]})", "depends on a condition"),
        ("setup(config)", "handed to code that is not in this script"),
        ("torch.compile(m, backend='inductor')", "'inductor', is none of TorchAir's"),
        ("torch._dynamo.mark_static(x, 0)", "not single dimensions"),
        ("torch._dynamo.maybe_mark_dynamic(x, 0)", "no YAML is known"),
        ("torchair.register_replacement(a, b)", "no YAML is known for torchair.register_replacement"),
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


def experiment_of(imported: Imported, folder: Path) -> Experiment:
    """The YAML, read again the way a person would: --config-dir, experiment=."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text(imported.yaml())
    return api.checked(["experiment=mine"], config_dirs=[str(folder)]).experiment


@pytest.mark.parametrize("name", [*EXPERIMENTS, *OTHER_VERSIONS])
def test_an_ejected_script_comes_back_as_the_same_experiment(name: str, tmp_path: Path) -> None:
    overrides = {**EXPERIMENTS, **OTHER_VERSIONS}[name]
    imported = import_script(eject(*overrides))
    before = api.checked(overrides).experiment
    assert imported.unread == ()
    after = experiment_of(imported, tmp_path)
    assert attrs.evolve(after, expect=before.expect) == before


def test_adaptation_rules_travel_in_the_recipe_of_a_script(tmp_path: Path) -> None:
    overrides = ["model=gpt_decode", "model.layers=1", "adapt=ascend", "passes=adapt"]
    imported = import_script(eject(*overrides))
    assert "override /adapt: ascend" in imported.yaml()
    assert experiment_of(imported, tmp_path).adapt == api.checked(overrides).experiment.adapt


def test_without_its_recipe_a_script_for_another_version_needs_to_be_told_which(tmp_path: Path) -> None:
    script = eject(*OTHER_VERSIONS["nested"])
    bare = "\n".join(line for line in script.splitlines() if not line.startswith("#"))
    assert any("has no such option" in line.why for line in import_script(bare).unread)
    experiment = experiment_of(import_script(bare, torch_npu_version="2.8.0"), tmp_path)
    assert experiment.compiler == api.checked(OTHER_VERSIONS["nested"]).experiment.compiler
    with pytest.raises(ConfigError, match=r"unknown torch_npu version '3\.0' @ --torch-npu"):
        import_script(bare, torch_npu_version="3.0")


def test_gears_of_a_script_that_is_not_dynamic_are_listed() -> None:
    imported = import_script(
        "import torch, torchair\n"
        "backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())\n"
        "torchair.inference.set_dim_gears(x, {0: [1, 2]})\n"
        "torch.compile(m, backend=backend)\n"
    )
    assert "gears" not in imported.tree["shapes"]
    assert [u.why for u in imported.unread] == ["gears need torch.compile(dynamic=True)"]


def test_the_code_counts_where_it_was_changed_after_ejecting(tmp_path: Path) -> None:
    script = eject(*EXPERIMENTS["sink"]).replace('oo_level = "O1"', "oo_constant_folding = False")
    imported = import_script(script.replace("dynamic=False", "dynamic=True"))
    experiment = experiment_of(imported, tmp_path)
    assert experiment.compiler["ge_config.oo_level"] == "O3"
    assert experiment.compiler["ge_config.oo_constant_folding"] is False
    assert (experiment.shapes.dynamic, experiment.tiling.schedule) == (True, "sink")
    assert len(imported.notes) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("#   passes:", "#   passses:"), "unknown section passses in the recipe"),
        (("#     stream_plan:", "#     no_such_pass:"), "unknown pass 'no_such_pass'"),
        (("#     max_streams: 2", "#     max_streams: 0"), "'max_streams' must be >= 1: 0 @ streams"),
        (("# end of recipe", "#"), "a recipe begins here"),
        (("#   mode:", "#   mode: ["), "the recipe's YAML is not YAML"),
        (("clone_input: false", "clone_inptu: false"), "unknown option 'clone_inptu' @ compiler.debug.aclgraph"),
    ],
)
def test_an_edited_recipe_is_checked(change: tuple[str, str], words: str) -> None:
    script = eject("experiment=mm_abs_sub", "compiler.debug.aclgraph.clone_input=false")
    with pytest.raises(ConfigError, match=words):
        import_script(script.replace(*change))


def values_of(leaf: Leaf, mode: str) -> st.SearchStrategy[Any]:
    if leaf.choices is not None:
        return st.sampled_from(leaf.choices_in.get(mode, leaf.choices))
    texts = {
        "aicore_num": "24|48",
        "optimization_switch": "AddNFusionPass:off",
        "dump_step": "0|2-5",
        "dump_layer": "Add_1",
    }
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(max(leaf.least or 0, 2), 2**40),
        "ints": st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
        "dict": st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers() | st.booleans() | st.text()),
        "pool": st.sampled_from(["shared", "my pool"]),
        "path": st.sampled_from(["dumps", "a b/'c'\\d"]),
        "dir": st.just("."),
        "file": st.just("f" + leaf.suffix),
        "names": st.lists(st.sampled_from(["mm", "aten.add*", "it's \\n"]), min_size=1, max_size=3).map(tuple),
        "str": st.just(texts.get(leaf.path.split(".")[-1], "cv")),
    }  # fmt: skip
    return by_kind[leaf.kind]


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    mode = draw(st.sampled_from(["max-autotune", "reduce-overhead", "npugraph_ex"]))
    known = [leaf for leaf in LEAVES.values() if leaf.set_by == "compiler" and mode in leaf.modes]
    chosen = draw(st.lists(st.sampled_from(known), unique_by=lambda leaf: leaf.path, max_size=8))
    dynamic = draw(st.sampled_from([True, False, None]))
    sizes = st.lists(st.integers(1, 99), min_size=2, max_size=4).map(tuple)
    gears = st.dictionaries(st.sampled_from(["x.0", "x.1", "long_name.3"]), sizes, max_size=3)
    chosen_gears = draw(gears) if dynamic and mode == "max-autotune" else {}
    return Experiment(
        mode=Mode(name=mode),
        shapes=Shapes(
            name={True: "dynamic", False: "static", None: "auto"}[dynamic],
            dynamic=dynamic,
            gears=chosen_gears,
        ),
        compiler=CompilerOptions(values={leaf.path: draw(values_of(leaf, mode)) for leaf in chosen}),
        compile=CompileKeywords(fullgraph=draw(st.booleans())),
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments())
def test_any_legal_options_survive_ejecting_and_importing(experiment: Experiment) -> None:
    """The header is cut off: what comes back was read from the code alone."""
    script = text(Parts(experiment=experiment, recipe={}, gears=gears_of_arguments(experiment.shapes)))
    script = script.replace("\n".join(header.written({})), "")
    imported = import_script(script)
    assert imported.unread == ()
    sink = imported.tree["tiling"]["schedule"] == "sink"
    back = CompilerOptions.of_tree(without_files(compiler(imported)))
    wanted = experiment.compiler.changed()
    files = {path for path in wanted if LEAVES[path].kind == "file"}
    assert back.changed() == {
        path: value
        for path, value in wanted.items()
        if path not in files and not (sink and path.endswith("tiling_schedule_optimize"))
    }
    assert files == {path for path in files if value_at(compiler(imported), path) == wanted[path]}
    assert imported.tree["mode"] == {"name": experiment.mode.name}
    assert imported.tree["shapes"]["dynamic"] is experiment.shapes.dynamic
    gears = imported.tree["shapes"].get("gears", {})
    assert {key: tuple(sizes) for key, sizes in gears.items()} == experiment.shapes.gears
    assert imported.tree["compile"] == {"fullgraph": experiment.compile.fullgraph}


def gears_of_arguments(shapes: Shapes) -> dict[str, dict[int, list[int]]]:
    found: dict[str, dict[int, list[int]]] = {}
    for key, sizes in shapes.gears.items():
        name, _, dim = key.rpartition(".")
        found.setdefault(name, {})[int(dim)] = list(sizes)
    return found


def without_files(tree: dict[str, Any], at: str = "") -> dict[str, Any]:
    kept = {k: (f"{at}.{k}".lstrip("."), v) for k, v in tree.items()}
    return {
        k: v if path in LEAVES else without_files(v, path)
        for k, (path, v) in kept.items()
        if path not in LEAVES or LEAVES[path].kind != "file"
    }


def value_at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree


@settings(max_examples=60, deadline=None)
@given(experiments())
def test_a_live_configuration_gives_the_same_tree_as_its_script(experiment: Experiment) -> None:
    package = "npugraph_ex" if experiment.mode.name == "npugraph_ex" else "torchair"
    config = FakeConfig(package)
    config.mode = experiment.mode.name
    for path, value in experiment.compiler.changed().items():
        *groups, name = LEAVES[path].genuine_path.split(".")
        at = config
        for group in groups:
            at = getattr(at, group)
        setattr(at, name, node_filter(value) if LEAVES[path].kind == "names" else value)
    tree = of_config(config)
    assert tree["mode"] == {"name": experiment.mode.name}
    assert tree.get("compiler", {}) == experiment.compiler.as_tree(changed_only=True)


def test_a_live_configuration_with_a_pass_is_refused_or_listed() -> None:
    config = FakeConfig()
    config.post_grad_custom_pre_pass = print
    with pytest.raises(ConfigError, match=r"post_grad_custom_pre_pass.*passes=\[\.\.\.\]"):
        of_config(config)
    unread: list[Unread] = []
    assert of_config(config, unread) == {"mode": {"name": "max-autotune"}}
    assert len(unread) == 1


def test_a_filter_of_somebody_else_is_refused() -> None:
    config = FakeConfig()
    config.debug.data_dump.filter = lambda node: node
    with pytest.raises(ConfigError, match=r"debug\.data_dump\.filter = <function"):
        of_config(config)


def test_an_object_that_is_no_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="a int has none of the options"):
        of_config(3)


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
        (b"def (", "line 1 is not Python"),
        (b"print(1)\n", "nothing found"),
        (b"\xff\xfe\x00", "cannot be read"),
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


def test_the_commands_go_round(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from npucompose.cli import main

    monkeypatch.chdir(tmp_path)
    os.makedirs("mine/experiment")
    assert main(["recipe", "eject", "model=add", "mode=max-autotune", "--out", "script.py"]) == 0
    assert main(["recipe", "import", "script.py", "--out", "mine/experiment/again.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["recipe", "eject", "--config-dir", "mine", "experiment=again"]) == 0
    assert capsys.readouterr().out == Path("script.py").read_text()
    assert main(["recipe", "import", "script.py", "--out", "no/such/folder.yaml"]) == 2
    assert "--out no/such/folder.yaml cannot be written" in capsys.readouterr().err
    assert main(["recipe", "eject", "mode=eager"]) == 2
