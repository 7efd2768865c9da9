"""Facts of stages become one report: which stage speaks last, what is added up, whose fault a failure is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from report.report_examples import FULL

from airflow_free.outcome import Outcome
from airflow_free.stage import Finished
from airflow_free.store import Record, Store
from npucompose.compose.tree import compose
from npucompose.experiment import assemble
from npucompose.experiment.assemble import (
    _all_of,
    _environment,
    _error,
    _gathered,
    _latest,
    _memory,
    _numerics,
    _sinking,
    _stages,
    _status,
    _streams,
    assembled,
)
from npucompose.experiment.job import Job
from npucompose.experiment.stages.facts import stream_facts, timelines
from npucompose.npu.static_graph.records import Failure, SinkingFacts
from npucompose.results.measured import MemoryFacts, Numerics
from npucompose.results.record import (
    BenchmarkFacts,
    CompileTimes,
    Environment,
    Expectation,
    GraphFacts,
    Recompile,
    Stages,
)
from npucompose.results.streams import StreamFacts
from npucompose.table.structure import facts_of

PASSED = {"reference": "eager", "max_abs_err": 0.0, "bitwise": True, "passed": True, "compared": 1, "note": "first"}
PLAN = StreamFacts(streams=3, events=2, nodes={"mm": "default", "add": "s1"}, predicted_us=1500.0, serial_us=2000.0)


# Sinking.


def test_what_the_stage_that_failed_knows_of_sinking_comes_before_what_was_known() -> None:
    earlier, failed = SinkingFacts(path=4), SinkingFacts(failure=Failure(graph="graph_1", what="it was refused"))
    facts = {"compile": {"sinking": facts_of(earlier)}}
    outcome = Outcome(status="failed", facts={"sinking": facts_of(failed)})
    assert _sinking(facts, None) == earlier == _sinking(facts, Outcome(status="failed"))
    assert _sinking(facts, outcome) == failed == _sinking({}, outcome)
    assert _sinking({}, None) is None


# Streams.


def planned(
    plan: StreamFacts = PLAN, *, graphs: int = 1, stream_times: Any = None, **recordings: list[dict[str, Any]]
) -> StreamFacts | None:
    facts: dict[str, Any] = {stage: {"recordings": found} for stage, found in recordings.items()}
    facts["compile"] = {**facts.get("compile", {}), "streams": facts_of(plan), "graphs": [{}] * graphs}
    if stream_times is not None:
        facts.setdefault("benchmark", {})["stream_times"] = stream_times
    return _streams(facts)


def recording(streams: int = 2, threads: int = 2, why: str = "", trial: Any = None) -> dict[str, Any]:
    return {"streams": streams, "threads": threads, "why_threads": why, "trial": trial}


def test_without_a_plan_there_are_no_streams_and_without_recordings_it_is_as_it_was_made() -> None:
    assert _streams({}) is None
    assert _streams({"compile": {"streams": None}}) is None
    assert planned() == PLAN
    assert planned(capture=[recording(streams=1, threads=9)]) == PLAN


def test_the_threads_are_the_most_of_the_recordings_with_each_reason_once() -> None:
    found = planned(capture=[recording(threads=1, why="a"), recording(threads=3), recording(threads=1, why="a"),
                             recording(threads=1, why="b")])  # fmt: skip
    assert found == attrs.evolve(PLAN, threads=3, why_threads="a; b")


def test_the_recordings_of_the_last_process_count() -> None:
    one, two, three = ([recording(threads=n)] for n in (1, 2, 3))
    assert planned(compile=one, capture=two, benchmark=three) == attrs.evolve(PLAN, threads=3)
    assert planned(compile=one, capture=two, benchmark=[]) == attrs.evolve(PLAN, threads=2)
    assert planned(compile=one) == attrs.evolve(PLAN, threads=1)


def test_times_of_all_graphs_are_added_and_held_against_what_was_predicted() -> None:
    times = {"g0": {"plan_us": 400.0, "serial_us": 700.0}, "g1": {"plan_us": 600.0, "serial_us": 800.0}}
    measured = attrs.evolve(PLAN, measured_us=1000.0, measured_serial_us=1500.0)
    assert planned(graphs=2, stream_times=times) == attrs.evolve(measured, prediction_error=0.5)
    assert planned(graphs=3, stream_times=times) == measured  # not all were measured
    short = {"g0": {"plan_us": 999.0, "serial_us": 1500.0}}
    assert planned(stream_times=short) == attrs.evolve(PLAN, measured_us=999.0, measured_serial_us=1500.0)
    unpredicted = attrs.evolve(PLAN, predicted_us=None)
    assert planned(unpredicted, graphs=2, stream_times=times) == attrs.evolve(measured, predicted_us=None)
    assert planned(stream_times={}) == PLAN


KEPT = {"applied": True, "turns": 4, "plan_us": 1.0, "plan_p90_us": 2.0, "one_stream_us": 3.0, "one_stream_p90_us": 4.0}
LEFT = {**KEPT, "applied": False, "why": "slower"}


def test_a_plan_that_no_recording_keeps_leaves_one_stream() -> None:
    found = planned(capture=[recording(streams=1, trial=LEFT)])
    assert found is not None
    assert (found.applied, found.streams, found.events) == (False, 1, 0)
    assert found.nodes == {"mm": "default", "add": "default"}
    assert (found.threads, len(found.trials)) == (None, 1)
    assert found.why.endswith("slower, predicted 1.50 ms against 2.00 ms")


def test_a_plan_that_one_recording_keeps_or_that_was_not_tried_everywhere_stays() -> None:
    both = planned(capture=[recording(trial=KEPT), recording(streams=1, trial=LEFT, threads=5)])
    assert both is not None
    assert (both.applied, both.streams, both.threads, len(both.trials)) == (True, 3, 5, 2)
    some = planned(capture=[recording(streams=1, trial=LEFT), recording()])
    assert some is not None
    assert (some.applied, some.streams, some.nodes, some.threads) == (False, 3, PLAN.nodes, None)


def prediction(cost: str = "measured", times: float = 1.0) -> Any:
    return SimpleNamespace(
        device="d", cost=cost, plan_us=10.0 * times, serial_us=20.0 * times, critical_us=5.0 * times,
        busy={"s1": 0.5}, peak_bytes=int(100 * times), serial_peak_bytes=int(80 * times),
        spread=0.25, intra_op_threads=2, profile=None,
    )  # fmt: skip


def graph(name: str, nodes: dict[str, str], decision: Any = None, events: int = 1) -> Any:
    plan = SimpleNamespace(nodes=nodes, events=[1] * events)
    return SimpleNamespace(id=name, plan=plan, decision=decision, judged=decision)


def decision(prediction: Any = None, *, applied: bool = True, validated: bool = True, **timelines: Any) -> Any:
    drawn = {"timeline": None, "one_stream": None, **timelines}
    return SimpleNamespace(applied=applied, validated=validated, why="it pays", prediction=prediction, **drawn)


def test_the_plan_of_one_graph_keeps_its_names_and_its_prediction() -> None:
    assert stream_facts(()) is None
    assert stream_facts((graph("g", {}),)) is None
    one = graph("g0", {"mm": "default", "add": "s1"}, decision(prediction()), events=3)
    assert stream_facts((one, graph("g1", {}))) == facts_of(
        StreamFacts(
            streams=2, events=3, nodes={"mm": "default", "add": "s1"}, validated=True, applied=True, why="it pays",
            device="d", cost="measured", predicted_us=10.0, serial_us=20.0, critical_us=5.0, busy={"s1": 0.5},
            peak_bytes=100, serial_peak_bytes=80, gain_interval=(0.375, 0.6), intra_op_threads=2,
        )
    )  # fmt: skip


def test_plans_of_several_graphs_are_one_with_names_told_apart() -> None:
    several = (
        graph("g0", {"mm": "default"}, decision(prediction())),
        graph(
            "g1", {"mm": "s1", "add": "s2"}, decision(prediction(times=2.0), validated=False, applied=False), events=2
        ),
    )  # fmt: skip
    assert stream_facts(several) == facts_of(
        StreamFacts(
            streams=3, events=3, nodes={"g0.mm": "default", "g1.mm": "s1", "g1.add": "s2"}, validated=False,
            applied=False, why="g0: it pays; g1: it pays", device="d", cost="measured", predicted_us=30.0,
            serial_us=60.0, critical_us=15.0, busy={}, peak_bytes=200, serial_peak_bytes=160,
            gain_interval=(0.375, 0.6), intra_op_threads=2,
        )
    )  # fmt: skip


@pytest.mark.parametrize("found", [None, decision(), decision(prediction("none"))])
def test_without_a_prediction_nothing_is_predicted(found: Any) -> None:
    assert stream_facts((graph("g", {"mm": "s1"}, found),)) == facts_of(
        StreamFacts(
            streams=1, events=1, nodes={"mm": "s1"}, validated=found is not None, applied=True,
            why="it pays" if found else "",
        )
    )  # fmt: skip


def test_timelines_are_those_of_graphs_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.experiment.stages.facts.facts_of", lambda line: f"facts of {line}")
    both = decision(timeline="t", one_stream="o")
    graphs = (graph("a", {}, both), graph("b", {}, decision(timeline="u")), graph("c", {}, decision()), graph("d", {}))
    assert timelines(graphs) == {
        "timelines": {"a": "facts of t", "b": "facts of u"},
        "one_stream_timelines": {"a": "facts of o"},
    }


# Who speaks last, and what is added up.


def test_the_last_stage_that_knows_something_is_heard() -> None:
    facts = {"compile": {"graphs": [1]}, "replay": {"graphs": [2]}, "sequence": {"graphs": None}, "capture": {"x": 1}}
    assert _latest(facts, "graphs") == [2]
    assert _latest({"compile": {"graphs": [1]}}, "graphs") == [1]
    assert (_latest(facts, "x"), _latest({}, "graphs")) == (None, None)
    assert _gathered({"sequence": {"r": [3]}, "compile": {"r": [1, 2]}, "capture": {"r": [9]}}, "r") == [1, 2, 3]
    assert _all_of(Recompile, None, "x") == ()
    assert _all_of(Recompile, [{"compile_id": "0/1", "reason": "r"}], "x") == (Recompile(compile_id="0/1", reason="r"),)


def test_one_comparison_stands_alone_and_two_are_one_verdict_with_the_last_one_s_note() -> None:
    assert _numerics({}) is None
    assert _numerics({"compile": {"numerics": None}}) is None
    alone = _numerics({"replay": {"numerics": PASSED}})
    assert alone == Numerics(**PASSED)
    failed = {**PASSED, "passed": False, "problems": ["p"], "note": "last", "compared": 2}
    both = _numerics({"replay": {"numerics": PASSED}, "sequence": {"numerics": failed}})
    assert both is not None
    assert (both.passed, both.note, both.compared, both.problems) == (False, "last", 3, ("sequence, p",))


def test_each_stage_s_facts_have_their_place() -> None:
    times = {"total_s": 1.0}
    facts = {
        "compile": {"times": times},
        "capture": {"capture": {"seconds": 1.0}},
        "replay": {"replay": {"first_us": 2.0}},
        "benchmark": {"benchmark": facts_of(FULL.stages.benchmark)},
        "ablation": {"ablation": {"variants": []}},
        "modes": {"modes": {"fastest": None, "won": False, "modes": []}},
        "sequence": {"sequence": {"calls": [], "graphs": 1, "captures": 2}},
    }
    found = _stages(facts)
    assert found.compile == CompileTimes(total_s=1.0)
    assert isinstance(found.benchmark, BenchmarkFacts)
    assert (found.capture and found.capture.seconds, found.replay and found.replay.first_us) == (1.0, 2.0)
    assert (found.ablation and found.ablation.variants, found.modes and found.modes.won) == ((), False)
    assert found.sequence
    assert found.sequence.captures == 2
    assert _stages({}) == Stages()


def test_memory_is_the_pool_of_the_recording_and_the_peak_of_what_measured() -> None:
    assert _memory({"compile": {}}) is None
    capture = facts_of(MemoryFacts(pool_bytes=5, peak_rss_bytes=1))
    assert _memory({"capture": {"memory": capture}}) == MemoryFacts(pool_bytes=5, peak_rss_bytes=1)
    assert _memory(
        {"benchmark": {"memory": facts_of(MemoryFacts(peak_rss_bytes=9))}, "capture": {"memory": capture}}
    ) == (MemoryFacts(pool_bytes=5, peak_rss_bytes=9))


def finished(stage: str, key: str, reused: bool = False, **facts: Any) -> Finished:
    return Finished(stage=stage, key=key * 64, facts=facts, reused=reused, seconds=1.5)


def test_the_environment_is_that_of_the_last_record_that_is_there(tmp_path: Any) -> None:
    store = Store(tmp_path)
    for stage, key, platform in (("compile", "a", "one"), ("capture", "b", "two")):
        environment = facts_of(Environment(platform=platform))
        store.write(Record(stage=stage, key=key * 64, facts={}, seconds=1.0, environment=environment))
    stages = [finished("compile", "a"), finished("capture", "b"), finished("replay", "c")]
    found = _environment(stages, store)
    assert found is not None
    assert found.platform == "two"
    assert _environment([], store) is None


# The status, and the words of an error.

MISSED = Expectation(name="bitwise", wanted=True, got=False, held=False, evidence=("why",))
HELD = attrs.evolve(MISSED, got=True, held=True)
WRONG = Numerics(reference="eager", max_abs_err=1.0, bitwise=False, passed=False, problems=("a", "b"))


@pytest.mark.parametrize(
    ("outcome", "changes", "status", "error"),
    [
        (None, {}, "ok", None),
        (Outcome(status="done"), {}, "ok", None),
        (None, {"expectations": (HELD, MISSED)}, "expect_failed", "expect.bitwise wanted True, got False (why)."),
        (None, {"expectations": (HELD,)}, "ok", None),
        (None, {"numerics": WRONG, "expectations": (MISSED,)}, "numerics_failed",
         "the comparison with eager failed: a; and 1 more, in report.json"),
        (Outcome(status="done"), {"numerics": attrs.evolve(WRONG, cause="model", problems=("a",))}, "numerics_failed",
         "a. Nothing can be compared with it."),
        (None, {"numerics": attrs.evolve(WRONG, cause="passes")}, "numerics_failed",
         "the passes changed the results: a; and 1 more, in report.json"),
        (Outcome(status="crashed", error="it died"), {"numerics": WRONG}, "crashed", "it died"),
        (Outcome(status="failed", error="f"), {}, "failed", "f"),
        (Outcome(status="timeout", error="t"), {}, "timeout", "t"),
        (Outcome(status="memory_limit", error="m"), {}, "memory_limit", "m"),
    ],
)  # fmt: skip
def test_a_report_s_status_and_error(outcome: Outcome | None, changes: dict[str, Any], status: str, error: Any) -> None:
    report = attrs.evolve(FULL, **changes)
    assert (_status(outcome, report), _error(outcome, report)) == (status, error)


def test_a_failure_of_tracing_is_not_npucompose_s() -> None:
    words = _error(None, attrs.evolve(FULL, numerics=attrs.evolve(WRONG, cause="tracing")))
    assert words is not None
    assert "torch.compile(backend='aot_eager') differs from eager too; a; and 1 more, in report.json" in words


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_composed(compose(["model=add", "pipeline=check", "expect.bitwise=true"]))


def test_a_report_holds_the_run_and_says_when_nothing_was_run(job: Job, tmp_path: Any) -> None:
    graphs = [facts_of(GraphFacts(id="g", fingerprint="f", nodes_before=2, nodes_after=1, fx="static"))]
    stages = [
        finished("compile", "a", True, graphs=graphs, passes=[], times={"total_s": 1.0}),
        finished("capture", "b", True, capture=None, memory=facts_of(MemoryFacts(pool_bytes=3))),
        finished("replay", "c", True, numerics=PASSED, recompiles=[{"compile_id": "0/1", "reason": "r"}]),
    ]
    store = Store(tmp_path)

    def made(some: list[Finished], outcome: Outcome | None = None) -> Any:
        return assembled(job.checked, job.ingredients, job.order, some, store, outcome)

    whole = made(stages)
    assert (whole.key, whole.status, whole.error, whole.reused) == (job.key, "ok", None, True)
    assert (whole.last_lines, whole.log_cut_bytes, whole.rejected) == ((), 0, ())
    assert [one.id for one in whole.graphs] == ["g"]
    assert whole.recompiles == (Recompile(compile_id="0/1", reason="r"),)
    assert [(one.stage, one.key[:1], one.reused, one.seconds) for one in whole.records] == [
        ("compile", "a", True, 1.5), ("capture", "b", True, 1.5), ("replay", "c", True, 1.5),
    ]  # fmt: skip
    assert [(one.name, one.held) for one in whole.expectations] == [("bitwise", True)]
    assert (whole.memory, whole.experiment) == (MemoryFacts(pool_bytes=3), job.ingredients.values)
    assert whole.provenance == job.checked.provenance
    assert not made(stages[:2]).reused
    assert made(stages[:2]).status == "expect_failed"
    assert not made([attrs.evolve(stages[0], reused=False), *stages[1:]]).reused
    outcome = Outcome(status="failed", error="e", last_lines=("l",), log_cut_bytes=4, facts={"rejected": ["r\x1b"]})
    failed = made(stages[:1], outcome)
    assert (failed.status, failed.error, failed.last_lines) == ("failed", "e", ("l",))
    assert (failed.log_cut_bytes, failed.rejected) == (4, (r"r\x1b",))


def test_what_an_npu_refuses_is_an_option_without_effect(
    job: Job, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(assemble, "refused_on_npu", lambda *what: asked.append(what) or ())
    refused = [{"node": "n", "operator": "o", "reason": "r", "source": "s"}]
    graphs = [{"id": "g", "fingerprint": "f", "nodes_before": 2, "nodes_after": 1, "fx": "static",
               "npu_refuses": refused}] * 2  # fmt: skip
    report = assembled(
        job.checked, job.ingredients, job.order, [finished("compile", "a", graphs=graphs)], Store(tmp_path), None
    )
    ((target, told),) = asked
    assert (target, len(told)) == ("cpu", 2)
    assert report.effective == job.checked.effective


@pytest.mark.parametrize(
    ("winners", "why"),
    [
        (("linear_8x4x2",), "no graph of this run has such a part; it has linear_8x4x2"),
        (("a", "b", "c", "d", "e"), "no graph of this run has such a part; it has a, b, c, d and 1 more"),
        ((), "no graph of this run has such a part; it has none that can be chosen"),
    ],
)
def test_a_kernel_pinned_for_nothing_is_an_option_without_effect(winners: Any, why: str, tmp_path: Any) -> None:
    job = Job.from_composed(compose(["model=add", "target.kernels={linear_8x4x2: mkl, linear_9x9x9: onednn}"]))
    found = [{"key": key, "winner": "mkl", "by": "pinned"} for key in winners]
    graph = {"id": "g", "fingerprint": "f", "nodes_before": 2, "nodes_after": 1, "fx": "static", "winners": found}
    store = Store(tmp_path)

    def told(*stages: Finished) -> list[Any]:
        report = assembled(job.checked, job.ingredients, job.order, stages, store, None)
        return [one for one in report.effective if one.option.startswith("target.kernels")]

    idle = told(finished("compile", "a", graphs=[graph]))
    assert [(one.option, one.requested, one.effective, one.why) for one in idle][-1] == (
        "target.kernels.linear_9x9x9", "onednn", None, why,
    )  # fmt: skip
    assert len(idle) == (1 if winners == ("linear_8x4x2",) else 2)
    assert told() == [], "nothing was compiled"


@pytest.mark.parametrize(
    ("counted", "compiled", "why"),
    [
        ({"taken": 2}, True, None),
        ({"taken": 2, "uncompiled": 1}, False, "TorchAir ran 1 graph eagerly, and run.log says why"),
        (
            {"taken": 2, "eager_calls": 3},
            False,
            "3 calls ran eagerly: TorchAir captures a graph compiler.debug.aclgraph.static_capture_size_limit=64 times "
            "at most, drops its captures where one more is asked for, and runs the graph eagerly from then on",
        ),
        (
            {"taken": 2, "calls_beyond": 1},
            False,
            "1 call ran eagerly: torch.compile had reached torch._dynamo.config.recompile_limit, and with "
            "compile.fullgraph=false it then runs the model itself",
        ),
        ({}, None, None),
    ],
)
def test_what_ran_eagerly_is_said_of_the_mode_and_makes_the_run_uncompiled(
    counted: dict[str, int], compiled: bool | None, why: str | None, tmp_path: Any
) -> None:
    job = Job.from_composed(compose(["target=npu_offline", "mode=reduce-overhead", "model=add"]))
    npu = {"package": "torchair", "version": "2.13.0", "platform": "simulated", "fx_graphs": 2, **counted}
    stages = [finished("compile", "a", graphs=[], npu=npu)]
    report = assembled(job.checked, job.ingredients, job.order, stages, Store(tmp_path), None)
    assert report.compiled is compiled
    assert report.status == ("uncompiled" if compiled is False else "ok")
    assert [one.why for one in report.effective if one.option == "mode.name"] == ([why] if why else [])


def test_a_way_that_is_known_before_the_run_is_not_said_again_after_it(tmp_path: Any) -> None:
    overrides = ["target=npu_offline", "mode=reduce-overhead", "model=add", "compiler.debug.run_eagerly=true"]
    job = Job.from_composed(compose(overrides))
    npu = {"package": "torchair", "version": "2.13.0", "platform": "simulated", "fx_graphs": 1, "taken": 1}
    stages = [finished("compile", "a", graphs=[], npu={**npu, "eager_calls": 4})]
    report = assembled(job.checked, job.ingredients, job.order, stages, Store(tmp_path), None)
    (one,) = report.effective
    assert one.why.startswith("compiler.debug.run_eagerly=true: TorchAir compiles nothing")
