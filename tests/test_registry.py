"""Names become classes: our own, and those of installed packages, which take no name of ours."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment.stages import STAGES
from npucompose.experiment.tracking import TRACKERS
from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.passes.replace import PATTERNS
from npucompose.recipe.dialects import DIALECTS
from npucompose.registry import Registry
from npucompose.report.listing import choices
from npucompose.table.modes import MODES, ModeSpec
from npucompose.targets import TARGETS
from tools.layout import import_folders

ROOT = Path(__file__).parents[1]
REGISTRIES = (MODELS, PASSES, PATTERNS, TARGETS, DIALECTS, TRACKERS, STAGES)
EXTENSIONS = tuple(import_folders())


def places(registry: Registry[Any]) -> dict[str, str]:
    """{name: where it lies} of what this project brings: built in, or as extensions of its own."""
    # private: entry points, before one is loaded
    points = {name: point.value for name, point in registry._installed().items() if point.value.startswith(EXTENSIONS)}
    return dict(registry.built_in) | points


def of_a_package(registry: Registry[Any], name: str) -> EntryPoint:
    """A class of theirs: here one that is there already, under their name."""
    return EntryPoint(name, list(places(registry).values())[-1], registry.group)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
class TestEveryRegistry:
    def test_an_installed_package_adds_names_but_takes_no_built_in_one(
        self, registry: Registry[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = of_a_package(registry, "stranger").load()
        own = tuple(name for name, _ in registry.built_in)
        points = [of_a_package(registry, name) for name in ("stranger", *own[:1])]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.group else [])
        assert registry.names() == (*own, "stranger")
        assert registry.get("stranger") is theirs
        assert registry.package("stranger") == theirs.__module__.partition(".")[0]
        for taken in own[:1]:
            assert registry.get(taken) is not theirs
            assert registry.package(taken) == "npucompose"

    @pytest.mark.parametrize(
        ("place", "words"),
        [
            ("nowhere_to_be_found:Thing", "could not be imported: ModuleNotFoundError"),
            ("pathlib:Missing", "could not be imported: AttributeError"),
            ("pathlib:Path", "is not a subclass of "),
            ("json:dumps", "is not a subclass of "),
        ],
    )
    def test_what_is_no_class_of_the_kind_is_refused_with_its_place(
        self, place: str, words: str, registry: Registry[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = [EntryPoint("odd", place, registry.group)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
        with pytest.raises(ConfigError) as refused:
            registry.get("odd")
        assert str(refused.value).startswith(f"{registry.kind} 'odd' ({place}) {words}")
        assert "odd" not in registry.every()
        assert "odd" in registry.names()

    def test_an_unknown_name_is_refused_with_what_is_possible(self, registry: Registry[Any]) -> None:
        name = registry.names()[-1]
        with pytest.raises(ConfigError) as refused:
            registry.get(name + "x", "a.place")
        assert f"unknown {registry.kind} '{name}x' @ a.place. Did you mean '{name}'? Choices: " in str(refused.value)

    def test_a_built_in_one_lies_where_its_place_says(self, registry: Registry[Any]) -> None:
        for name, place in places(registry).items():
            assert registry.get(name).__module__ == place.partition(":")[0]

    def test_a_class_knows_the_name_that_it_is_registered_under(self, registry: Registry[Any]) -> None:
        for name in places(registry):
            assert registry.get(name).name == name


@pytest.mark.parametrize("registry", [MODELS, PASSES, TARGETS], ids=lambda registry: registry.kind)
def test_each_is_listed_with_what_it_is(registry: Registry[Any]) -> None:
    group = registry.group.partition(".")[2]
    yaml = {"models": "model", "targets": "target"}.get(group, group)
    for name, place in places(registry).items():
        module = place.partition(":")[0]
        file = {"cancel_moves": "cancel_transposes"}.get(name, name)  # a name that users have written down
        assert (
            module == f"npucompose.{group}.{file}"
            or (group in ("models", "passes") and module.startswith(f"npucompose.{group}."))
            or module.startswith(EXTENSIONS)
        )
        (listed,) = (entry for entry in choices(yaml, [ROOT / "conf"]) if entry.name == name)
        assert listed.doc


def test_one_stage_is_one_file_of_its_name() -> None:
    assert [STAGES.get(name).__module__ for name in STAGES.names()] == [
        f"npucompose.experiment.stages.{name}" for name in STAGES.names()
    ]


def test_every_pass_has_a_graph_before_and_after_it_that_was_reviewed() -> None:
    """The pass `python` is somebody else's function."""
    reviewed = {path.stem for path in (ROOT / "tests" / "golden" / "passes").glob("*.txt")}
    assert {name for name, _ in PASSES.built_in} - {"python"} <= reviewed


def test_a_mode_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("odd", "json:dumps", MODES.group), EntryPoint("mine", "tests.test_registry:MINE", MODES.group)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert MODES.get("mine") is MINE
    with pytest.raises(ConfigError, match=r"mode 'odd' \(json:dumps\) is no npucompose\.table\.modes\.ModeSpec\."):
        MODES.get("odd")
    assert list(MODES.every()) == [*dict(MODES.built_in), "mine"]


MINE = ModeSpec(name="mine")


def test_a_built_in_name_asks_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: pytest.fail(group))
    for registry in REGISTRIES:
        for name, _ in registry.built_in:
            registry.get(name)
            assert name in registry
    check(compose(["mode=eager", "model=add", "passes=[cse]", "seed=3", "target.stream_threads=1"]))
