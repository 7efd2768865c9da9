"""Every capture program gets its rule, code and line from `explain --capture`'s machine; what only looks like a mistake
gets none. Switching a rule off is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.npu.capture.records import CaptureLegality
from npucompose.npu.capture.rules import rules
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from tests.capture.programs import Program, programs
from tests.capture.seeded import captured

PROGRAMS = tuple(programs().values())
FAULTS = [one for one in PROGRAMS if one.rule is not None]
NEAR_MISSES = [one for one in PROGRAMS if one.rule is None]


def judged(program: Program) -> CaptureLegality:
    return captured(program.made, capture_mode=program.mode, torch_npu=program.torch_npu)


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.name)
def test_a_mistake_is_found_at_its_line_with_rule_and_code(program: Program) -> None:
    facts = judged(program)
    assert [(one.rule, one.code) for one in facts.findings] == [(program.rule, program.code)]
    (found,) = facts.findings
    assert found.source is not None
    assert found.source.endswith("# here")
    row = rules().of(program.rule or "")
    verdict = "captures with races" if row.race else "does not capture"
    assert (facts.verdict, facts.certainty) == ((verdict, row.standing) if program.sure else ("unknown", "unknown")), (
        facts.evidence
    )


@pytest.mark.parametrize("program", NEAR_MISSES, ids=lambda program: program.name)
def test_what_only_looks_like_a_mistake_gives_no_alarm(program: Program) -> None:
    facts = judged(program)
    assert facts.findings == ()
    assert (facts.verdict, facts.certainty) == ("captures", "proven"), facts.evidence
    assert program.unlike in rules().rules


@pytest.mark.parametrize("torch_npu", ["2.14.0"])
def test_other_wheels_say_the_same_unless_the_rule_names_its_versions(torch_npu: str) -> None:
    """Programs of another version than 2.13.0 are about that one alone."""
    for one in (program for program in PROGRAMS if program.torch_npu == "2.13.0"):
        holds = one.rule is not None and rules().of(one.rule).holds(torch_npu)
        facts = captured(one.made, capture_mode=one.mode, torch_npu=torch_npu)
        assert [found.rule for found in facts.findings] == ([one.rule] if holds else []), one.name


def test_there_are_120_programs_and_each_rule_that_a_program_can_break_has_both() -> None:
    beyond = {
        "data_memory", "graph_break", "streams_exhausted", "memory_exhausted", "capture_lost", "still_captured",
        "still_running", "branch_open", "task_queue",
    }  # fmt: skip
    assert len(PROGRAMS) >= 120
    assert {one.rule for one in FAULTS} == set(rules().rules) - beyond


@pytest.mark.parametrize("rule", sorted({one.rule for one in FAULTS if one.rule}))
def test_a_rule_that_is_switched_off_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the rule, the programs that break it are found no more."""
    refuse = CaptureRuntime.refuse

    def all_others(self: CaptureRuntime, name: str, *said: Any, **more: Any) -> None:
        if name != rule:
            refuse(self, name, *said, **more)

    monkeypatch.setattr(CaptureRuntime, "refuse", all_others)
    broken = [one for one in FAULTS if one.rule == rule]
    assert all(rule not in [found.rule for found in judged(one).findings] for one in broken)


def test_each_program_cites_its_source_and_the_code_is_the_rules() -> None:
    for one in PROGRAMS:
        assert one.source, one.name
        if one.rule is not None:
            assert one.code == rules().of(one.rule).code, one.name
