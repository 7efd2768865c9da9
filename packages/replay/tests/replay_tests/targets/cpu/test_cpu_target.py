"""What the target cpu says of itself in each mode, and what it makes of a graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from npucompose import machine
from npucompose.errors import CaptureError, ConfigError
from npucompose.recorder import LowerRequest
from npucompose.results.graphs import Partition
from npucompose.results.measured import CallStatistics
from npucompose.targets import cpu
from npucompose.targets.cpu import CpuTarget
from npucompose.vendor.compiler import CompilerOptions
from npucompose_replay.executor import build
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.front.segments import Segmented
from npucompose_replay.memory.arena import Arena
from npucompose_replay.plan import Workers
from replay_tests.capturing import request
from tests.graph_helpers import built, traced

aten = torch.ops.aten
CAPTURED = ("reduce-overhead", "npugraph_ex")
OTHERS = ("max-autotune", "eager")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`native(kind, words)`: so it stands with the native replayer."""

    def stands(kind: Any, words: str = "it fell over.") -> None:
        monkeypatch.setattr(build, "state", lambda: build.BuildState(kind=kind, words=words))

    stands("built")
    return stands


@pytest.mark.parametrize("mode", [*CAPTURED, *OTHERS])
def test_each_mode_says_what_it_can(mode: str, native: Any) -> None:
    target, captures = CpuTarget(stream_threads=3), mode in CAPTURED
    can = target.capabilities(mode)
    assert (can.target, can.mode, can.captures, can.profiles) == ("cpu", mode, captures, True)
    assert (can.tries_plans, can.clock is not None) == (captures, captures)
    assert can.device_model == cpu.cpu(machine.usable_cores())
    assert bool(target.support(mode).options) == captures
    assert target.support(mode).fuses == target.support(mode).trains == (mode == "max-autotune")
    assert target.support(mode).compiles == (mode != "eager")
    portable = CpuTarget(executor="portable", stream_threads=3).capabilities(mode)
    assert (portable.tries_plans, portable.clock) == (False, None)
    assert not CpuTarget(stream_threads=1).capabilities(mode).tries_plans
    native("failed")
    assert not target.capabilities(mode).tries_plans


def test_the_options_that_are_honoured_are_those_of_each_mode() -> None:
    assert {name.partition(".")[0] for name in CpuTarget().support("reduce-overhead").options} == {"debug"}
    assert {name.partition(".")[0] for name in CpuTarget().support("npugraph_ex").options} == {"npugraph_ex"}


def test_streams_run_on_as_many_threads_as_are_asked_for_or_there_are_cores() -> None:
    assert CpuTarget(stream_threads=3).workers_count == 3
    assert CpuTarget().workers_count == machine.usable_cores()


def test_cores_that_this_process_may_not_use_are_refused_with_those_that_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "cores", lambda: {3, 1})
    CpuTarget(stream_cores=(1, 3)).check("eager")
    with pytest.raises(ConfigError, match=r"stream_cores: 0, 7 cannot be used by this process\. Its cores: 1, 3\."):
        CpuTarget(stream_cores=(0, 1, 7)).check("eager")


@pytest.mark.parametrize(
    ("kind", "warns", "replayer"),
    [
        ("built", (), "native"),
        ("not built", ("the native replayer is not built yet: it fell over..",), "native"),
        ("failed", ("the portable replayer is used: it fell over.",), "portable"),
        ("impossible", ("the portable replayer is used: it fell over.",), "portable"),
    ],
)
def test_the_state_of_the_native_replayer_is_told_where_it_matters(
    native: Any, kind: Any, warns: tuple[str, ...], replayer: str
) -> None:
    native(kind)
    for mode in CAPTURED:
        assert CpuTarget().warnings(mode) == warns
        assert CpuTarget(executor="portable").warnings(mode) == CpuTarget(executor="native").warnings(mode) == ()
        if replayer == "portable":
            with pytest.raises(ConfigError, match=r"target\.executor=native: it fell over"):
                CpuTarget(executor="native").check(mode)
        else:
            CpuTarget(executor="native").check(mode)
        CpuTarget().check(mode)
    for mode in OTHERS:
        assert CpuTarget().warnings(mode) == ()
        CpuTarget(executor="native").check(mode)
    assert CpuTarget().identity()["replayer"] == replayer
    assert CpuTarget(executor="portable").identity()["replayer"] == "portable"


@pytest.mark.parametrize(("quota", "told"), [(None, {}), (1.5, {"cpu_quota": "1.5"}), (2.0, {"cpu_quota": "2"})])
def test_its_identity_is_what_makes_its_numbers(
    native: Any, monkeypatch: pytest.MonkeyPatch, quota: float | None, told: dict[str, str]
) -> None:
    monkeypatch.setattr(cpu, "cpu_quota", lambda: quota)
    assert CpuTarget().identity() == {
        "cpu": machine.cpu_model(),
        "machine": os.uname().machine,
        "cores": str(machine.usable_cores()),
        "replayer": "native",
        **told,
    }


def test_the_native_replayer_is_built_ahead_where_it_will_be_used(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def load() -> Any:
        asked.append(1)
        raise build.Unavailable("no luck.")

    native("not built")
    monkeypatch.setattr(build, "load", load)
    monkeypatch.setattr(build, "start", lambda: asked.append(0))
    for mode in set(OTHERS) - {"max-autotune"}:
        CpuTarget(executor="native").start_build(mode)
        CpuTarget(executor="native").finish_build(mode)
    CpuTarget(executor="portable").start_build("reduce-overhead")
    CpuTarget(executor="portable").finish_build("reduce-overhead")
    assert not asked
    CpuTarget().start_build("reduce-overhead")
    assert asked == [0]
    CpuTarget().finish_build("reduce-overhead")
    assert asked == [0, 1]
    with pytest.raises(CaptureError, match=r"target\.executor=native: no luck\."):
        CpuTarget(executor="native").finish_build("npugraph_ex")
    CpuTarget(executor="native").finish_build("max-autotune")  # whose kernels Inductor's wrapper can call
    assert asked == [0, 1, 1, 1]


def test_graphs_of_a_model_have_common_memory_unless_each_is_to_have_its_own() -> None:
    assert isinstance(CpuTarget().common_memory(), Arena)
    assert CpuTarget(pool="graph").common_memory() is None


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (
            "reduce-overhead",
            {"debug.aclgraph.static_capture_size_limit": 7, "debug.aclgraph.enable_output_clone": True},
        ),
        ("npugraph_ex", {"npugraph_ex.capture_limit": 7, "npugraph_ex.clone_output": True}),
    ],
)
def test_a_graph_becomes_a_cache_with_the_options_of_its_mode(mode: str, options: dict[str, Any]) -> None:
    module, arena = traced(lambda x: (x + 1,), torch.ones(2)), Arena()
    asked = LowerRequest(
        mode=mode, graph_module=module, example_inputs=(), static_inputs=frozenset(),
        options=CompilerOptions(values=options), memory=arena,
    )  # fmt: skip
    target = CpuTarget(
        executor="portable", when_full="replace", when_new="at_once", stream_threads=3, stream_spin_us=7.0,
        stream_cores=(0,),
    )  # fmt: skip
    cache = target.lower(asked)
    assert isinstance(cache, GraphCache)
    assert (cache.capture_limit, cache.clone_output, cache.executor, cache.when_full) == (
        7,
        True,
        "torchscript",
        "replace",
    )
    assert cache.admission.when_new == "at_once"
    assert cache.workers == Workers(count=3, spin_us=7.0, cores=(0,))
    assert cache.arena is arena
    assert cache.partial == asked.partial
    plain = CpuTarget().lower(attrs.evolve(asked, at_once=True, memory=None, partial="refuse"))
    assert isinstance(plain, GraphCache)
    assert (plain.executor, plain.when_full, plain.admission.when_new) == ("native", "eager", "at_once")
    assert plain.partial == "refuse"
    assert plain.arena is not arena
    assert CpuTarget().lower(asked).admission.when_new == "earned"  # type: ignore[attr-defined]


def must_be_cut() -> Any:
    def make(graph: Any, xs: list[Any]) -> Any:
        first = graph.call_function(aten.add.Tensor, (xs[0], 1))
        found = graph.call_function(aten.nonzero.default, (first,))
        return (graph.call_function(aten.mul.Tensor, (found, 2)),)

    return built(make, 1)


def test_a_graph_that_no_recording_can_hold_is_cut_where_that_is_allowed() -> None:
    options = CompilerOptions(
        values={"debug.aclgraph.static_capture_size_limit": 7, "debug.aclgraph.enable_output_clone": False}
    )
    asked = attrs.evolve(request(must_be_cut()), options=options)
    cut = CpuTarget().lower(asked)
    assert isinstance(cut, Segmented)
    assert isinstance(CpuTarget().lower(attrs.evolve(asked, partial="refuse")), GraphCache)
    words = CpuTarget().partition("reduce-overhead", must_be_cut())
    assert words is not None
    assert words == cut.partition()
    assert words.words == "2 segments, 1 operator outside recordings: aten.nonzero"
    assert CpuTarget().partition("max-autotune", must_be_cut()) is None
    assert CpuTarget().partition("npugraph_ex", traced(lambda x: (x + 1,), torch.ones(2))) == Partition()


def test_the_parts_of_a_graph_count_their_calls_and_show_their_recordings() -> None:
    segmented = Segmented(
        request(module := must_be_cut()),
        {next(n for n in module.graph.nodes if n.target is aten.nonzero.default): "a test"},
        lambda one: GraphCache(one, capture_limit=8),
    )
    for _ in range(3):
        assert segmented([torch.tensor([-1.0, 3.0])])[0].tolist() == [[2]]
    told = segmented.statistics
    assert isinstance(told, CallStatistics)
    assert (told.captures, told.hits, told.calls) == (2, 4, 6)
    assert len(segmented.captured) == 2
    assert list(segmented.captured) == list(segmented.captured) == [c.captured[0] for c in segmented.caches]
