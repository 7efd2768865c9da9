"""Inputs of strangers made at random: a few of what `make fuzz-strangers` runs 50,000 of."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.strangers import trace
from tests.strangers.test_corpus import needs_strace
from tools.fuzz_foreign_files import touched, witnessed
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


def test_the_witness_of_the_fuzzed_files_tells_what_is_outside() -> None:
    mark = f'1 openat(AT_FDCWD</w>, "{trace.MARK}{{}}", O_RDONLY) = -1 ENOENT'
    lines = [
        '1 openat(AT_FDCWD</w>, "in/x.pt", O_WRONLY|O_CREAT) = 3', mark.format(7),
        '1 openat(AT_FDCWD</w>, "in/sweeps.sqlite-wal", O_RDWR|O_CREAT) = 3',
        '1 openat(AT_FDCWD</w>, "/w/tmp/npucompose-x/copy.sqlite", O_RDWR|O_CREAT) = 3',
        '1 openat(AT_FDCWD</w>, "/w/in/x.pt", O_RDONLY) = 3', '1 unlink("in/victim") = 0',
        '1 openat(AT_FDCWD</w>, "/w/victim", O_RDONLY) = 3', '1 unlink("/elsewhere") = 0',
        '1 execve("/bin/sh", ["sh", "-c"], 0x1) = 0', '1 connect(3, {sa_family=AF_INET, sin_port=1}, 16) = 0',
        mark.format(-1), '1 unlink("in/x.pt") = 0',
    ]  # fmt: skip
    told = list(touched(trace.done(lines), Path("/w")))
    assert [(number, words.split()[1]) for number, words in told] == [
        (7, "writes"), (7, "reads"), (7, "writes"), (7, "starts"), (7, "asks"),
    ]  # fmt: skip


@needs_strace
def test_some_foreign_files_are_read_under_the_witness(capfd: pytest.CaptureFixture[str]) -> None:
    assert [witnessed(kind, 5, 1) for kind in ("ledgers", "tensors")] == [0, 0]
    assert capfd.readouterr().out.count("the witness saw 0 acts outside") == 2
