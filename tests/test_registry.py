"""Names become classes: our own, and those of installed packages, which take no name of ours."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.passes.replace import PATTERNS
from npucompose.registry import Registry
from npucompose.targets import TARGETS

REGISTRIES = (MODELS, PASSES, PATTERNS, TARGETS)


def of_a_package(registry: Registry[Any], name: str) -> EntryPoint:
    """A class of theirs: here one that is built in already, under their name."""
    return EntryPoint(name, registry.built_in[-1][1], registry.group)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
class TestEveryRegistry:
    def test_an_installed_package_adds_names_but_takes_no_built_in_one(
        self, registry: Registry[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = tuple(name for name, _ in registry.built_in)
        taken = own[0]
        points = [of_a_package(registry, "stranger"), of_a_package(registry, taken)]
        monkeypatch.setattr("npucompose.registry.entry_points", lambda group: points if group == registry.group else [])
        assert registry.names() == (*own, "stranger")
        assert registry.get("stranger") is registry.get(own[-1])
        assert registry.get(taken) is not registry.get(own[-1])

    @pytest.mark.parametrize(
        ("place", "words"),
        [
            ("nowhere_to_be_found:Thing", "could not be imported: ModuleNotFoundError"),
            ("pathlib:Missing", "could not be imported: AttributeError"),
            ("pathlib:Path", "is not a subclass of npucompose."),
            ("json:dumps", "is not a subclass of npucompose."),
        ],
    )
    def test_what_is_no_class_of_the_kind_is_refused_with_its_place(
        self, place: str, words: str, registry: Registry[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = [EntryPoint("odd", place, registry.group)]
        monkeypatch.setattr("npucompose.registry.entry_points", lambda group: points)
        with pytest.raises(ConfigError) as refused:
            registry.get("odd")
        assert str(refused.value).startswith(f"{registry.kind} 'odd' ({place}) {words}")

    def test_an_unknown_name_is_refused_with_what_is_possible(self, registry: Registry[Any]) -> None:
        name = registry.names()[-1]
        with pytest.raises(ConfigError) as refused:
            registry.get(name + "x", "a.place")
        assert f"unknown {registry.kind} '{name}x' @ a.place. Did you mean '{name}'? Choices: " in str(refused.value)

    def test_a_class_knows_the_name_that_it_is_registered_under(self, registry: Registry[Any]) -> None:
        for name, _ in registry.built_in:
            assert registry.get(name).name == name
