"""The budget that `explain --capture` and the stage legality foretell: of declared calls, of a server's sizes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attrs import evolve

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.npu.capture import session as capture
from npucompose.npu.capture import session as foretelling
from npucompose.npu.capture.budget import BudgetQuestion, CaptureBudget, Interval, capture_budget
from npucompose.npu.capture.counts import CaptureCounts
from npucompose.npu.capture.explanation import budget_lines
from npucompose.npu.capture.pool import PoolRequests
from npucompose.npu.capture.records import CaptureBudgetFacts, CaptureLegality
from npucompose.npu.capture.session import SizedCall, Traced, _budget, capture_of, sizes_of
from npucompose.npu.capture.session import _captured_graphs as _graphs
from npucompose.targets import foretelling as targets_foretelling
from npucompose.targets.foretelling import ForetoldCall
from npucompose.vendor.devices import device_of

CALLS = "model.sequence=[{x.0: 2},{x.0: 64}]"
PIECES = """
import torch
from torch import nn

class Pieces(nn.Module):
    def forward(self, x):
        x = x * 2
        print("one")
        x = x + 1
        print("two")
        return x - 3

def make(): return Pieces(), {"x": torch.randn(4, 4)}
"""

COUNTING = """
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls

def make(): return Counting(), {"x": torch.randn(4, 4)}
"""


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def judged(*overrides: str) -> CaptureLegality:
    return capture_of(Session(check(compose(["mode=reduce-overhead", *overrides]))))[0]


def budget(*overrides: str) -> CaptureBudgetFacts:
    facts = judged(*overrides)
    assert facts.budget is not None, facts.no_budget
    return facts.budget


def test_what_was_not_traced_has_no_budget_and_the_reason() -> None:
    session = Session(check(compose(["mode=reduce-overhead", "model=add"])))
    empty = (SizedCall(size=1, made=()), SizedCall(size=2, made=()))
    assert _budget(session, Traced()) == (None, "torch.compile made no graph.")
    assert _budget(session, Traced(calls=empty, sizes_are="calls")) == (None, "torch.compile made no graph.")
    assert _budget(session, Traced(why_not="it has streams", lost="no", calls=empty)) == (None, "it has streams")
    assert _budget(session, Traced(lost="model.sequence[0]: no", calls=empty)) == (None, "model.sequence[0]: no")


@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_each_declared_call_is_a_size_with_bytes_of_its_own(shapes: str) -> None:
    found = budget("model=mlp", CALLS, f"shapes={shapes}")
    assert (found.sizes_of, [one.size for one in found.sizes]) == ("x.0", [2, 32, 64])
    assert found.streams.low == found.streams.high == 3
    assert found.tasks.low == found.tasks.high == 15
    assert found.certain == found.possible == (2, 32, 64)
    largest = found.sizes[-1].nbytes
    assert largest is not None
    assert found.nbytes is not None
    assert largest.low == found.nbytes.low > 0, "smaller sizes lie in the memory of the largest"
    assert found.recorded_bytes is not None
    assert found.recorded_apart_bytes is not None
    assert 0 < found.recorded_bytes < found.recorded_apart_bytes


def test_a_servers_sizes_are_counted_without_bytes() -> None:
    found = budget("model=mlp", "extensions.vllm.sizes=[1,8,64]")
    assert (found.sizes_of, [one.size for one in found.sizes]) == ("extensions.vllm", [1, 8, 64])
    assert found.streams.high == 3
    assert (found.nbytes, found.recorded_bytes) == (None, None)
    assert found.why_not_recorded == "sizes of extensions.vllm are no calls of this model"


def test_a_stream_plan_takes_streams_and_events_and_one_stream_fewer_frees_most() -> None:
    found = budget("model=mm_abs_sub", "passes=stream_plan", "streams.min_gain=0", "target.stream_threads=2")
    assert (found.streams.high, found.events.high, found.kernels.high, found.tasks.high) == (2, 3, 4, 10)
    assert found.changes[0].what == "main with one stream fewer"
    assert (found.changes[0].streams.low, found.changes[0].streams.high) == (1, 1)


def test_the_socs_table_decides_what_is_available() -> None:
    assert budget("model=add", "target.soc=ascend310p").available.high == 992 - 128
    refused = judged("model=add", "target.soc=ascend310b")
    assert refused.budget is None
    assert refused.no_budget == "Ascend310B1 captures nothing: Atlas 200I/500 A2 inference."
    assert list(budget_lines(refused)) == [("budget", f"not foretold: {refused.no_budget}")]


def test_weights_that_fill_the_device_leave_no_memory_for_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BudgetQuestion] = []

    def seen(question: BudgetQuestion) -> CaptureBudget:
        asked.append(question)
        return capture_budget(question)

    monkeypatch.setattr(foretelling, "capture_budget", seen)
    monkeypatch.setattr(foretelling, "device_of", lambda name: evolve(device_of(name), memory=64))
    found = budget("model=mlp", CALLS)
    assert [one.memory for one in asked] == [0]
    assert found.certain == ()


MANY = "extensions.vllm.sizes=[" + ",".join(map(str, range(1, 901))) + "]"


@pytest.mark.parametrize(
    ("soc", "sizes", "verdict", "certainty"),
    [
        pytest.param("ascend310p", MANY, "does not capture", "derived", id="no driver gives a 310P so many"),
        pytest.param("ascend310p", "extensions.vllm.sizes=[1,2]", "captures", "proven", id="few sizes fit"),
        pytest.param("ascend910b1", MANY, "captures", "proven", id="a 910B has enough for them"),
    ],
)
def test_captures_that_take_more_streams_than_there_are_are_a_finding(
    soc: str, sizes: str, verdict: str, certainty: str
) -> None:
    """vllm-ascend #9564, #9596, #9691, #3869, #8393, #7907: 207008 and 207005 at capture, on the device."""
    facts = judged("model=add", f"target.soc={soc}", sizes)
    assert (facts.verdict, facts.certainty) == (verdict, certainty)
    assert [(one.rule, one.code) for one in facts.findings] == [("streams_exhausted", 207008)] * (verdict != "captures")


def test_what_only_newer_drivers_can_hold_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in pieces: three for each of 700 sizes, on a 910B whose older drivers give captures 2,048 streams."""
    (tmp_path / "pieces.py").write_text(PIECES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "pieces", raising=False)
    sizes = MANY.replace(",701", "]").partition("]")[0] + "]"
    chosen = ("model=python", "model.factory=pieces:make", "trust=true", "compile.fullgraph=false")
    facts = judged(*chosen, "target.soc=ascend910b1", sizes)
    (found,) = [one for one in facts.findings if not one.outside]
    assert (facts.verdict, found.rule, found.standing) == ("unknown", "streams_exhausted", "unknown")
    assert found.what.startswith("captures of 700 sizes take 2,100 streams or more; Ascend910B1 has 1,800 to ")
    assert judged(*chosen, "target.soc=ascend910b1", "extensions.vllm.sizes=[1,2,4]").verdict == "captures"
    sys.modules.pop("pieces", None)


def test_a_call_that_cannot_be_made_is_why_nothing_is_foretold_and_the_verdict_stays() -> None:
    facts = judged("model=mla_prolog", "model.sequence=[{x.0: 2}]")
    assert facts.verdict == "captures"
    assert facts.no_budget is not None
    assert facts.no_budget.startswith("model.sequence[0]: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("model=mlp", CALLS),
        ("model=mlp", CALLS, "shapes=dynamic"),
        ("model=gpt_decode",),
        ("model=moe_shared_expert", "passes=stream_plan", "streams.min_gain=0"),
        ("model=mla_prolog", "passes=stream_plan", "streams.min_gain=0"),
    ],
    ids=" ".join,
)
def test_a_run_then_holds_what_was_foretold(overrides: tuple[str, ...]) -> None:
    """Its recordings' own account says the same, but for constants and what alignment takes."""
    foretold = budget(*overrides).recorded_bytes
    torch._dynamo.reset()
    session = Session(check(compose(["mode=reduce-overhead", *overrides])))
    for at, call in enumerate(session.calls):
        session.call(session.compiled, session.inputs(at, call))
    facts = session.materialised.backend.recordings()
    slabs = {number: nbytes for one in facts for number, nbytes in one["slabs"]}
    assert foretold == pytest.approx(sum(slabs.values()) + sum(one["output_bytes"] for one in facts), rel=0.01)


def test_each_graph_of_the_call_that_makes_most_of_them_is_asked_about() -> None:
    def made(streams: int) -> ForetoldCall:
        counts = CaptureCounts(streams=streams, kernels=streams, records=streams - 1)
        return ForetoldCall(
            graph="g", counts=counts, recording=None, why_none="",
            requests=PoolRequests(requests=(), workspaces=()), communicators=frozenset(), collectives=0,
        )  # fmt: skip

    calls = [SizedCall(size=1, made=(made(1),)), SizedCall(size=2, made=(made(3), made(2)))]
    assert [(one.name, one.streams, one.tasks, one.events) for one in _graphs(calls)] == [
        ("graph_0", 3, Interval(1, 5), 2), ("graph_1", 2, Interval(3, 3), 1),
    ]  # fmt: skip


def test_a_model_that_was_looked_at_is_as_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.chdir(tmp_path)
    chosen = ("model=python", "model.factory=counting:make", "trust=true", "mode=reduce-overhead")
    session = Session(check(compose(chosen)))
    assert capture_of(session)[0].budget is not None
    assert session.built.module.calls.item() == 0


def test_sizes_are_those_of_the_one_dimension_that_calls_change() -> None:
    examples = {"x": torch.ones(4, 2), "y": torch.ones(4)}
    assert sizes_of([{}, {"x.0": 6}, {"x.0": 8}], examples) == ("x.0", [4, 6, 8])
    for calls in ([{}, {"x.0": 6, "y.0": 6}], [{}, {"x.0": 4}], [{}], [{}, {"x": "transposed"}], [{}, {"x.9": 2}]):
        assert sizes_of(calls, examples) == ("calls", list(range(1, len(calls) + 1)))


LONG = """
import torch
from torch import nn

class Long(nn.Module):
    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds
        self.weight = nn.Parameter(torch.randn(16, 16) * 0.1)

    def forward(self, x):
        y = x
        for _ in range(self.rounds):
            y = torch.tanh(x @ self.weight) + y
            x = y.relu() * 0.5
        return y

def long(rounds): return Long(rounds), {"x": torch.randn(8, 16)}
"""


@pytest.mark.slow
def test_what_2500_nodes_take_to_be_judged_grows_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of this process; a graph of a quarter of the nodes meets the same machine."""
    for module in (capture, targets_foretelling):
        monkeypatch.setattr(module, "perf_counter", time.process_time)
    (tmp_path / "long_models.py").write_text(LONG)
    monkeypatch.syspath_prepend(str(tmp_path))
    judged_s: dict[int, float] = {}
    for rounds in (125, 500):
        torch._dynamo.reset()
        given = ["model=python", "model.factory=long_models:long", f"model.args={{rounds: {rounds}}}", "trust=true"]
        facts, trace_s, judged_s[rounds] = capture_of(Session(check(compose([*given, "mode=reduce-overhead"]))))
        print(f"\n{rounds} rounds: traced in {trace_s:.1f} s, judged in {judged_s[rounds]:.1f} s of this process")
    assert facts.budget is not None
    assert facts.budget.kernels.high == 2498
    assert facts.budget.streams.high == 2, "a queue of 2,048 tasks overflows into another stream"
    assert judged_s[500] < 8 * judged_s[125], "four times the nodes; sixteen where each looked at all others"
