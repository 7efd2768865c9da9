"""How an override is merged, whose origin a leaf has, and what one combination of choices gives."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.compose import tree
from npucompose.compose.merge import Keys, with_overrides
from npucompose.compose.overrides import parsed_overrides
from npucompose.compose.tree import COMMAND_LINE, DEFAULT, Composer, compose
from npucompose.errors import ConfigError
from npucompose.table.structure import flat

TREE = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, {"g": 3}], "f": None}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.b=2", {**TREE, "a": {"b": 2, "c": {"d": 2}}}),
        ("e=[1,2]", {**TREE, "e": [1, 2]}),
        ("e.1.g=x", {**TREE, "e": [1, {"g": "x"}]}),
        ("e.0=null", {**TREE, "e": [None, {"g": 3}]}),
        ("a.c=1", {**TREE, "a": {"b": 1, "c": 1}}),
        ("a={c: {x: 3}}", {**TREE, "a": {"b": 1, "c": {"d": 2, "x": 3}}}),
        ("+x.y=1", {**TREE, "x": {"y": 1}}),
        ("++a.b.c=1", {**TREE, "a": {"b": {"c": 1}, "c": {"d": 2}}}),
        ("f={x: 1}", {**TREE, "f": {"x": 1}}),
        ("f.x.y=1", {**TREE, "f": {"x": {"y": 1}}}),
        ("f.w.y.z=1", {**TREE, "f": {"w": {"y.z": 1}}}),
        ("~a.c", {**TREE, "a": {"b": 1}}),
        ("~a.b=1", {**TREE, "a": {"c": {"d": 2}}}),
        ("a.b=${e}", {**TREE, "a": {"b": "${e}", "c": {"d": 2}}}),
    ],
)  # fmt: skip
def test_an_override_goes_into_a_copy_of_the_tree(text: str, found: dict[str, Any]) -> None:
    before = copy.deepcopy(TREE)
    assert with_overrides(TREE, parsed_overrides([text]), Keys({"f.w": True})) == found
    assert before == TREE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("~a.x", r"^Could not delete from config\. 'a\.x' does not exist\.$"),
        ("~f", r"^Could not delete from config\. 'f' does not exist\.$"),
        ("~a.b=2", r"^Could not delete from config\. The value of 'a\.b' is 1 and not 2\.$"),
        ("e.2=1", r"^'2' is no place of a list of 2 @ e\.2=1\.$"),
        ("e.x=1", r"^'x' is no place of a list of 2 @ e\.x=1\.$"),
    ],
)
def test_what_cannot_be_deleted_or_found_is_told(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        with_overrides(TREE, parsed_overrides([text]), Keys({}))


def test_leaves_are_all_that_is_no_full_mapping() -> None:
    assert list(flat({**TREE, "g": {}})) == ["a.b", "a.c.d", "e", "f", "g"]
    assert list(flat({})) == []


def test_the_origin_of_a_leaf_is_its_own_or_that_of_the_nearest_mapping_around_it() -> None:
    origins = {"a": "one", "a.c": "two", "e": "three", "x": ""}
    assert tree._provenance(TREE, origins) == {"a.b": "one", "a.c.d": "two", "e": "three", "f": DEFAULT}
    assert tree._nearest(origins, "a.c.d.e.f") == "two"
    assert tree._nearest(origins, "q.r") == DEFAULT


def test_a_preset_s_file_is_not_chosen_by_the_list_of_its_group() -> None:
    def of(path: str, parent: str | None) -> str:
        default: Any = SimpleNamespace(config_path=path, parent=parent)
        return tree._of_a_list(default)

    assert of("passes/cse", "config") == of("passes/cse", None) == "passes"
    assert of("passes/cse", "passes/clean") == ""
    assert of("passes/cse", "passesque/clean") == "passes"


def test_hydra_s_own_keys_are_no_part_of_the_tree_and_a_deleted_one_is_gone() -> None:
    found = compose(["~seed", "hydra.run.dir=x", "+new.key=1"])
    assert "hydra" not in found.tree
    assert "seed" not in found.tree
    assert "seed" not in found.provenance
    assert found.provenance["new.key"] == COMMAND_LINE
    assert found.overrides == ("~seed", "hydra.run.dir=x", "+new.key=1")
    assert found.problems == ()


def test_a_mapping_given_whole_takes_the_origins_of_all_that_was_in_it() -> None:
    found = compose(["++compile={fullgraph: false}", "compile.cache=true"])
    assert found.problems == ()
    below = {path: by for path, by in found.provenance.items() if path.startswith("compile.")}
    assert set(below.values()) == {COMMAND_LINE}
    assert (found.tree["compile"]["fullgraph"], found.tree["compile"]["cache"]) == (False, True)
    assert len(below) == 4, "the mapping is merged into the one that was there"


def test_a_value_that_refers_to_another_is_followed_and_the_shared_tree_stays() -> None:
    composer = Composer()
    plain = composer.compose(["seed=1"])
    referring = composer.compose(["seed=${benchmark.warmup}", "benchmark.warmup=9"])
    assert (referring.tree["seed"], plain.tree["seed"]) == (9, 1)
    assert composer.compose([]).tree["benchmark"]["warmup"] != 9
    assert referring.provenance["seed"] == COMMAND_LINE


def test_whether_a_key_is_a_group_is_asked_once() -> None:
    composer = Composer()
    (mode, seed) = parsed_overrides(["mode=eager", "seed=1"])
    assert (composer.is_group(mode), composer.is_group(seed)) == (True, False)
    composer.loader.repository = None  # type: ignore[assignment]
    assert (composer.is_group(mode), composer.is_group(seed)) == (True, False)


def test_a_composer_is_full_beyond_what_it_may_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    composer = Composer()
    composer.compose(["mode=eager", "seed=1"])
    combinations, checked = len(composer._combinations), composer._problems.cache_info().currsize
    for most, overrides, full in ((1, 9, False), (0, 9, True), (9, 2, False), (9, 1, True)):
        monkeypatch.setattr(tree, "MOST_COMBINATIONS", most)
        monkeypatch.setattr(tree, "MOST_OVERRIDES", overrides)
        assert composer.is_full is full, (combinations, checked)
    assert (combinations, checked) == (1, 2)


def test_the_package_s_own_composer_is_kept_and_renewed_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    first = tree._of_the_package("config")
    assert tree._of_the_package("config") is first
    monkeypatch.setattr(Composer, "is_full", property(lambda self: self is first))
    second = tree._of_the_package("config")
    assert second is not first
    assert tree._of_the_package("config") is second
