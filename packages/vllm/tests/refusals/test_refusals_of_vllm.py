"""Refusals of what vLLM is given as its recipe: an input for each rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npucompose_vllm.recipe import read, recipe_of
from tests.refusals.case import Case
from tests.refusals.table import Table

SERVED = "npucompose_vllm.recipe"


def served(text: str) -> Callable[[Path], Any]:
    """What an engine was given as its recipe."""

    def reading(folder: Path) -> Any:
        (folder / "recipe.yaml").write_text(text)
        return read(str(folder / "recipe.yaml"))

    return reading


TABLE = Table(
    packages=("npucompose_vllm",),
    cases=(
        Case(
            SERVED, "is the path of {kind}", lambda _: recipe_of({"npucompose": ["a"]}), "is the path of a", "TypeError"
        ),
        Case(SERVED, "additional_config", lambda _: recipe_of({"npu_compose": "a"}), "Did you mean 'npucompose'?"),
        Case(
            SERVED,
            "takes target=cpu and a mode",
            served("# @package _global_\ndefaults:\n  - override /mode: eager\n"),
            "mode=eager; vLLM on a CPU takes target=cpu",
        ),
    ),
)


@pytest.mark.parametrize("case", TABLE.cases, ids=str)
def test_what_one_rule_refuses_only_that_rule_refuses(case: Case, tmp_path: Path) -> None:
    TABLE.hold(case, tmp_path)


@pytest.mark.parametrize("module", TABLE.modules)
def test_every_rule_of_a_reader_has_a_case(module: str) -> None:
    assert TABLE.without_a_case(module) == []


def test_every_module_that_reads_is_in_the_table_or_named_with_a_reason() -> None:
    TABLE.hold_all_readers()
