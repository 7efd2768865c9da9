"""The recipe that vLLM was given, and the keys of what it makes. Imports nothing of vLLM and no torch."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from attrs import frozen

from airflow_free.keys import code_digests, digest
from npucompose.compose.check import Checked
from npucompose.errors import ConfigError, unknown
from npucompose.experiment.job import RESULT_PACKAGES, source_of, values_of
from npucompose.machine import installed_version
from npucompose.serving.generate import read_checked, without_freezing
from npucompose_vllm.options import VllmOptions

KEY, STEPS = "npucompose", "npucompose_steps"
"""Of vLLM's `additional_config`: the recipe, and a file for a trace of the steps, which no recipe names."""
KEYS = (KEY, STEPS)
VARIABLE = "NPUCOMPOSE_RECIPE"
"""The environment variable that says the same, for a vLLM whose command line does not reach its platform."""
NOT_FROZEN = "weights are inputs of vLLM's graphs, and it packs them itself"


@frozen(kw_only=True)
class Recipe:
    """What a person wants of an engine: a checked experiment, whose model is the engine's."""

    path: str
    checked: Checked

    @property
    def options(self) -> VllmOptions:
        return self.checked.experiment.extensions.section(VllmOptions)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens, ascending."""
        return tuple(sorted(set(self.options.sizes)))

    def sizes_within(self, most: int) -> tuple[list[int], list[int]]:
        """(sizes that a scheduler with at most so many tokens in a step can have, the others)."""
        return [size for size in self.sizes if size <= most], [size for size in self.sizes if size > most]

    @property
    def fuses(self) -> bool:
        """Whether Inductor makes the kernels."""
        return self.checked.target.support(self.checked.experiment.mode.name).fuses

    @property
    def others(self) -> str:
        """What runs a number of tokens that the recipe does not name: Inductor's code where there is some."""
        return self.options.general if self.fuses or self.each_size_alone else "eager"

    @property
    def inductor(self) -> Mapping[str, Any]:
        """Inductor's options that it sets, over those of the engine."""
        return self.checked.experiment.inductor.settings() if self.fuses else {}

    @property
    def each_size_alone(self) -> bool:
        """Whether a size is compiled with numbers where others have symbols."""
        return self.checked.experiment.shapes.dynamic is False

    @cached_property
    def passes_key(self) -> str:
        """A hash of the passes' options and of their sources."""
        return digest({"passes": values_of(self.checked)["passes"], "sources": self._sources()})

    @cached_property
    def key(self) -> str:
        """A hash of all that decides what comes out but vLLM and the model: the recipe with every default, the sources
        of its passes and of npucompose, torch, and the machine."""
        return digest(
            {
                "recipe": values_of(self.checked),
                "sources": self._sources(
                    *RESULT_PACKAGES, *self.checked.target.sources(), "npucompose.serving", "npucompose_vllm"
                ),
                "torch": installed_version("torch"),
                "machine": dict(self.checked.target.identity()),
            }
        )

    def _sources(self, *packages: str) -> Mapping[str, str]:
        modules = {source_of(type(one)) for _, one in self.checked.passes}
        files = [file for _, one in self.checked.passes for file in one.source_files()]
        return code_digests((*packages, *modules), files)


def recipe_of(additional_config: Any) -> Recipe | None:
    """The recipe that vLLM's `additional_config` names, else the environment; None where neither does.

    ConfigError for a name that is no path, and for a key of this package's that is misspelt: vLLM takes any.
    """
    given: Mapping[str, Any] = additional_config if isinstance(additional_config, Mapping) else {}
    for key in given:
        if key not in KEYS and _is_meant(str(key)):
            raise ConfigError(unknown("key", str(key), KEYS, where="additional_config"))
    said, place = f"additional_config.{KEY}", given.get(KEY)
    if place is None:
        said, place = VARIABLE, os.environ.get(VARIABLE)
    return None if place is None else read(path_of(said, place, "a recipe"))


def _is_meant(key: str) -> bool:
    """Whether a key of `additional_config`, which others use too, is one of KEYS in another spelling."""
    letters = re.sub(r"[\W_]", "", key.lower())
    return letters.startswith(KEY) or bool(difflib.get_close_matches(letters, KEYS, n=1, cutoff=0.88))


def path_of(said: str, given: Any, kind: str) -> str:
    """Absolute, of a path that no shell has read: `~` is the caller's home."""
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{said} is the path of {kind}; given {given!r}.")
    return str(Path(os.path.expanduser(given)).absolute())


@cache
def read(path: str) -> Recipe:
    """The recipe in a file. ConfigError says, with its line, what is wrong, or what vLLM on a CPU has no use for."""
    checked = read_checked(path)
    support = checked.target.support(checked.experiment.mode.name)
    if checked.target.name != "cpu" or not support.compiles:
        given = f"target={checked.target.name} mode={checked.experiment.mode.name}"
        raise ConfigError(f"{path}: {given}; vLLM on a CPU takes target=cpu and a mode that compiles.")
    return Recipe(path=path, checked=without_freezing(checked, NOT_FROZEN))
