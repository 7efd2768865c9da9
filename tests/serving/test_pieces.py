"""A piece of a model as an engine calls it: which sizes are replayed, what happens to results and to weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

import npucompose
from npucompose.serving.vllm.pieces import Piece, Unrecorded, compiled, recorded_bytes
from npucompose.serving.vllm.recipe import read

RECIPE = """\
# @package _global_
# recorded
defaults:
  - override /mode: reduce-overhead
  - override /shapes: auto
extensions:
  vllm: {sizes: [2, 4]}
"""


class Untouched:
    """A pass manager of an engine that has nothing to lower; it knows how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def lower(self, graph: fx.Graph) -> None:
        self.asked += 1


class Caught:
    """What Dynamo hands a backend: the graph with a symbol for the rows, its inputs, and how they are called."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend=self._catch, dynamic=True, fullgraph=True)(torch.rand(rows, 4))

    def _catch(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graph = graph
        self.inputs = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]

        def call(*args: Any) -> Any:
            self.calls.append(args)
            return graph(*args)

        return call

    def args(self, x: torch.Tensor) -> tuple[Any, ...]:
        """Those of the graph for other rows: the number among them is a number of rows."""
        first = self.calls[0]
        rows = next(arg for arg in first if type(arg) is int)
        return tuple(len(x) if type(arg) is int else x if arg.shape == (rows, 4) else arg.detach() for arg in first)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).requires_grad_(False)


@pytest.fixture
def piece(model: nn.Module, said: list[str], tmp_path: Path) -> tuple[Piece, Caught]:
    place = tmp_path / "recipe.yaml"
    place.write_text(RECIPE)
    recipe, caught, manager = read(str(place)), Caught(model, 5), Untouched()
    with torch.no_grad():
        made = compiled(
            recipe, caught.graph, caught.inputs, {}, manager, Unrecorded(recipe.sizes, "as it is", said.append)
        )
    assert manager.asked == 1
    return made, caught


def test_sizes_of_the_recipe_are_recorded_once_and_any_other_runs_and_is_said(
    piece: tuple[Piece, Caught], model: nn.Module, said: list[str]
) -> None:
    call, caught = piece
    with torch.no_grad():
        for rows in (2, 4, 3, 2, 4, 3, 7, 2):
            x = torch.rand(rows, 4)
            (result,) = call(*caught.args(x))
            assert torch.equal(result, model(x))
    assert len(call.recordings()) == 2
    assert [words.partition(" tokens")[0] for words in said] == ["A step of 3", "A step of 7"]


def test_memory_that_recordings_share_counts_once() -> None:
    one = {"slabs": [(1, 100)], "output_bytes": 8, "unplanned_bytes": 0}
    other = {"slabs": [(1, 100), (2, 50)], "output_bytes": 8, "unplanned_bytes": 2}
    assert recorded_bytes([one, other]) == 100 + 50 + 8 + 8 + 2


def test_results_that_an_engine_still_holds_are_left_alone(piece: tuple[Piece, Caught], model: nn.Module) -> None:
    call, caught = piece
    given = [torch.rand(2, 4) for _ in range(4)]
    with torch.no_grad():
        held = [call(*caught.args(x))[0] for x in given]
        assert all(torch.equal(result, model(x)) for result, x in zip(held, given, strict=True))


def test_new_weights_count_in_place_and_elsewhere(piece: tuple[Piece, Caught], model: nn.Module) -> None:
    call, caught = piece
    x = torch.rand(2, 4)
    with torch.no_grad():
        for _ in range(3):
            call(*caught.args(x))
        model[0].weight.mul_(2)
        assert torch.equal(call(*caught.args(x))[0], model(x))
        moved = tuple(
            arg.clone() + 1 if isinstance(arg, torch.Tensor) and arg is not x else arg for arg in caught.args(x)
        )
        for _ in range(2):
            assert torch.equal(call(*moved)[0], caught.graph(*moved)[0])


@pytest.mark.skipif(not hasattr(functorch_config, "force_autograd_cache"), reason="came with torch 2.9")
def test_the_backend_is_called_where_somebody_asks_for_aotautograds_cache(model: nn.Module) -> None:
    torch._dynamo.reset()
    x = torch.rand(3, 4)
    with torch.no_grad(), functorch_config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        assert torch.equal(torch.compile(model, backend=npucompose.backend("mode=reduce-overhead"))(x), model(x))


class Counting(CustomGraphPass):
    """A pass that somebody has set in Inductor's hook."""

    def __init__(self) -> None:
        self.called = 0

    def __call__(self, graph: fx.Graph) -> None:
        self.called += 1

    def uuid(self) -> str:
        return f"counting {id(self)}"


@pytest.mark.slow
def test_inductors_hook_keeps_the_pass_manager_that_an_engine_has_set(model: nn.Module) -> None:
    torch._dynamo.reset()
    manager, backend = Counting(), npucompose.backend("mode=max-autotune", "inductor.freezing=false")
    with torch.no_grad(), inductor_config.patch(post_grad_custom_post_pass=manager, fx_graph_cache=False):
        torch.compile(model, backend=backend)(torch.rand(3, 4))
    assert manager.called == 1
