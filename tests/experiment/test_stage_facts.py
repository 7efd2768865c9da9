"""What each stage writes down, from sessions that compile nothing: sums, candidates, lists of passes, turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.errors import CompileError, ConfigError
from npucompose.experiment.stages import ablation, benchmark, facts, modes
from npucompose.experiment.stages.ablation import lists
from npucompose.experiment.stages.capture import CaptureStage, _named, _shared, _summed
from npucompose.experiment.stages.sequence import _as_after_the_first_call, _call_facts
from npucompose.measure.timing import Samples
from npucompose.results.graphs import GraphDrawing, NodeTable
from npucompose.results.measured import ALL, MemoryFacts, Numerics, Variant
from npucompose.results.record import CaptureFacts
from npucompose.schema.experiment import Profile
from npucompose.table.structure import facts_of

# capture


def test_what_recordings_say_is_added_up_or_unknown() -> None:
    two: list[Any] = [{"a": 1, "b": 2, "slabs": [(1, 10), (2, 5)]}, {"a": 3, "b": None, "slabs": [(2, 5), (3, 1)]}]
    assert (_summed(two, "a"), _summed(two, "b"), _summed(two, "c")) == (4, None, None)
    assert _summed([{"a": 0}], "a") == 0
    assert _shared(two) == 16
    assert _shared([*two, {"a": 1}]) is None
    named: list[Any] = [{"x": "native"}, {"x": "python"}, {"x": "native"}, {"x": None}, {}]
    assert _named(named, "x") == "native, python"
    assert _named(named, "y") is None


OF_MODEL = {"weights_bytes": 2 * 2 * 4, "buffers_bytes": 2 * 2 * 4 + 8}
"""Of a BatchNorm1d(2), of which one weight has two names."""


def session(recordings: list[Any], handle: Any = "handle", why: str = "", device: Any = None) -> Any:
    statistics = SimpleNamespace(if_any=lambda: None)
    module = torch.nn.BatchNorm1d(2)
    module.register_parameter("again", module.weight)
    return SimpleNamespace(
        compiled=None, detached=handle, why_attached=why, built=SimpleNamespace(module=module),
        materialised=SimpleNamespace(
            backend=SimpleNamespace(statistics=statistics, recordings=lambda: recordings)
        ),
        checked=SimpleNamespace(target=SimpleNamespace(device_memory=lambda: dict(device or {}))),
    )  # fmt: skip


def test_the_stage_capture_tells_of_all_recordings() -> None:
    one = {"seconds": 0.5, "kernels": 3, "executor": "native", "executor_reason": "", "pool_bytes": 10,
           "unplanned_bytes": 20, "live_bytes": 5, "slabs": [(1, 12)]}  # fmt: skip
    found: Any = CaptureStage().run(session([one, {**one, "executor_reason": "slow"}]), lambda done: None)
    assert found["recordings"] == [one, {**one, "executor_reason": "slow"}]
    assert found["capture"] == facts_of(
        CaptureFacts(seconds=1.0, captures=2, kernels=6, executor="native", why_executor="slow", detached=True)
    )
    assert found["memory"] == facts_of(
        MemoryFacts(**OF_MODEL, pool_bytes=20, shared_pool_bytes=12, unplanned_bytes=40, live_bytes=10)
    )
    attached: Any = CaptureStage().run(session([one], None, "it grows"), lambda done: None)
    assert (attached["capture"]["detached"], attached["capture"]["why_attached"]) == (False, "it grows")
    nothing = CaptureStage().run(session([]), lambda done: None)
    assert nothing == {"recordings": [], "capture": None, "memory": facts_of(MemoryFacts(**OF_MODEL))}


def test_the_memory_of_the_device_is_told_with_and_without_a_recording() -> None:
    device = {"device_peak_bytes": 7, "device_reserved_peak_bytes": 8, "device_total_bytes": 9}
    one = {"seconds": 0.5, "kernels": 3, "pool_bytes": 10, "unplanned_bytes": 20, "live_bytes": 5}
    for recordings in ([], [one]):
        found: Any = CaptureStage().run(session(recordings, device=device), lambda done: None)
        assert {name: found["memory"][name] for name in device} == device


# benchmark


def samples(**us: list[float]) -> dict[str, Samples]:
    return {name: Samples(us=values) for name, values in us.items()}


def test_the_candidate_is_the_fastest_way_that_there_is() -> None:
    found = benchmark._benchmark_facts(samples(eager=[8.0, 12.0], compiled=[4.0, 3.0], replay=[2.0, 6.0]))
    assert (found.candidate, found.samples_us, found.p50_us) == ("replay", (2.0, 6.0), 4.0)
    assert (found.p90_us, found.p99_us, found.mean_us) == (pytest.approx(5.6), pytest.approx(5.96), 4.0)
    assert set(found.baselines) == {"eager", "compiled"}
    assert (found.speedup, found.speedup_compiled) == ({"eager": 3.0}, {"eager": 3.0})
    compiled = benchmark._benchmark_facts(samples(eager=[8.0], compiled=[4.0]))
    assert (compiled.candidate, compiled.speedup, set(compiled.baselines)) == ("compiled", {"eager": 2.0}, {"eager"})
    eager = benchmark._benchmark_facts(samples(eager=[8.0]))
    assert (eager.candidate, eager.speedup, eager.speedup_compiled, eager.baselines) == ("eager", {}, {}, {})


class Live:
    """A session whose calls are written down."""

    def __init__(self, mode: str = "reduce-overhead", detached: Any = None, *, outside: bool = False) -> None:
        self.log: list[Any] = []
        self.experiment = SimpleNamespace(
            mode=SimpleNamespace(name=mode),
            benchmark=SimpleNamespace(warmup=1, min_calls=2, min_seconds=0.0, max_calls=3, profile=Profile()),
        )
        self.reference, self.compiled = self._call("eager"), self._call("compiled")
        self.detached = self._call("replay") if detached else None
        self.state = SimpleNamespace(outside=outside)
        self.checked = SimpleNamespace(target=SimpleNamespace(synchronize=lambda: self.log.append("|")), passes=())

    def _call(self, name: str) -> Any:
        return lambda *args, **kwargs: self.log.append((name, args, kwargs, torch.is_grad_enabled()))

    @property
    def steadiness(self) -> None:
        self.log.append("steadiness")

    def rewind(self) -> None:
        self.log.append("rewind")

    def inputs(self, at: int) -> str:
        return f"inputs {at}"

    def bind(self, inputs: Any) -> Any:
        return SimpleNamespace(args=(inputs,), kwargs={"k": 1})


@pytest.mark.parametrize(
    ("live", "names"),
    [
        (Live(), ["eager", "compiled"]),
        (Live(detached=True), ["eager", "compiled", "replay"]),
        (Live("eager"), ["eager"]),
    ],
)
def test_eager_and_what_was_made_of_the_model_are_timed_on_the_first_inputs(live: Any, names: list[str]) -> None:
    found = benchmark._candidates(live)
    assert list(found) == names
    for call in found.values():
        call()
    assert live.log == [(name, ("inputs 0",), {"k": 1}, True) for name in names]


def test_a_call_without_names_is_called_without_names() -> None:
    told: list[Any] = []
    benchmark.bound(lambda *a, **k: told.append((a, k)), SimpleNamespace(args=(1, 2), kwargs={}))()  # type: ignore[arg-type]
    names = {"x": 2}
    call = benchmark.bound(lambda *a, **k: told.append((a, k)), SimpleNamespace(args=(1,), kwargs=names))  # type: ignore[arg-type]
    names["x"] = 3  # the call is what it was when it was bound
    call()
    assert told == [((1, 2), {}), ((1,), {"x": 2})]


@pytest.mark.parametrize("outside", [False, True])
def test_times_are_taken_from_the_first_state_without_gradients_and_as_often_as_was_asked(outside: bool) -> None:
    live: Any = Live(outside=outside)
    found = benchmark.in_turns(live, {"a": live.compiled}, lambda done: live.log.append(done))
    assert len(found["a"].us) == 2
    again = ["rewind"] if outside else []
    call = [*again, "|", ("compiled", (), {}, False), "|"]
    assert live.log == ["steadiness", "rewind", *call * 3, 1.0]


# ablation and modes


def test_each_pass_is_left_out_once_and_no_list_is_tried_twice() -> None:
    assert lists(["a", "b", "c"]) == {
        ALL: ("a", "b", "c"), "without a": ("b", "c"), "without b": ("a", "c"), "without c": ("a", "b"),
        "up to a": ("a",), "no pass": (),
    }  # fmt: skip
    assert lists(["a"]) == {ALL: ("a",), "without a": ()}
    assert list(lists(["a", "b", "c", "d"]))[-3:] == ["up to b", "up to a", "no pass"]


def test_the_time_of_a_variant_stands_beside_that_of_all_passes() -> None:
    variant = Variant(name="without a", passes=(), passed=True)
    times = samples(**{ALL: [2.0, 4.0], "without a": [4.0, 8.0]})
    found = ablation._with_times(variant, times)
    assert (found.ratio, found.timing) == (2.0, times["without a"].timing())
    assert ablation._with_times(variant, {}) == variant
    alone = ablation._with_times(variant, {"without a": times["without a"]})
    assert (alone.ratio, alone.timing is None) == (None, False)


PASSED = Numerics(reference="eager", max_abs_err=0.5, bitwise=False, passed=True, problems=("a", "b"))


def compiled_session(recordings: list[Any]) -> Any:
    graphs_ = [SimpleNamespace(nodes_after=3, passes_s=0.5), SimpleNamespace(nodes_after=4, passes_s=0.25)]
    return SimpleNamespace(
        compilations=graphs_,
        materialised=SimpleNamespace(backend=SimpleNamespace(recordings=lambda: recordings)),
        checked=SimpleNamespace(
            effective=[SimpleNamespace(option="x"), SimpleNamespace(option="y")],
        ),
        experiment=SimpleNamespace(mode=SimpleNamespace(name="max-autotune")),
        detached=None,
        first_call=SimpleNamespace(times=SimpleNamespace(total_s=2.5)),
    )


def test_a_variant_s_row_and_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "compared", lambda session: PASSED)
    assert ablation._tried("n", ("a",), compiled_session([{"kernels": 2}, {"kernels": 5}])) == Variant(
        name="n", passes=("a",), nodes=7, kernels=7, passes_s=0.75, passed=True, bitwise=False, max_abs_err=0.5,
        problem="a; b",
    )  # fmt: skip
    assert ablation._tried("n", (), compiled_session([])).kernels is None
    monkeypatch.setattr(ablation, "compared", lambda session: "no")
    assert ablation._tried("n", ("a",), compiled_session([])) == Variant(
        name="n", passes=("a",), passed=False, problem="no"
    )


def test_a_mode_s_row_names_the_options_that_are_idle_in_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    live: Any = SimpleNamespace(checked=SimpleNamespace(effective=[SimpleNamespace(option="x")]))
    monkeypatch.setattr(modes, "compared", lambda session: PASSED)
    found = modes._tried("max-autotune", compiled_session([]), live)
    assert (found.idle, found.candidate, found.compile_s, found.problem) == (("y",), "compiled", 2.5, "a; b")
    assert (found.passed, found.bitwise, found.max_abs_err) == (True, False, 0.5)
    assert modes._tried("eager", compiled_session([]), live).idle == ()
    monkeypatch.setattr(modes, "compared", lambda session: "no")
    refused = modes._tried("max-autotune", compiled_session([]), live)
    assert (refused.passed, refused.problem, refused.idle, refused.candidate) == (False, "no", ("y",), None)


def test_what_cannot_be_compared_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.compose import comparison as comparing

    def fails(session: Any, progress: Any) -> Any:
        raise CompileError("no graph")

    monkeypatch.setattr(comparing, "every_step", fails)
    assert benchmark.compared(SimpleNamespace()) == "no graph"  # type: ignore[arg-type]
    monkeypatch.setattr(comparing, "every_step", lambda session, progress: SimpleNamespace(numerics=PASSED))
    assert benchmark.compared(SimpleNamespace()) == PASSED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "detached", "expected"),
    [("eager", None, "eager"), ("max-autotune", None, "compiled"), ("max-autotune", True, "replay")],
)
def test_what_of_a_session_is_timed(mode: str, detached: Any, expected: str) -> None:
    live: Any = Live(mode, detached)
    assert benchmark.candidate(live) == expected


def test_only_what_is_right_is_timed_and_comparing_is_half_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    live: Any = Live()
    sessions: dict[str, Any] = {"right": Live(detached=True), "wrong": Live()}

    def make(name: str) -> Any:
        return lambda: made.append(name) or sessions[name]

    def timed(live_: Any, right: Any, progress: Any) -> Any:
        assert live_ is live
        progress(0.75)
        return right

    told: list[float] = []
    monkeypatch.setattr(benchmark, "_timed", timed)
    rows, right = benchmark.in_one_process(
        live,
        {name: make(name) for name in sessions},
        lambda name, session: Variant(name=name, passes=(), passed=name == "right"),
        told.append,
    )
    assert [row.name for row in rows] == made == ["right", "wrong"]
    assert (right, told) == ({"right": sessions["right"]}, [0.25, 0.5, 0.75])


def test_turns_go_from_half_to_the_end_with_room_for_each_session_s_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._dynamo import config

    seen: list[Any] = []
    before = config.recompile_limit

    def in_turns(live: Any, candidates: Any, progress: Any) -> Any:
        seen.append((config.recompile_limit - before, torch.is_grad_enabled(), list(candidates)))
        progress(0.0)
        progress(0.5)
        progress(1.0)
        return candidates

    monkeypatch.setattr(benchmark, "in_turns", in_turns)
    told: list[float] = []
    one, other = Live(detached=True), Live()
    sessions: Any = {"one": one, "other": other}
    benchmark._timed(SimpleNamespace(), sessions, told.append)  # type: ignore[arg-type]
    assert seen == [(2, False, ["one", "other"])]
    assert told == [0.5, 0.75, 1.0]
    assert one.log == ["rewind", ("replay", ("inputs 0",), {"k": 1}, False)]
    assert other.log == ["rewind", ("compiled", ("inputs 0",), {"k": 1}, False)]
    assert config.recompile_limit == before


def test_nothing_to_leave_out_is_refused() -> None:
    def checked(mode: str, passes: tuple[str, ...]) -> Any:
        return SimpleNamespace(experiment=SimpleNamespace(mode=SimpleNamespace(name=mode)), passes=passes)

    ablation.check(checked("reduce-overhead", ("cse",)))
    with pytest.raises(ConfigError, match="mode=eager runs no pass"):
        ablation.check(checked("eager", ("cse",)))
    with pytest.raises(ConfigError, match="needs passes to leave out"):
        ablation.check(checked("reduce-overhead", ()))


# facts of graphs, calls and comparisons


def compilation(name: str = "g", symbols: tuple[str, ...] = ()) -> Any:
    run = SimpleNamespace(
        name="cse", stage="pre", matches=1, nodes_before=2, nodes_after=1, seconds=0.5, exact=False, rules=(),
        moves=None, folds=None, why="", max_abs_err=0.25,
    )  # fmt: skip
    before = SimpleNamespace(fingerprint="f", lines=["line"] * 9, symbols=symbols, text="b")
    return SimpleNamespace(
        id=name, before=before, nodes_after=7, partition=None, refused_on_npu=(), passes=[run], text_after="a",
        after=before, plan=None, winners={},
    )  # fmt: skip


def test_graphs_are_told_with_their_passes_texts_and_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NodeTable(names=(), operators=(), values=(), sources=(), streams=(), inputs=())
    monkeypatch.setattr("npucompose.graphs.drawing.drawing", lambda *_: GraphDrawing(before=table))
    monkeypatch.setattr(facts, "device_texts", lambda backend: {"more.txt": "m"})
    live: Any = SimpleNamespace(
        compilations=[compilation("g", ("s0",)), compilation("h")], overwrites={},
        materialised=SimpleNamespace(backend=None),
    )  # fmt: skip
    found = facts.graphs_account(live)
    assert [(g["id"], g["fx"], list(g["symbols"]), g["nodes_before"], g["nodes_after"]) for g in found["graphs"]] == [
        ("g", "dynamic", ["s0"], 9, 7), ("h", "static", [], 9, 7),
    ]  # fmt: skip
    assert [(p["graph"], p["name"], p["matches"], p["nodes_before"], p["nodes_after"]) for p in found["passes"]] == [
        ("g", "cse", 1, 2, 1), ("h", "cse", 1, 2, 1),
    ]  # fmt: skip
    assert [(p["exact"], p["max_abs_err"], p["seconds"], p["stage"]) for p in found["passes"]] == [
        (False, 0.25, 0.5, "pre")
    ] * 2
    assert found["texts"] == {
        "g.before.txt": "b", "g.after.txt": "a", "h.before.txt": "b", "h.after.txt": "a", "more.txt": "m",
    }  # fmt: skip
    assert found["drawings"] == dict.fromkeys(("g", "h"), facts_of(GraphDrawing(before=table)))


def test_kernels_that_no_event_orders_fail_the_comparison() -> None:
    npu: Any = SimpleNamespace(unordered=tuple(f"u{n}" for n in range(facts.UNORDERED_SHOWN + 1)))
    found = facts._with_order(PASSED, npu)
    assert not found.passed
    assert found.problems == ("a", "b", *npu.unordered[: facts.UNORDERED_SHOWN])
    assert facts._with_order(PASSED, None) == PASSED
    assert facts._with_order(PASSED, SimpleNamespace(unordered=())) == PASSED  # type: ignore[arg-type]


def test_a_session_that_compiled_more_than_the_first_call_starts_over() -> None:
    class Session:
        compiled_once = True
        materialised = SimpleNamespace(backend=SimpleNamespace(recordings=lambda: [1, 2]))

        def __init__(self, checked: Any, folders: Any) -> None:
            self.checked, self.folders = checked, folders

    live: Any = Session("checked", "folders")
    assert _as_after_the_first_call(live) == (live, 0)
    live.compiled_once = False
    again, before = _as_after_the_first_call(live)
    assert again is not live
    assert (again.checked, again.folders, before) == (live.checked, "folders", 2)


def test_a_call_is_told_with_what_it_compiled_and_its_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.experiment.stages.sequence.call_text", lambda call: f"told {call}")
    found = _call_facts("x", SimpleNamespace(recompiles=(1, 2), numerics=PASSED))  # type: ignore[arg-type]
    assert (found.call, found.recompiles, found.passed, found.max_abs_err) == ("told x", 2, True, 0.5)
