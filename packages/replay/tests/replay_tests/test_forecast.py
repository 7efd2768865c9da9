"""What recordings will hold is known from their plans: torch's own count of what was allocated and kept agrees."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.profiler import ProfilerActivity, profile

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.recorder import PlannedRecording
from npucompose.targets.foretelling import Foretelling
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.trial import ExecutorName
from npucompose_replay.memory.arena import Arena
from npucompose_replay.memory.forecast import held_bytes

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
WITHIN = 0.01


@pytest.fixture(scope="module")
def three() -> Graphs:
    """An MLP called with three sizes, the largest first.

    It is captured once before: what the replayer keeps for the whole process (a table of 256 KiB) is no recording's.
    """
    found = foretold("mlp", "x.0", (2, 16, 64))
    captured(found.graphs, Arena)
    return found


def kept_bytes(made: Callable[[], Any]) -> int:
    """What torch's allocator for CPUs gave out and did not get back while `made` ran and its result lives."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = made()
        gc.collect()
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]  # type: ignore[union-attr]
    assert kept is not None
    assert events, "torch counted nothing"
    return sum(one.nbytes() for one in events)


Called = tuple[Any, list[Any], frozenset[int]]
"""A graph, its inputs, those of them that lie where they are."""


def captured(
    graphs: list[Called], arena: Callable[[], Arena], executor: ExecutorName = "native"
) -> list[CapturedGraph]:
    return [
        CapturedGraph.capture(graph, inputs, static=static, arena=arena(), executor=executor)
        for graph, inputs, static in graphs
    ]


class Graphs(Foretelling):
    """Also keeps each graph with the inputs of its call."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Called] = []

    def watched(self, backend: Any, compilation: Any, graph_module: Any) -> Callable[..., Any]:
        looked = super().watched(backend, compilation, graph_module)

        def call(*inputs: Any) -> Any:
            static = frozenset(i for i, x in enumerate(inputs) if isinstance(x, torch.nn.Parameter))
            self.graphs.append((graph_module, list(inputs), static))
            return looked(*inputs)

        return call


def foretold(model: str, dimension: str, sizes: tuple[int, ...], *overrides: str) -> Graphs:
    """The plans of the calls of `sizes`, the largest first; nothing is recorded."""
    name, _, at = dimension.partition(".")
    torch._dynamo.reset()
    session = Session(check(compose([f"model={model}", "mode=reduce-overhead", *overrides])))
    backend = session.materialised.backend
    backend.reads_only, backend.foretelling = True, Graphs()
    compiled = torch.compile(session.built.module, backend=lambda g, x: backend(g, x), dynamic=False)
    example = session.inputs(0)
    for size in sorted(sizes, reverse=True):
        inputs = dict(session.inputs(0))
        if name:
            shape = list(example[name].shape)
            shape[int(at)] = size
            inputs[name] = torch.randn(shape)
        session.call(compiled, inputs)
    torch._dynamo.reset()
    assert isinstance(backend.foretelling, Graphs)
    return backend.foretelling


def recordings(found: Foretelling) -> list[PlannedRecording]:
    made = [call.recording for call in found.calls]
    assert all(one is not None for one in made), [call.why_none for call in found.calls]
    return [one for one in made if one is not None]


def compared(found: Graphs, executor: ExecutorName = "native") -> dict[str, tuple[int, int]]:
    """{shared or apart: (foretold, then held)}."""
    arena = Arena()
    return {
        "shared": (
            held_bytes(recordings(found), shared=True),
            kept_bytes(lambda: captured(found.graphs, lambda: arena, executor)),
        ),
        "apart": (
            held_bytes(recordings(found), shared=False),
            kept_bytes(lambda: captured(found.graphs, Arena, executor)),
        ),
    }


def agree(name: str, found: Graphs, executor: ExecutorName = "native") -> None:
    for kind, (said, held) in compared(found, executor).items():
        print(f"{name} {kind}, {len(found.graphs)} sizes: foretold {said:,}, held {held:,}, {said / held - 1:+.3%}")
        assert abs(said - held) <= WITHIN * held


@pytest.mark.parametrize("executor", ["native", "torchscript"])
def test_recordings_of_several_sizes_hold_what_was_foretold_in_one_pool_and_apart(
    three: Graphs, executor: ExecutorName
) -> None:
    assert len(three.graphs) == 3
    agree("mlp", three, executor)


@pytest.mark.slow
def test_so_do_those_of_eight_sizes(three: Graphs) -> None:
    found = foretold("mlp", "x.0", SIZES)
    assert len(found.graphs) == len(SIZES)
    agree("mlp", found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "dimension"),
    [
        ("parallel_branches", "x.0"),
        ("mm_abs_sub", ""),
        ("gpt_decode", ""),
        ("tiny_ops", ""),
        ("mla_prolog", ""),
        ("moe_shared_expert", "x.0"),
        ("conv_nhwc", "x.0"),
        ("resnet18", "x.0"),
        ("unet", "x.0"),
    ],
)
def test_so_do_those_of_other_models(three: Graphs, model: str, dimension: str) -> None:
    few = model in ("resnet18", "unet")
    agree(model, foretold(model, dimension, SIZES[:4] if few else SIZES if dimension else (1,)))


def test_a_forecast_that_forgets_results_is_found_out(three: Graphs) -> None:
    """The negative control: results are a large part of what a small chain holds."""
    lost = [evolve(one, own_bytes=0) for one in recordings(three)]
    _, held = compared(three)["shared"]
    assert abs(held_bytes(lost, shared=True) - held) > WITHIN * held


def test_one_pool_takes_no_more_than_pools_apart(three: Graphs) -> None:
    made = recordings(three)
    assert held_bytes(made, shared=True) < held_bytes(made, shared=False)
