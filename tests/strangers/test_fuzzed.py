"""Inputs of strangers made at random: a few of what `make fuzz-strangers` runs 50,000 of."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tools.fuzz_strangers import CHUNK, KINDS, Composing, Maker, chunk, problem_of


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.chdir(tmp_path)
    return Maker(Composing(tmp_path))


def test_the_same_numbers_make_the_same_inputs(maker: Maker) -> None:
    made = [[maker.case(kind, random.Random(f"{n} {kind}")) for n in range(3)] for kind in set(KINDS) - {"ledger"}]
    again = [[maker.case(kind, random.Random(f"{n} {kind}")) for n in range(3)] for kind in set(KINDS) - {"ledger"}]
    assert sorted(map(repr, made)) == sorted(map(repr, again))


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ({"status": 2, "err": "npucompose: no"}, None),
        ({"status": 0}, None),
        ({"status": 3, "err": "npucompose: internal error"}, "status 3"),
        ({"status": 0, "raised": "KeyError"}, "status 0: KeyError"),
        ({"status": 2}, "refused without a sentence"),
        ({"status": 0, "out": "\x1b"}, "a control character"),
        ({"status": 2, "err": "Traceback (most"}, "a traceback"),
        ({"status": 0, "seconds": 11.0}, "11.0 s"),
    ],
)
def test_what_counts_as_found(end: dict[str, object], found: str | None) -> None:
    problem = problem_of({"raised": None, "out": "", "err": "", "seconds": 0.0, **end})
    assert (problem or "").startswith(found or "")
    assert (problem is None) == (found is None)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1000 // CHUNK))
def test_no_input_of_a_thousand_ends_in_a_traceback(number: int, maker: Maker) -> None:
    done = chunk(maker, 16, number)
    assert (done["inputs"], done["found"]) == (CHUNK, [])
