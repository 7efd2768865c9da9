"""What of the updates that AOTAutograd made functional Inductor is asked to make in place again."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fx

import npucompose
from npucompose_replay.inductor.in_place import ScatterInPlace, scatter_in_place
from tests.graph_helpers import built

aten = torch.ops.aten


def targets(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def update(read_old: bool, returned: bool = False, scatter: Callable[..., object] = aten.scatter.src) -> fx.GraphModule:
    def make(graph: fx.Graph, xs: list[fx.Node]) -> tuple[fx.Node, ...]:
        cache, index, value = xs
        new = graph.call_function(scatter, (cache, 0, index, value))
        out = graph.call_function(aten.neg.default, (cache if read_old else new,))
        graph.call_function(aten.copy_.default, (cache, new))
        return (new if returned else out,)

    return built(make, 3)


def test_a_scatter_that_is_copied_back_is_made_in_place() -> None:
    module = update(read_old=False)
    assert scatter_in_place(module.graph) == 1
    module.recompile()
    assert targets(module) == ["aten.scatter_.src", "aten.neg.default"]
    cache, index, value = torch.zeros(4), torch.tensor([2]), torch.ones(1)
    assert torch.equal(module(cache, index, value)[0], torch.tensor([0.0, 0.0, -1.0, 0.0]))
    assert torch.equal(cache, torch.tensor([0.0, 0.0, 1.0, 0.0]))


@pytest.mark.parametrize(("read_old", "returned"), [(True, False), (False, True)])
def test_not_where_the_old_value_is_read_later_or_the_new_one_is_returned(read_old: bool, returned: bool) -> None:
    module = update(read_old, returned)
    assert scatter_in_place(module.graph) == 0
    assert "aten.scatter.src" in targets(module)


def test_what_inductor_makes_in_place_itself_is_left_to_it() -> None:
    module = update(read_old=False, scatter=aten.index_add.default)
    assert scatter_in_place(module.graph) == 0


def test_the_key_of_inductors_cache_knows_of_it() -> None:
    assert ScatterInPlace().uuid() == ScatterInPlace().__reduce__()[1][0]


@pytest.mark.slow
def test_a_cache_is_written_where_it_lies_and_takes_no_memory() -> None:
    class Step(torch.nn.Module):
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(256, 64))

        def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            return self.cache.scatter_(0, place.expand(1, 64), x).sum(0) * 2

    torch._dynamo.reset()
    model = Step().eval()
    reference, fast = copy.deepcopy(model), npucompose.compile(model, "mode=max-autotune", "inductor.max_autotune=null")
    with torch.no_grad():
        for place in range(4):
            x, where = torch.randn(1, 64), torch.tensor([[place]])
            assert torch.allclose(fast(x, where), reference(x, where), atol=1e-5)
            assert torch.equal(model.cache, reference.cache)
    (one,) = fast.materialised.backend.compilations[0].lowered.captured
    assert one.facts()["pool_bytes"] < model.cache.nbytes
