"""Random programs against eager; `tools/fuzz_programs.py` runs many more of them, with a stored seed."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, seed, settings

from npucompose_replay.captured_graph import CapturedGraph
from replay_tests.semantics.fuzzing import SETTINGS, complaint
from replay_tests.semantics.programs import FUSED_WAYS, Program, programs
from tests.searches import examples

CHUNKS, CHUNK = 10, 100
# A program is small as it is; tools/fuzz_programs.py shrinks what it finds.
PLAINLY = settings(SETTINGS, phases=[Phase.generate])


@seed(14)
@settings(PLAINLY, max_examples=5)
@given(program=programs())
def test_a_random_program_does_what_eager_does(program: Program):
    assert complaint(program) is None


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_do_what_eager_does(chunk: int):
    @seed(chunk)
    @settings(PLAINLY, max_examples=CHUNK)
    @given(program=programs())
    def check(program: Program) -> None:
        assert complaint(program) is None

    check()


@pytest.mark.slow
@seed(21)
@settings(PLAINLY, max_examples=12)
@given(program=programs(FUSED_WAYS))
def test_random_programs_do_what_eager_does_where_inductors_kernels_are_replayed(program: Program):
    assert complaint(program) is None


@pytest.mark.slow
def test_without_the_look_at_who_holds_results_the_fuzzer_finds_them_overwritten(monkeypatch: pytest.MonkeyPatch):
    """The negative control: within 200 programs, and in what one call returns, where no caller could have cloned."""
    monkeypatch.setattr(CapturedGraph, "try_replay", lambda self, inputs: self._reusing(inputs))
    tried: list[Program] = []

    @seed(14)
    @settings(PLAINLY, max_examples=examples(200))
    @given(program=programs())
    def look(program: Program) -> None:
        tried.append(program)
        found = complaint(program)
        assert found is None or "['result']" not in found.partition(";")[0]

    with pytest.raises(AssertionError, match=r"call \d: \['result'\]"):
        look()
    assert len(tried) <= 200


def test_the_same_seed_writes_the_same_programs():
    def written() -> list[str]:
        found: list[str] = []

        @seed(3)
        @settings(PLAINLY, max_examples=examples(20))
        @given(program=programs())
        def note(program: Program) -> None:
            found.append(repr(program))

        note()
        return found

    assert written() == written()
