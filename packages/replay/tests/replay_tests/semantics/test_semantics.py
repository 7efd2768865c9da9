"""Small programs as users write them: each is eager's, in every way to run it, or refused with a sentence and listed.

The fast suite runs some rows in one of two ways, in turns; `make test-full` runs all rows in all ways.
"""

from __future__ import annotations

import pytest

from replay_tests.semantics.harness import alone, traced_alone, verdict
from replay_tests.semantics.refused import INDUCTORS_OWN, REFUSED, SENTENCES, TRACINGS_OWN
from replay_tests.semantics.rows import Row, all_rows
from replay_tests.semantics.ways import FAST, WAYS, Way
from tools.semantics_page import PAGE, page

ROWS = all_rows()
LEAST, LEAST_FAST = 250, 60


def quick() -> list[object]:
    """The rows of the fast suite, each in one way."""
    fast = [row for row in ROWS.values() if row.fast]
    in_turns = [(row, FAST[k % len(FAST)]) for k, row in enumerate(fast)]
    return [pytest.param(row, way, id=f"{row.id}-{way.front}") for row, way in in_turns]


def everything() -> list[object]:
    pairs = [(row, way) for row in ROWS.values() for way in WAYS if row.fused or not way.fuses]
    return [pytest.param(row, way, id=f"{row.id}-{way.id}") for row, way in pairs]


def check(row: Row, way: Way) -> None:
    found = verdict(row, way)
    if row.id in REFUSED:
        assert found.kind == "refused", f"{row.id} is listed as refused and is {found.kind}: {found.words}"
        assert SENTENCES[row.id] in found.words
    elif way.fuses and row.id in INDUCTORS_OWN:
        assert found.kind == "as inductor", f"{found.kind}: {found.words}"
    elif row.id in TRACINGS_OWN and (not way.fuses or TRACINGS_OWN[row.id]):
        assert found.kind == "as traced", f"{found.kind}: {found.words}"
    else:
        assert found.kind == "right", f"{found.kind}: {found.words}"


@pytest.mark.parametrize(("row", "way"), quick())
def test_a_program_does_what_eager_does(row: Row, way: Way):
    check(row, way)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "way"), everything())
def test_a_program_does_what_eager_does_in_every_way(row: Row, way: Way):
    check(row, way)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_does_not_run_in_aot_eager_either(name: str):
    assert traced_alone(ROWS[name]).kind == "refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "inductor") for name in INDUCTORS_OWN), *((name, "aot_eager") for name in TRACINGS_OWN)],
)
def test_what_is_listed_as_torchs_own_is_still_wrong_in_torch_alone(name: str, backend: str):
    assert alone(ROWS[name], backend).kind == "wrong"


def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text() == page(), "python -m tools.semantics_page writes it"


def test_there_are_enough_rows_and_few_are_refused():
    assert len(ROWS) >= LEAST
    assert len(quick()) >= LEAST_FAST
    assert set(REFUSED) | set(INDUCTORS_OWN) | set(TRACINGS_OWN) <= set(ROWS)
    assert len(REFUSED) <= len(ROWS) / 20
