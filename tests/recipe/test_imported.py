"""What an import joins of a script's code and of the recipe in its header, and the YAML that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

import npucompose.recipe
from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.recipe import export, header, import_file, import_script
from npucompose.recipe.imported import MOST_BYTES, _covers, _differing
from npucompose.table.structure import flat
from npucompose.vendor.compiler import EVERY_LEAF

NESTED = """
import torch, torchair
config = torchair.CompilerConfig()
OPTIONS
backend = torchair.get_npu_backend(compiler_config=config)
def compiled(model, x, y):
    MARKS
    return torch.compile(model, backend=backend, dynamic=DYNAMIC, fullgraph=True)
"""
PLAN: Mapping[str, Any] = {"stream_plan": {"stage": "post"}, "again": {"pass": "cse"}}


def script(options: str = "pass", marks: str = "pass", dynamic: str = "False", recipe: Any = None) -> str:
    text = NESTED.replace("OPTIONS", options).replace("MARKS", marks).replace("DYNAMIC", dynamic)
    return text if recipe is None else "\n".join(header.written(recipe)) + text


STATIC = {"name": "static", "dynamic": False, "mark_static": [], "mark_dynamic": {}}
SAME = {"mode": {"name": "max-autotune"}, "shapes": STATIC}
MARKED = {"name": "mine", "dynamic": True, "mark_static": ["?"], "mark_dynamic": {"y": [0]}}
SCRIPTS: dict[str, str] = {
    "code alone": script("config.debug.run_eagerly = True"),
    "marks": script(
        marks="""torch._dynamo.mark_static(x); torch._dynamo.mark_static(x)
    torch._dynamo.mark_dynamic(y, [0, 1]); torch._dynamo.mark_dynamic(y, [1, 2])
    torchair.inference.set_dim_gears(x, {0: [2, 4]})""",
        dynamic="True",
    ),
    "gears without dynamic sizes": script(marks="torchair.inference.set_dim_gears(x, {0: [2, 4]})", dynamic="None"),
    "gears outside GE": script(
        "config.mode = 'reduce-overhead'", "torchair.inference.set_dim_gears(x, {0: [2, 4]})", "True"
    ),
    "sinking of the tiling": script("config.experimental_config.tiling_schedule_optimize = True"),
    "sinking of the tiling with a recipe": script(
        "config.experimental_config.tiling_schedule_optimize = True", recipe={**SAME, "tiling": {"schedule": "sink"}}
    ),
    "a recipe that says the same": script(
        "config.debug.run_eagerly = True",
        recipe={**SAME, "compiler": {"debug": {"run_eagerly": True}}, "seed": 3, "strict": "warn", "logs": {}},
    ),
    "a recipe that says something else": script(
        "config.debug.run_eagerly = True; config.mode = 'reduce-overhead'",
        recipe={**SAME, "mode": {"name": "npugraph_ex"}, "shapes": {**STATIC, "dynamic": True}, "tiling": None},
    ),
    "a recipe without a mode": script(recipe={"seed": 1}),
    "patterns of a recipe that fit the marks": script(
        marks="torch._dynamo.mark_static(x); torch._dynamo.mark_dynamic(y, 0)",
        dynamic="True",
        recipe={**SAME, "shapes": {**MARKED, "mark_static": ["x*"]}},
    ),
    "patterns of a recipe that fit too much": script(
        marks="torch._dynamo.mark_static(x); torch._dynamo.mark_dynamic(y, 0)",
        dynamic="True",
        recipe={**SAME, "shapes": {**MARKED, "mark_static": ["x", "z"]}},
    ),
    "gears of a recipe that differ": script(
        marks="torchair.inference.set_dim_gears(x, {0: [2, 4]})",
        dynamic="True",
        recipe={**SAME, "shapes": {**STATIC, "dynamic": True, "gears": {"x.0": [2, 6]}}},
    ),
    "passes of a recipe whose hooks are there": script(
        "config.post_grad_custom_pre_pass = pre", recipe={**SAME, "passes": PLAN, "streams": {"max_streams": 2}}
    ),
    "passes of a recipe without hooks": script(recipe={**SAME, "passes": PLAN}),
    "hooks without passes": script(
        "config.post_grad_custom_post_pass = a_very_long_name_of_a_pass_"
        + "x" * 80
        + "\nconfig.post_grad_custom_pre_pass = lambda g: (\n    g)"
    ),
    "hooks in one line": script("config.post_grad_custom_pre_pass = f; config.post_grad_custom_post_pass = g"),
    "an option that has no effect": script("config.mode = 'reduce-overhead'; config.ge_config.oo_level = 'O1'"),
    "an option that has no effect, and a strictness": script(
        "config.mode = 'reduce-overhead'; config.ge_config.oo_level = 'O1'",
        recipe={"mode": {"name": "reduce-overhead"}, "strict": "warn"},
    ),
    "two configurations": "import torchair\none = torchair.CompilerConfig()\none.debug.run_eagerly = True\n"
    "two = torchair.CompilerConfig()\ntwo.ge_config.oo_level = 'O1'\nthree = torchair.CompilerConfig()\n"
    "backend = torchair.get_npu_backend(compiler_config=two)\n",
    "two compilations": "import torch\ntorch.compile(m, backend='npugraph_ex', dynamic=True)\n"
    "torch.compile(m, backend='npugraph_ex', dynamic=False)\n",
    "two compilations of the same": script()
    + "\ntorch.compile(other, backend=backend, dynamic=False, fullgraph=True)\n",
    "the mode of another package": "import torchair\nc = torchair.CompilerConfig()\nc.mode = 'npugraph_ex'\n"
    "c.debug.aclgraph.disable_reinplace_inplaceable_ops_pass = True\nc.debug.run_eagerly = True\n"
    "c.ge_config.oo_level = 'O1'\n",
    "logs": script() + "import logging\nlogging.getLogger('torchair').setLevel('DEBUG')\n"
    "torch._logging.set_logs(dynamo=True)\n",
    "a comment of two lines": script("config.mode = '''a\nb: c'''"),
}


def test_scripts_are_joined_with_their_recipes_like_this(golden: Any) -> None:
    shown = []
    for about, source in SCRIPTS.items():
        imported = import_script(source)
        lines = [f"# {about}", yaml.safe_dump(dict(imported.tree), sort_keys=False).rstrip()]
        lines += [f"note: {note}" for note in imported.notes] + [f"not read: {one}" for one in imported.unread]
        shown.append("\n".join(lines) + "\n")
    golden("recipe/imported.txt", "\n\n".join(shown))


def test_a_file_for_an_experiment_is_written_like_this(golden: Any) -> None:
    wanted = ("marks", "sinking of the tiling", "passes of a recipe whose hooks are there", "a comment of two lines")
    shown = [f"## {about}\n{import_script(SCRIPTS[about]).yaml('train.py')}" for about in wanted]
    golden("recipe/imported.yaml.txt", "\n".join(shown))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"compiler": [1]}, "compiler in the recipe must be a mapping"),
        ({"compiler": {"debug": {"no_such": 1}}}, "unknown option 'no_such'"),
        (
            {"compiler": {"torch_npu_version": "1.0"}},
            r"unknown torch_npu version '1\.0' @ compiler.torch_npu_version of",
        ),
        ({"passes": [1], "mode": 3}, "line 1: mode, passes in the recipe must be a mapping of names to values"),
        ({"passes": {"cse": 3}}, "this must be a mapping of the pass's options: 3 @ passes.cse"),
        ({"passes": {1: {}}}, "unknown pass '1'"),
        ({"shapes": {**STATIC, "mark_static": 3}}, "'mark_static' must be .* @ shapes"),
        ({"shapes": {**STATIC, "gears": 3}}, "'gears' must be a mapping: 3 @ shapes"),
        ({"tiling": "sink"}, "tiling in the recipe must be a mapping"),
        ({"streams": {"max_streams": 0}}, "'max_streams' must be >= 1: 0 @ streams"),
        ({"adapt": {"rules": 3}}, "@ adapt"),
    ],
)
def test_a_recipe_that_is_none_is_refused(recipe: dict[str, Any], words: str) -> None:
    given = {**SAME, "streams": {"max_streams": 2}, **recipe}
    if "passes" in recipe:
        source = script("config.post_grad_custom_pre_pass = pre", recipe=given)
    else:
        source = script(recipe=given)
    with pytest.raises(ConfigError, match=words):
        import_script(source)


def test_every_section_that_is_wrong_is_named_at_once() -> None:
    wrong = {**SAME, "streams": {"max_streams": 0}, "adapt": {"no": 1}, "passes": {"no_such_pass": None}}
    with pytest.raises(ConfigError) as refused:
        import_script(script("config.post_grad_custom_pre_pass = pre", recipe=wrong))
    assert [problem.rpartition(" @ ")[2].split(".")[0].split(" ")[0] for problem in refused.value.problems[:2]] == [
        "streams",
        "adapt",
    ]
    assert any("no_such_pass" in problem for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (\n", r"^mine:1 is not Python 3\.\d+: '\(' was never closed\.$"),
        ("x = 1\n", r"^mine: nothing found\. Looked for"),
        ("x = " + "-" * 50_000 + "1", "^mine.*(is not Python|lie too deep)"),
        ("a\x00b", r"^mine is not Python 3\.\d+: source code string cannot contain null bytes"),
    ],
)
def test_what_is_no_script_is_refused_in_one_line(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        import_script(source, name="mine")


def test_a_file_may_be_of_two_mebibytes_and_no_longer(tmp_path: Path) -> None:
    assert MOST_BYTES == 2 * 1024 * 1024
    path = tmp_path / "script.py"
    path.write_text("import torchair\nc = torchair.CompilerConfig()\n#".ljust(MOST_BYTES, " "))
    assert import_file(path).tree["mode"] == {"name": "max-autotune"}
    path.write_text("import torchair\nc = torchair.CompilerConfig()\n#".ljust(MOST_BYTES + 1, " "))
    with pytest.raises(ConfigError, match="script"):
        import_file(path)
    path.write_text("x = ")
    with pytest.raises(ConfigError, match=f"^{path}:1 is not Python"):
        import_file(path)


def test_a_version_is_that_of_the_caller_else_of_the_recipe_else_the_newest() -> None:
    sets = "config.ge_config.multistream_parallel_mode = 'cv'"
    old = script(sets, recipe={**SAME, "compiler": {"torch_npu_version": "2.6.0"}})
    assert [u.line > 0 for u in import_script(old).unread] == [True]
    assert import_script(old).tree["compiler"] == {"torch_npu_version": "2.6.0"}
    assert import_script(old, torch_npu_version="2.13.0").unread == ()
    assert import_script(script(sets)).unread == ()
    assert len(import_script(script(sets), torch_npu_version="2.6.0").unread) == 1


@pytest.mark.parametrize(
    ("patterns", "names", "covers"),
    [
        ([], [], True),
        (["x"], ["x"], True),
        (["x*"], ["x1", "x2"], True),
        (["x"], ["x", "y"], False),
        (["x", "z"], ["x"], False),
        ([], ["x"], False),
        (["x"], [], False),
        ({"x*": [0]}, {"xa": [0]}, True),
    ],
)
def test_patterns_cover_names_that_they_match_one_and_all(patterns: Any, names: Any, covers: bool) -> None:
    assert _covers(patterns, names) is covers


@pytest.mark.parametrize(
    ("wanted", "base", "differing"),
    [
        (1, 1, None),
        (1, 2, 1),
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": 2}),
        ({"a": None}, {"a": 1}, {"a": None}),
        ({"a": None}, {"a": None}, None),
        ({"a": None}, {}, None),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 2}}),
        ({"a": 1}, 3, {"a": 1}),
        (3, {"a": 1}, 3),
    ],
)
def test_what_differs_from_the_choice_is_kept(wanted: Any, base: Any, differing: Any) -> None:
    assert _differing(wanted, base) == differing


def test_options_that_are_dicts_are_not_taken_for_groups() -> None:
    kernel = "experimental_config.aclgraph._super_kernel_optimize_options"
    tree = {"experimental_config": {"aclgraph": {"_super_kernel_optimize_options": {"a": 1}}}, "x": {"y": {"z": 1}}}
    assert flat(tree, leaves=EVERY_LEAF) == {kernel: {"a": 1}, "x.y.z": 1}


# Commands.


@pytest.mark.parametrize("there", [True, False])
def test_a_path_with_a_space_is_a_file_s(there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my models" / "train.py"
    path.parent.mkdir()
    if there:
        path.write_text(script())
    assert main(["recipe", "import", str(path)]) == (0 if there else 2)
    told = capsys.readouterr()
    assert told.out.startswith("# @package _global_\n# what train.py says; " if there else "")
    assert ("there is no such file" in told.err) is not there


@pytest.mark.parametrize("words", ["vllm serve m -O3", "vllm serve m.py -O3", "vllm serve m"])
def test_several_words_are_a_command_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipe", "import", words])
    told = capsys.readouterr()
    assert "the command line" in told.out + told.err


def test_an_import_prints_notes_and_lines_beside_the_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(script("config.no_such = 1", recipe={"seed": 1}))
    assert main(["recipe", "import", str(path)]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "note: mode is max-autotune in the code and not what the recipe in its header says: the code counts",
        "not read: line 6: config.no_such = 1: torchair's CompilerConfig has no such option.",
    ]
    assert told.out.startswith("# @package _global_\n# what train.py says; ")
    assert told.out.endswith("\n")
    assert main(["recipe", "import", str(path), "--torch-npu", "2.6.0", "--out", str(tmp_path / "x.yaml")]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith(f"written: {tmp_path / 'x.yaml'}\n")
    assert "torch_npu_version: 2.6.0" in (tmp_path / "x.yaml").read_text()
    assert main(["recipe", "import", str(path), "--out", str(tmp_path)]) == 2
    assert "cannot be written: Is a directory" in capsys.readouterr().err


def test_ejecting_and_exporting_take_folders_and_a_file_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("defaults:\n- config\n- _self_\nmode:\n  name: npugraph_ex\n")
    own = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    assert main(["recipe", "export", "--to", "vllm-ascend", *own]) == 0
    assert json.loads(capsys.readouterr().out)["compilation_config"] == {"cudagraph_mode": "FULL"}
    assert main(["recipe", "eject", *own, "--out", str(tmp_path / "s.py")]) == 0
    assert "npugraph_ex" in (tmp_path / "s.py").read_text()


def test_what_vllm_ascend_is_told_reads_like_this(golden: Any) -> None:
    cases = {
        "npugraph_ex": ["mode=npugraph_ex", "shapes=auto"],
        "npugraph_ex as vLLM sets it": [
            "mode=npugraph_ex",
            "shapes=auto",
            "compiler.npugraph_ex.force_eager=true",
            "compiler.npugraph_ex.inplace_pass=false",
            "compiler.npugraph_ex.clone_input=false",
            "compiler.npugraph_ex.clone_output=true",
            "compiler.npugraph_ex.static_kernel_compile=true",
            "compiler.npugraph_ex.capture_limit=3",
            "compiler.npugraph_ex._vllm_aclnn_static_kernel_sym_range=[1,8]",
        ],
        "reduce-overhead": [
            "mode=reduce-overhead",
            "shapes=auto",
            "shapes.mark_static=[x]",
            "model=add",
            "compile.fullgraph=false",
            "compiler.debug.run_eagerly=true",
        ],
        "eager": ["mode=eager", "shapes=auto", "+shapes.mark_dynamic.x=[0]", "+logs.levels.torchair=DEBUG"],
        "max-autotune": ["mode=max-autotune", "passes=[cse,stream_plan]", "logs.artifacts=[graph_code]"],
    }
    told = [f"# {about}\n{json.dumps(export(*given).as_dict(), indent=1)}\n" for about, given in cases.items()]
    golden("recipe/vllm_ascend.txt", "\n".join(told))


def test_the_package_brings_its_names_late_and_no_others() -> None:
    for name in npucompose.recipe.__all__:
        assert getattr(npucompose.recipe, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'npucompose\.recipe' has no attribute 'no_such'"):
        _ = npucompose.recipe.no_such


def test_the_yaml_of_a_script_is_read_by_a_person_too() -> None:
    source = dedent(script("config.debug.run_eagerly = True"))
    assert import_script(source).yaml().startswith("# @package _global_\n# what a script says; ")


FUSES = "super kernels: the model's own code does it, {}, and goes on doing so; passes=super_kernel does it from YAML"
MODEL_OF_ITS_OWN = """
import torch, torchair
config = torchair.CompilerConfig()
class Model(torch.nn.Module):
    def forward(self, x):
        with torchair.scope.super_kernel("a", "b"):
            x = x + 1
        with torchair.scope.super_kernel("a", "b"):
            return x + 1
model = torch.compile(Model(), backend=torchair.get_npu_backend(compiler_config=config))
"""


def test_what_the_model_s_own_code_does_is_noted_with_its_lines_or_its_key(tmp_path: Path) -> None:
    assert import_script(MODEL_OF_ITS_OWN).notes == (FUSES.format("super_kernel (line 6, 8)"),)
    for said, notes in {"True": (FUSES.format("enable_superkernel=true"),), "False": ()}.items():
        deployment = tmp_path / "deployment.yaml"
        deployment.write_text(
            f"model_config:\n  exe_mode: ge_graph\n  custom_params:\n    enable_superkernel: {said}\n"
        )
        assert import_file(deployment).notes == notes
