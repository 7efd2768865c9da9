"""Torch's own errors: each row that has a pattern is seen in a graph of its own program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from npucompose.graphs.inherited import IN_DYNAMO, PATTERNS, inherited_errors
from replay_tests.semantics.rows import all_rows
from tests.graph_helpers import rows_shown

ROWS = inherited_errors().rows


@pytest.mark.parametrize("name", [name for name, error in ROWS.items() if error.pattern])
def test_a_graph_of_the_rows_own_program_shows_it(name: str) -> None:
    row, found = all_rows()[name], list[str]()

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*inputs: Any, **named: Any) -> Any:
            found.extend(rows_shown(function, *inputs, **named))
            return function(*inputs, **named)

        return call

    made = row.make(compiled)
    call = made[0] if isinstance(made, tuple) else made
    call(*row.arguments(call, 0))
    assert name in found


def test_every_row_is_a_program_and_every_pattern_is_of_a_row() -> None:
    assert set(ROWS) <= set(all_rows())
    assert {error.pattern for error in ROWS.values() if error.pattern} == {*PATTERNS, *IN_DYNAMO}
    assert all(error.traced or error.fused for error in ROWS.values())
