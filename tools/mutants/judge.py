"""Whether `make test` notices a mutant: its tests in waves, from the nearest and quickest to all that run the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tools.mutants.bench import Bench, Run
from tools.mutants.covering import Chosen, Map
from tools.mutants.mutation import Mutation

WAVES_S = (3.0, 15.0, 60.0)
"""Seconds of tests in the first waves; the last wave takes the rest."""
BUILD = "from npucompose_replay.executor import build; build.file()"
UNSTEADY_AT_MOST = 5
"""Tests of one mutant that fail once and pass when run again; with more, the machine is no place to judge."""


def judged(bench: Bench, covering: Map, mutation: Mutation, within_s: float | None = None) -> dict[str, Any]:
    """{"verdict": "caught", "by": the test that noticed, …}; or "survived", "timed out", "not compiled", "unsteady".

    "undecided" where no wave of tests has noticed for `within_s` seconds and there are more, or where test files were
    never traced, which might.
    """
    with bench.with_mutant(mutation):
        if not mutation.path.endswith(".py"):
            built = bench.command("-c", BUILD)
            if built.returncode:
                return {"verdict": "not compiled", "seconds": 0.0}
        found = _by_waves(bench, covering.chosen(mutation), within_s)
    return {**found, "verdict": "undecided"} if found["verdict"] == "survived" and covering.stale() else found


def _by_waves(bench: Bench, chosen: Sequence[Chosen], within_s: float | None) -> dict[str, Any]:
    seconds, count, unsteady = 0.0, 0, []
    for wave in waves(chosen):
        if within_s is not None and seconds > within_s:
            return {"verdict": "undecided", "tests": count, "seconds": round(seconds, 1)}
        while True:
            tests = {test: s for part in wave for test, s in part.tests.items() if test not in unsteady}
            files = [part.file for part in wave if any(test in tests for test in part.tests)]
            if not tests:
                break
            run = bench.run(files, tests)
            seconds += run.seconds
            if run.broken is not None:
                return {"verdict": "caught", "by": "pytest", "words": run.broken, "seconds": round(seconds, 1)}
            if run.hung is not None:
                return {"verdict": "timed out", "by": run.hung, "seconds": round(seconds, 1)}
            if run.failed is None:
                count += len(tests)
                break
            again = _again(bench, run, tests)
            seconds += again.seconds
            if again.failed is not None or again.hung is not None:
                return {"verdict": "caught", "by": run.failed, "words": run.words, "seconds": round(seconds, 1)}
            unsteady.append(run.failed)
            if len(unsteady) > UNSTEADY_AT_MOST:
                return {"verdict": "unsteady", "tests": count, "seconds": round(seconds, 1), "unsteady": unsteady}
    told = {"unsteady": unsteady} if unsteady else {}
    return {"verdict": "survived", "tests": count, "seconds": round(seconds, 1), **told}


def _again(bench: Bench, run: Run, tests: dict[str, float]) -> Run:
    """The test that failed, alone: a failure that does not come back is the machine's, not the mutant's."""
    assert run.failed is not None
    if run.failed not in tests:  # a file that cannot be imported, or a process that ended before its first test
        return run
    return bench.run([run.failed.partition("::")[0]], {run.failed: tests[run.failed]})


def waves(chosen: Sequence[Chosen]) -> Iterator[list[Chosen]]:
    """The files in their order, cut where a wave has seconds enough; each has at least one file."""
    rest = list(chosen)
    for limit in WAVES_S:
        wave: list[Chosen] = []
        while rest and (not wave or sum(c.seconds for c in wave) + rest[0].seconds <= limit):
            wave.append(rest.pop(0))
        if wave:
            yield wave
    if rest:
        yield rest
