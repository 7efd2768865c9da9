"""The table of what each tuning of the CPU engine is worth: what is switched off is there, and its modules are."""

from __future__ import annotations

import pytest

from benchmarks.tunings import MODULES, TUNINGS, Switch, statements_of


@pytest.mark.parametrize("tuning", TUNINGS)
def test_what_is_switched_off_is_there_again_afterwards(tuning: str) -> None:
    for switch in TUNINGS[tuning]:
        owner, name, known = switch.found()
        with switch.off():
            assert vars(owner)[name] is not known
        assert vars(owner)[name] is known


def test_a_name_that_is_gone_is_an_error() -> None:
    with pytest.raises(KeyError), Switch("npucompose_replay.products.known_forms", "gone").off():
        pass


def test_a_tuning_has_the_statements_of_its_modules() -> None:
    assert MODULES.keys() <= TUNINGS.keys()
    whole = statements_of("text of Inductor's templates, all")
    assert whole is not None
    parts = [statements_of("sums in parts, compensated"), statements_of("prefetch of packed weights")]
    assert None not in parts
    assert whole > sum(filter(None, parts))
    assert statements_of("sums over rows") is None
