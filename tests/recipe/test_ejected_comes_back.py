"""What `recipe eject` wrote, `recipe import` reads: the same experiment, from the recipe or from the code alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.recipe import eject, header, import_script
from npucompose.recipe.ejected import Parts, text
from npucompose.schema.experiment import Experiment, Shapes
from npucompose.vendor.compiler import LEAVES, CompilerOptions
from tests.recipe.experiments import EXPERIMENTS, OTHER_VERSIONS, ejected
from tests.recipe.importing import compiler, experiment_of, experiments
from tests.searches import examples


@pytest.mark.parametrize("name", [*EXPERIMENTS, *OTHER_VERSIONS])
def test_an_ejected_script_comes_back_as_the_same_experiment(name: str, tmp_path: Path) -> None:
    overrides = {**EXPERIMENTS, **OTHER_VERSIONS}[name]
    imported = import_script(ejected(name))
    before = api.checked(overrides).experiment
    assert imported.unread == ()
    after = experiment_of(imported, tmp_path)
    assert attrs.evolve(after, expect=before.expect) == before


@pytest.mark.slow
def test_adaptation_rules_travel_in_the_recipe_of_a_script(tmp_path: Path) -> None:
    overrides = ["model=gpt_decode", "model.layers=1", "adapt=ascend", "passes=adapt"]
    imported = import_script(eject(*overrides))
    assert "override /adapt: ascend" in imported.yaml()
    assert experiment_of(imported, tmp_path).adapt == api.checked(overrides).experiment.adapt


def test_without_its_recipe_a_script_for_another_version_needs_to_be_told_which(tmp_path: Path) -> None:
    script = ejected("nested")
    bare = "\n".join(line for line in script.splitlines() if not line.startswith("#"))
    assert any("has no such option" in line.why for line in import_script(bare).unread)
    experiment = experiment_of(import_script(bare, torch_npu_version="2.8.0"), tmp_path)
    assert experiment.compiler == api.checked(OTHER_VERSIONS["nested"]).experiment.compiler
    with pytest.raises(ConfigError, match=r"unknown torch_npu version '3\.0' @ --torch-npu"):
        import_script(bare, torch_npu_version="3.0")


def test_the_code_counts_where_it_was_changed_after_ejecting(tmp_path: Path) -> None:
    script = ejected("sink").replace('oo_level = "O1"', "oo_constant_folding = False")
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
        (("#   mode:", "#   mode: ["), "the recipe's YAML:3 is not YAML"),
        (("clone_input: false", "clone_inptu: false"), "unknown option 'clone_inptu' @ compiler.debug.aclgraph"),
    ],
)
def test_an_edited_recipe_is_checked(change: tuple[str, str], words: str) -> None:
    script = eject("experiment=mm_abs_sub", "compiler.debug.aclgraph.clone_input=false")
    with pytest.raises(ConfigError, match=words):
        import_script(script.replace(*change))


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def test_the_commands_go_round(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from npucompose.cli import main

    monkeypatch.chdir(tmp_path)
    os.makedirs("mine/experiment")
    assert main(["recipe", "eject", "model=add", "mode=max-autotune", "--out", "script.py"]) == 0
    assert main(["recipe", "import", "script.py", "--out", "mine/experiment/again.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["recipe", "eject", "--config-dir", "mine", "experiment=again"]) == 0
    assert capsys.readouterr().out == Path("script.py").read_text()
    assert main(["recipe", "import", "script.py", "--out", "script.py/below.yaml"]) == 2
    assert "--out script.py/below.yaml cannot be written" in capsys.readouterr().err
    assert main(["recipe", "eject", "mode=eager"]) == 2
