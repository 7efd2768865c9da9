"""expect: judged with evidence, and refused before the run where the run could not judge it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from report.report_examples import CUT_RUN, FULL, INDUCTOR

from airflow_free import expectations
from airflow_free.experiment import Job
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Expect
from npucompose.schema.record import CallFacts, Expectation, Report, SequenceFacts
from npucompose.schema.sinking import Blame, SinkingFacts, Step, Verdict

SINKING = SinkingFacts.of(
    fx_graph=Verdict(value="dynamic", certainty="proven", evidence=("SymInt s77",)),
    ge_graph=Verdict(value="static", certainty="proven", evidence=("Data query [2, 8, 1, 64]",)),
    ge_build=Verdict(value="dynamic", certainty="derived", evidence=("row 5",)),
    path=3,
    blame=(Blame(node="fia", operator="npu.fia", reason="its tiling depends on actual_seq_lengths", source="m.py:12"),),
    steps=(
        Step(id="S1", title="configuration", status="problem", evidence=("tiling=host",), fix="tiling=sink"),
        Step(id="S2", title="placeholders", status="ok"),
    ),
)


def one(report: Report, **expect: Any) -> Expectation:
    (found,) = expectations.judged(Expect(**expect), report)
    return found


@pytest.mark.parametrize(
    ("expect", "report", "got", "held"),
    [
        ({"fx_graph": "static"}, FULL, "static", True),
        ({"fx_graph": "static"}, INDUCTOR, "dynamic", False),
        ({"recompiles": 1}, attrs.evolve(INDUCTOR, stages=FULL.stages), 1, True),
        ({"recompiles": 0}, attrs.evolve(INDUCTOR, stages=FULL.stages), 1, False),
        ({"captures": 1}, FULL, None, False),
        ({"segments": 1}, FULL, None, False),
        ({"segments": 1}, CUT_RUN, 3, False),
        ({"segments": 3}, CUT_RUN, 3, True),
        ({"streams": 2}, FULL, 2, True),
        ({"events": 7}, FULL, 8, False),
        ({"streams": 1}, attrs.evolve(FULL, streams=None), 1, True),
        ({"events": 1}, attrs.evolve(FULL, streams=None), 0, False),
        ({"bitwise": True}, FULL, True, True),
        ({"bitwise": True}, INDUCTOR, False, False),
        ({"bitwise": False}, INDUCTOR, False, True),
        ({"speedup": 1.5}, FULL, 1.914, True),
        ({"speedup": 2.0}, FULL, 1.914, False),
        ({"ge_graph": "static"}, attrs.evolve(FULL, sinking=SINKING), "static", True),
        ({"ge_build": "static"}, attrs.evolve(FULL, sinking=SINKING), "dynamic", False),
        ({"path": 4}, attrs.evolve(FULL, sinking=SINKING), 3, False),
        ({"path": 4}, FULL, None, False),
        ({"path": 4}, attrs.evolve(FULL, sinking=attrs.evolve(SINKING, path=None)), None, False),
    ],
)
def test_an_expectation_holds_or_does_not(expect: dict[str, Any], report: Report, got: Any, held: bool) -> None:
    found = one(report, **expect)
    assert (found.got, found.held) == (got, held)
    assert held or found.evidence


@pytest.mark.parametrize("name", ["speedup", "recompiles", "events"])
def test_what_is_just_as_expected_holds(name: str) -> None:
    assert expectations._judged(name, 2.0, expectations.Found(got=2.0)).held


def test_a_miss_names_the_guard_the_call_and_the_remedy() -> None:
    found = one(attrs.evolve(INDUCTOR, stages=FULL.stages), recompiles=0)
    (sentence,) = found.evidence
    assert sentence == (
        "0/1 in call 1 of model.sequence (x.0: 6): tensor 'x' size mismatch at index 0. expected 4, actual 6; "
        "avoid it: shapes=dynamic, or shapes.mark_dynamic: {x: [0]}: a symbol from the first call on"
    )
    assert expectations.missed([found]) == f"expect.recompiles wanted 0, got 1 ({sentence})."
    assert expectations.missed([attrs.evolve(found, held=True)]) is None


def test_a_miss_of_ge_names_the_node_its_line_the_step_and_the_fix() -> None:
    found = one(attrs.evolve(FULL, sinking=SINKING), ge_build="static")
    assert found.evidence == (
        "derived: row 5",
        "fia (npu.fia): its tiling depends on actual_seq_lengths at m.py:12",
        "S1 configuration: tiling=host; fix: tiling=sink",
    )


def test_captures_are_counted_over_all_calls_where_calls_are_declared() -> None:
    calls = SequenceFacts(
        calls=(CallFacts(call="x.0: 6", recompiles=1, passed=True, max_abs_err=0.0),), graphs=2, captures=2
    )
    report = attrs.evolve(FULL, stages=attrs.evolve(FULL.stages, sequence=calls))
    assert one(report, captures=2).held
    assert one(
        attrs.evolve(FULL, records=(*FULL.records, attrs.evolve(FULL.records[0], stage="capture"))), captures=1
    ).held


def test_what_was_not_reached_does_not_hold_and_says_so() -> None:
    declared = attrs.evolve(FULL, experiment={**FULL.experiment, "model": {"name": "add", "sequence": [{"x.0": 6}]}})
    found = one(declared, recompiles=0)
    assert (found.got, found.held, found.evidence) == (None, False, ("the stage sequence was not reached",))
    nothing = attrs.evolve(
        FULL, stages=attrs.evolve(FULL.stages, replay=None, benchmark=None), numerics=None, graphs=()
    )
    for name, wanted in (
        ("recompiles", 0),
        ("bitwise", True),
        ("speedup", 1.0),
        ("fx_graph", "static"),
        ("streams", 2),
    ):
        found = one(nothing, **{name: wanted})
        assert (found.got, found.held) == (None, False), name


def test_evidence_is_cut_and_counted() -> None:
    many = attrs.evolve(INDUCTOR, stages=FULL.stages, recompiles=INDUCTOR.recompiles * 9)
    assert one(many, recompiles=0).evidence[-1] == "and 4 more"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["expect.speedup=1.5", "pipeline=check"], "expect.speedup cannot be judged: it needs the stage benchmark"),
        (["expect.bitwise=true", "pipeline=compile_only"], "it needs the stage replay, and pipeline=compile_only runs"),
        (["expect.captures=1", "mode=eager"], "mode=eager compiles nothing"),
        (["expect.ge_build=static"], "GE builds a graph in mode=max-autotune only, not in mode=reduce-overhead"),
        (["expect.path=3", "mode=eager"], "expect.path cannot be judged"),
    ],
)
def test_what_a_run_cannot_judge_is_refused_before_it(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Job.of(compose(["model=add", *overrides]))
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


def test_eager_can_be_asked_for_bits_and_recompilations() -> None:
    Job.of(compose(["model=add", "mode=eager", "expect.bitwise=true", "expect.recompiles=0"]))


@pytest.mark.parametrize(
    ("overrides", "stages"),
    [
        (["pipeline=check"], ["compile", "capture", "replay", "sequence"]),
        (["pipeline=bench"], ["compile", "capture", "replay", "benchmark", "sequence"]),
        (["pipeline=compile_only"], ["compile"]),
        (["pipeline=check", "model.sequence=[]"], ["compile", "capture", "replay"]),
    ],
)
def test_declared_calls_run_last_and_where_results_are_compared(overrides: list[str], stages: list[str]) -> None:
    job = Job.of(compose(["model=add", "model.sequence=[{x.0:6,y.0:6}]", *overrides]))
    assert [stage.name for stage in job.order] == stages


def test_every_expectation_can_be_judged_and_is_documented() -> None:
    names = {field.name for field in attrs.fields(Expect)}
    assert names == set(expectations.JUDGED_BY) == set(expectations._FINDERS)
    document = (Path(__file__).parents[2] / "docs" / "calls.md").read_text(encoding="utf-8")
    assert names <= set(re.findall(r"`(\w+)`", document.partition("## `expect:`")[2]))
