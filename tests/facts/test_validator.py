"""The validator of stream plans alone: one fact of a safe plan is made false, and it says so.

Of inputs it knows nothing: where they lie is asked at every call, by the gate of the replay (test_admission.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import pytest
from hypothesis import assume

from npucompose.streams import validate
from tests.facts.broken import (
    EXAMPLES,
    Planned,
    hold,
    is_shown,
    races,
    refused,
    with_a_shorter_life,
    with_an_early_record,
    with_another_name,
    without_a_wait,
)
from tests.sample_graphs import CAN
from tests.streams.random_in_place import uncovered

EARLY = attrs.evolve(CAN, frees_early=True)
BREAKS = pytest.mark.parametrize("breaks", [without_a_wait, with_an_early_record, with_another_name])


@EXAMPLES
@BREAKS
def test_a_wait_or_an_alias_that_no_longer_holds_is_refused(breaks: Callable[[Planned], bool], examples: int) -> None:
    seen: Counter[bool] = Counter()

    def check(plan: Planned) -> None:
        assert not list(races(plan.module))
        validate(plan.graph, can=CAN)
        assume(breaks(plan))
        seen[shown := is_shown(plan.module)] += 1
        assert not shown or refused(lambda: validate(plan.graph, can=CAN))

    hold(check, examples)
    assert seen[True] >= examples / 3, seen


@EXAMPLES
def test_memory_that_no_longer_lives_long_enough_is_refused(examples: int) -> None:
    seen: Counter[bool] = Counter()

    def check(plan: Planned) -> None:
        assert not list(uncovered(plan.module))
        validate(plan.graph, plan.needed, EARLY)
        assume(with_a_shorter_life(plan))
        seen[bool(shown := list(uncovered(plan.module)))] += 1
        assert not shown or refused(lambda: validate(plan.graph, plan.needed, EARLY)), shown

    hold(check, 2 * examples, EARLY)
    assert seen[True] >= examples / 3, seen
