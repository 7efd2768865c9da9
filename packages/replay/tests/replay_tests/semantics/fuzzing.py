"""What is expected of a random program, in the tests and in `tools/fuzz_programs.py`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from replay_tests.semantics.harness import Verdict, run, verdict
from replay_tests.semantics.programs import Program
from replay_tests.semantics.ways import as_traced, by_inductor

SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


def judged(program: Program) -> Verdict:
    """The verdict; a refusal of something that aot_eager, or torch's Inductor, runs is as wrong as a wrong number."""
    row = program.row()
    found = verdict(row, program.way)
    torchs, name = (by_inductor, "Inductor") if program.way.fuses else (as_traced, "aot_eager")
    if found.kind == "refused" and run(row, torchs).refusal is None:
        return Verdict("wrong", f"refused, and {name} runs it: {found.words}")
    return found


def complaint(program: Program) -> str | None:
    found = judged(program)
    return found.words if found.kind == "wrong" else None
