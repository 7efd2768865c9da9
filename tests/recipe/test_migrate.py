"""What changes in a YAML between two versions of torch_npu, by both option trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.experiment import migration as migrate
from npucompose.experiment.migration import migration
from npucompose.vendor.versions import tree_of

NESTED = {"npugraph_ex": {"debug": {"aclgraph": {"clone_input": False}}}, "torch_npu_version": "2.8.0"}


def test_an_option_that_is_gone_is_named_with_what_the_new_version_writes() -> None:
    found = migration({"compiler": NESTED}, "2.14.0")
    assert (found.before, found.after) == ("2.8.0.post4", "2.14.0")
    assert found.problems[0].startswith(
        "compiler.npugraph_ex.debug.aclgraph.clone_input=false: torch_npu 2.14.0 (asked by --to) has no such option"
    )
    assert found.problems[0].endswith("It writes compiler.npugraph_ex.clone_input=false.")
    assert found.problems[1].endswith("write compiler.torch_npu_version=2.14.0, or leave it out.")
    (gone,) = [note for note in found.notes if note.startswith("gone: ")]
    assert "npugraph_ex.debug.aclgraph.clone_input" in gone
    (new,) = [note for note in found.notes if note.startswith("new: ")]
    assert "npugraph_ex.clone_input" in new


def test_between_versions_of_one_tree_nothing_changes_and_the_execution_is_said() -> None:
    found = migration({"compiler": {"ge_config": {"oo_level": "O1"}}}, "2.14.0")
    assert (found.before, found.problems) == ("2.13.0", ())
    assert found.notes[:2] == ("gone: no option", "new: no option")
    assert found.notes[-1].startswith("execution of 2.14.0: proven: every claim of tests/npu")
    assert migration({}, "2.12.0").notes[-1].startswith("execution of 2.12.0: not proven")


def test_a_mode_and_a_value_that_the_version_lacks_have_to_be_changed() -> None:
    for tree in (
        {"mode": "npugraph_ex"},
        {"mode": {"name": "npugraph_ex"}},
        {"defaults": [{"override /mode": "npugraph_ex"}]},
    ):
        (problem,) = migration(tree, "2.6.0").problems
        assert problem.startswith("mode=npugraph_ex: torch_npu 2.6.0.post5 has no such package")


def test_what_only_newer_trees_have_is_unknown_on_a_version_that_nobody_read() -> None:
    found = migration({"compiler": {"ge_config": {"multistream_parallel_mode": "cv"}}}, "2.9.5")
    assert found.problems == ()
    assert found.notes[0].startswith(
        "unknown: compiler.ge_config.multistream_parallel_mode: unknown whether torch_npu 2.9.5"
    )
    assert found.notes[1] == "assumed: the tree of torch_npu 2.9.5 was not read, that of 2.9.0.post6 is taken"


def test_new_defaults_and_other_values_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(version: str):
        tree = dict(tree_of(version))
        if version == "2.14.0":
            path = "ge_config.oo_level"
            tree[path] = attrs.evolve(tree[path], default="O2", choices=("O1", "O2", "O3"))
        return tree

    monkeypatch.setattr(migrate, "tree_of", changed)
    notes = migration({}, "2.14.0").notes
    assert "default: compiler.ge_config.oo_level O3 -> O2, which this recipe leaves to the default" in notes
    assert "values: compiler.ge_config.oo_level O1 | O3 -> O1 | O2 | O3" in notes


def test_the_command_ends_with_1_where_the_recipe_has_to_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"compiler": NESTED}))
    assert main(["recipe", "migrate", "--to", "2.14.0", str(recipe)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "torch_npu 2.8.0.post4 -> 2.14.0"
    recipe.write_text("compiler: {ge_config: {oo_level: O1}}\n")
    assert main(["recipe", "migrate", "--to", "2.14.0", str(recipe)]) == 0
    assert "nothing in this recipe has to be changed" in capsys.readouterr().out
    recipe.write_text("[1]\n")
    assert main(["recipe", "migrate", "--to", "2.14.0", str(recipe)]) == 2
    with pytest.raises(ConfigError, match="unknown torch_npu version 'newest' @ --to"):
        migration({}, "newest")


@pytest.mark.parametrize("said", [{"mode": {"name": 3}}, {"mode": 3}, {"defaults": [{"override /mode": ["a"]}]}])
def test_a_mode_that_is_no_name_is_none(said: dict[str, Any]) -> None:
    assert migration(said, "2.14.0") == migration({}, "2.14.0")


def test_options_behind_one_that_is_gone_are_told_all_the_same() -> None:
    """2.5.1 has fewer options and another set of values for `mode`, which stands behind the first that it lacks."""
    found = migration({"compiler": {"torch_npu_version": "2.7.1.post4"}}, "2.5.1")
    gone = next(note for note in found.notes if note.startswith("gone: "))
    assert gone != "gone: no option"
    old, new = tree_of(found.before), tree_of(found.after)
    changed = {path for path, leaf in old.items() if path in new and leaf.allowed() != new[path].allowed()}
    told = {note.removeprefix("values: compiler.").partition(" ")[0] for note in found.notes if note[:7] == "values:"}
    assert told == changed != set()
