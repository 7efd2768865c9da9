"""expect: judged with evidence, and refused before the run where the run could not judge it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from report.report_examples import CUT_RUN, FULL, INDUCTOR, TRACED

from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment import expectations
from npucompose.experiment.job import Job
from npucompose.npu.capture.records import CaptureBudgetFacts, CaptureFinding, CaptureLegality, CaptureRange
from npucompose.npu.static_graph.records import Blame, DiagnosisStep, SinkingFacts, SinkingVerdict
from npucompose.results.effective import Effective
from npucompose.results.graphs import RuleFacts
from npucompose.results.measured import PaddingCheck, PaddingFacts
from npucompose.results.record import CallFacts, Expectation, Report, SequenceFacts
from npucompose.schema.experiment import Expect

SINKING = SinkingFacts.from_verdicts(
    fx_graph=SinkingVerdict(value="dynamic", certainty="proven", evidence=("SymInt s77",)),
    ge_graph=SinkingVerdict(value="static", certainty="proven", evidence=("Data query [2, 8, 1, 64]",)),
    ge_build=SinkingVerdict(value="dynamic", certainty="derived", evidence=("rule 5",)),
    path=3,
    blame=(Blame(node="fia", operator="npu.fia", reason="its tiling depends on actual_seq_lengths", source="m.py:12"),),
    steps=(
        DiagnosisStep(id="S1", title="configuration", status="problem", evidence=("tiling=host",), fix="tiling=sink"),
        DiagnosisStep(id="S2", title="placeholders", status="ok"),
    ),
)

ITEM = CaptureFinding(
    rule="host_read", code=107027, what="x.item()", source="m.py:9", fix="torch.where", standing="proven"
)
NOT_LEGAL = CaptureLegality(verdict="does not capture", certainty="proven", evidence=("at m.py:9",), findings=(ITEM,))
REFUSED = attrs.evolve(FULL, capture=NOT_LEGAL)
CAPTURED = attrs.evolve(FULL, capture=CaptureLegality(verdict="captures", certainty="proven", evidence=("3 tasks",)))
UNDECIDED = attrs.evolve(FULL, capture=CaptureLegality(verdict="unknown", certainty="unknown", evidence=("it raised",)))


def one(report: Report, **expect: Any) -> Expectation:
    (found,) = expectations.judged(Expect(**expect), report)
    return found


SOME = CaptureRange(low=8, high=12)
BUDGET = CaptureBudgetFacts(
    soc="Ascend910B1", sizes_of="x.0", sizes=(), graphs=1, kernels=SOME, streams=SOME, tasks=SOME, events=SOME,
    nbytes=CaptureRange(low=2 << 20, high=3 << 20), available=SOME, certain=(), possible=(8,), recorded_bytes=None,
    recorded_apart_bytes=None, why_not_recorded=None, unknown=("workspaces",),
)  # fmt: skip


def with_budget(budget: CaptureBudgetFacts) -> Report:
    assert CAPTURED.capture is not None
    return attrs.evolve(CAPTURED, capture=attrs.evolve(CAPTURED.capture, budget=budget))


BUDGETED = with_budget(BUDGET)
RECORDED = with_budget(attrs.evolve(BUDGET, recorded_bytes=1024))
"""On a target whose own recordings are planned."""
UNTRACED = with_budget(attrs.evolve(BUDGET, nbytes=None))


def padded(passed: bool | None) -> Report:
    check = PaddingCheck(way="eager", garbage="nan", changed=() if passed else ("x[0]",))
    facts = None if passed is None else PaddingFacts(rows=8, real=4, inputs=("x",), checks=(check,))
    return attrs.evolve(FULL, stages=attrs.evolve(FULL.stages, padding=facts))


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
        ({"capture_legal": True}, CAPTURED, True, True),
        ({"capture_legal": True}, REFUSED, False, False),
        ({"capture_legal": False}, REFUSED, False, True),
        ({"capture_legal": False}, FULL, None, False),
        ({"capture_legal": True}, UNDECIDED, None, False),
        ({"capture_streams_max": 12}, BUDGETED, 12, True),
        ({"capture_streams_max": 11}, BUDGETED, 12, False),
        ({"capture_streams_max": 11}, CAPTURED, None, False),
        ({"capture_bytes_max": "3MiB"}, BUDGETED, 3 << 20, True),
        ({"capture_bytes_max": "2.9MiB"}, BUDGETED, 3 << 20, False),
        ({"capture_bytes_max": "1KiB"}, RECORDED, 1024, True),
        ({"capture_bytes_max": "1023B"}, RECORDED, 1024, False),
        ({"capture_bytes_max": "1TiB"}, UNTRACED, None, False),
        ({"capture_bytes_max": "1TiB"}, CAPTURED, None, False),
        ({"padding_ignored": True}, padded(True), True, True),
        ({"padding_ignored": True}, padded(False), False, False),
        ({"padding_ignored": True}, padded(None), None, False),
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
    assert expectations._judged(name, 2.0, expectations.Finding(got=2.0)).held


def test_padding_that_is_read_or_not_is_told_in_its_own_words() -> None:
    assert one(padded(True), padding_ignored=True).evidence == ("padding of 4 of 8 rows is not read (eager; nan)",)
    assert one(padded(False), padding_ignored=True).evidence == ("padding is read: eager, nan: x[0]",)
    assert one(padded(None), padding_ignored=True).evidence == ("the stage padding was not reached",)


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
        "derived: rule 5",
        "fia (npu.fia): its tiling depends on actual_seq_lengths at m.py:12",
        "S1 configuration: tiling=host; fix: tiling=sink",
    )


def test_a_miss_of_a_capture_names_rule_code_line_and_fix() -> None:
    found = one(REFUSED, capture_legal=True)
    assert found.evidence == ("at m.py:9", "host_read (107027) at m.py:9; fix: torch.where")
    assert one(FULL, capture_legal=True).evidence == ("the stage legality was not reached",)


def test_a_miss_of_a_budget_says_the_interval_and_what_is_unknown() -> None:
    assert one(BUDGETED, capture_streams_max=1).evidence == ("8 to 12 for 0 sizes", "workspaces")
    assert one(BUDGETED, capture_bytes_max="1B").evidence == (
        "2,097,152 to 3,145,728 bytes of an NPU's pool",
        "workspaces",
    )
    unbounded = with_budget(attrs.evolve(BUDGET, streams=CaptureRange(low=8, high=None)))
    assert (one(unbounded, capture_streams_max=99).held, one(FULL, capture_streams_max=99).held) == (False, False)


def test_a_bound_that_is_no_size_is_refused() -> None:
    for given in ("many", "1.5x", ""):
        with pytest.raises(ValueError, match="'capture_bytes_max' must be a size such as 512MiB"):
            Expect(capture_bytes_max=given)


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
        (["expect.capture_legal=true", "pipeline=check"], "it needs the stage legality, and pipeline=check runs"),
        (["pipeline=legality", "mode=max-autotune"], "the stage legality: mode=max-autotune captures nothing"),
        (["expect.path=3", "mode=eager"], "expect.path cannot be judged"),
    ],
)
def test_what_a_run_cannot_judge_is_refused_before_it(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Job.from_composed(compose(["model=add", *overrides]))
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("overrides", "compiled"),
    [
        (["experiment=decode"], True),
        (["experiment=decode", "expect.compiled=null"], None),
        (["experiment=decode", "expect.compiled=false"], False),
        (["model=add", "expect.bitwise=true"], None),
        (["model=add"], None),
        (["model=add", "pipeline=padding", "mode=eager"], None),
    ],
)
def test_a_file_that_expects_something_expects_that_graphs_are_compiled(
    overrides: list[str], compiled: bool | None
) -> None:
    job = Job.from_composed(compose(overrides))
    assert job.checked.experiment.expect.compiled is compiled
    assert job.ingredients.values["expect"]["compiled"] is compiled
    implied = job.checked.provenance["expect.compiled"] == expectations.BY_IMPLICATION
    assert implied is (overrides == ["experiment=decode"])


@pytest.mark.parametrize("compiled", [True, False, None])
def test_whether_a_run_compiled_is_judged_with_the_reason(compiled: bool | None) -> None:
    why = Effective(option="mode.name", requested="max-autotune", effective="eager", why="nothing is compiled")
    other = Effective(option="seed", requested=1, effective=0, why="another reason")
    report = attrs.evolve(FULL, compiled=compiled, effective=() if compiled else (other, why))
    found = one(report, compiled=True)
    assert (found.got, found.held) == (compiled, compiled is True)
    assert found.evidence == {True: (), False: (why.why,), None: (expectations.NO_VERDICT,)}[compiled]


def test_eager_can_be_asked_for_bits_and_recompilations() -> None:
    Job.from_composed(compose(["model=add", "mode=eager", "expect.bitwise=true", "expect.recompiles=0"]))


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
    job = Job.from_composed(compose(["model=add", "model.sequence=[{x.0:6,y.0:6}]", *overrides]))
    assert [stage.name for stage in job.order] == stages


def test_every_expectation_can_be_judged_and_is_documented() -> None:
    names = {field.name for field in attrs.fields(Expect)}
    assert names == set(expectations.JUDGED_BY) == set(expectations._FINDERS)
    document = (Path(__file__).parents[2] / "docs" / "calls.md").read_text(encoding="utf-8")
    assert names <= set(re.findall(r"`(\w+)`", document.partition("## `expect:`")[2]))


def test_the_evidence_of_each_expectation() -> None:
    """What stands beside `got`, word for word."""
    none = attrs.evolve(FULL, streams=None, graphs=(), sinking=None, stages=attrs.evolve(FULL.stages, capture=None))
    captured = (*FULL.records, attrs.evolve(FULL.records[0], stage="capture"))
    table: list[tuple[dict[str, Any], Report, Any, tuple[str, ...]]] = [
        ({"fx_graph": "static"}, none, None, ("no graph was compiled",)),
        ({"fx_graph": "static"}, FULL, "static", ("no symbol in 0",)),
        ({"ge_graph": "static"}, none, None, ("no verdict: nothing was compiled",)),
        ({"path": 1}, none, None, ("no verdict: nothing was compiled",)),
        ({"path": 1}, attrs.evolve(FULL, sinking=attrs.evolve(SINKING, path=None)), None,
         ("no operator's tiling reads values, or that is unknown",)),
        ({"path": 3}, attrs.evolve(FULL, sinking=attrs.evolve(SINKING, steps=(), blame=())), 3,
         ("fx_graph: dynamic, ge_graph: static, ge_build: dynamic",)),
        ({"ge_build": "dynamic"},
         attrs.evolve(FULL, sinking=attrs.evolve(SINKING, steps=(), blame=(), evidence={}, certainty={})), "dynamic",
         ("unknown",)),
        ({"recompiles": 0}, FULL, 0, ()),
        ({"recompiles": 0}, none, 0, ()),
        ({"captures": 1}, none, None, ("the stage capture was not reached",)),
        ({"captures": 0}, attrs.evolve(none, records=captured), 0, ("this mode records nothing on this target",)),
        ({"captures": 1}, attrs.evolve(FULL, records=captured), 1, ("1 graph, kernel calls: 126",)),
        ({"segments": 1}, none, None, ("no graph was recorded",)),
        ({"streams": 1}, none, None, ("no graph was compiled",)),
        ({"streams": 2}, FULL, 2, ("default: 1 nodes, s1: 1 nodes",)),
        ({"streams": 1}, attrs.evolve(FULL, streams=None), 1, ("the pass stream_plan found nothing to plan",)),
        ({"streams": 1}, attrs.evolve(FULL, streams=None, passes=()), 1, ("passes holds no stream_plan",)),
        ({"bitwise": True}, attrs.evolve(FULL, numerics=None), None, ("the stage replay was not reached",)),
        ({"bitwise": True}, FULL, True, ("9 values compared",)),
        ({"bitwise": True}, INDUCTOR, False, ("max. absolute error 3.1e-06", "mode=max-autotune fuses")),
        ({"bitwise": True},
         attrs.evolve(INDUCTOR, numerics=attrs.evolve(INDUCTOR.numerics, problems=("p",), max_abs_err=None)), False,
         ("p",)),
        ({"speedup": 1.0}, attrs.evolve(FULL, stages=attrs.evolve(FULL.stages, benchmark=None)), None,
         ("the stage benchmark was not reached",)),
        ({"speedup": 1.0}, FULL, 1.914, ("p50 eager 990.1 us, replay 517.0 us, 2 samples",)),
        ({"rules": {"a": 1}}, FULL, {}, ("passes holds no adapt, or none of its rules was asked",)),
        ({"permutes": 0}, FULL, None, ("passes holds no cancel_moves",)),
    ]  # fmt: skip
    for expect, report, got, evidence in table:
        found = one(report, **expect)
        assert (found.got, found.evidence) == (got, evidence), (expect, evidence)


def test_bits_that_differ_elsewhere_than_in_a_fusing_compiler_blame_the_part() -> None:
    assert one(TRACED, bitwise=True).evidence == (
        "max. absolute error 1.79e-07",
        "replay exact; tracing changed 1.8e-07",
    )


def test_rules_are_counted_over_all_graphs_and_permutes_by_the_last_pass_of_each() -> None:
    def passes(*parts: dict[str, Any]) -> Report:
        found = tuple(attrs.evolve(FULL.passes[0], **part) for part in parts)
        return attrs.evolve(FULL, passes=found)

    def rule(name: str, matches: int) -> RuleFacts:
        return RuleFacts(rule=name, kind="replace", op="aten.add", matches=matches)

    counted = passes({"rules": (rule("a", 2), rule("b", 1))}, {"rules": (rule("a", 3),)})
    assert one(counted, rules={"a": 5, "b": 1}).held
    moves = [SimpleMoves(n) for n in (9, 1, 4)]
    last = passes(
        {"graph": "g", "moves": moves[0]}, {"graph": "g", "moves": moves[1]}, {"graph": "h", "moves": moves[2]}
    )
    assert one(last, permutes=5).held


class SimpleMoves:
    def __init__(self, after: int) -> None:
        self.permutes_after = after


@pytest.mark.parametrize("count", [5, 6])
def test_five_sentences_of_evidence_are_kept(count: int) -> None:
    found = expectations._judged("streams", 1, expectations.Finding(2, tuple("abcdef")[:count]))
    assert found.evidence == (*"abcde", *(["and 1 more"] if count == 6 else []))
    assert not found.held


def test_what_did_not_hold_is_one_paragraph() -> None:
    def miss(name: str, *evidence: str) -> Expectation:
        return Expectation(name=name, wanted=1, got=2, held=False, evidence=evidence)

    assert expectations.missed([]) is None
    assert expectations.missed([miss("a"), attrs.evolve(miss("b"), held=True), miss("c", "x", "y")]) == (
        "expect.a wanted 1, got 2; expect.c wanted 1, got 2 (x; y)."
    )


def test_a_count_may_be_less_and_a_speed_more_and_the_rest_is_equal() -> None:
    def held(name: str, wanted: Any, got: Any) -> bool:
        return expectations._judged(name, wanted, expectations.Finding(got)).held

    assert [held("recompiles", 2, got) for got in (1, 2, 3, None)] == [True, True, False, False]
    assert [held("speedup", 2.0, got) for got in (1.9, 2.0, 2.1, None)] == [False, True, True, False]
    assert [held("streams", 2, got) for got in (1, 2, 3, None)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("bitwise", "eager", None),
        ("recompiles", "eager", None),
        ("fx_graph", "eager", "mode=eager compiles nothing and is the baseline itself"),
        ("path", "max-autotune", None),
        ("path", "reduce-overhead", "GE builds a graph in mode=max-autotune only, not in mode=reduce-overhead"),
        ("fx_graph", "reduce-overhead", None),
    ],
)
def test_why_a_run_could_not_judge(name: str, mode: str, why: str | None) -> None:
    assert expectations._why_not(name, mode, "p", ["compile", "replay"]) == why
    assert expectations._why_not(name, mode, "p", []) is not None
