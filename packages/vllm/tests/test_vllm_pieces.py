"""A piece of a model as an engine calls it: which sizes are replayed, what happens to results and to weights."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("npucompose_replay", reason="pieces are recorded by it: pip install 'npucompose[replay]'")

import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.profiler import ProfilerActivity, profile

import npucompose
from npucompose_replay.front.detached import detach_call
from npucompose_vllm.pieces import PIECES, Piece, Unrecorded, compiled, foretold_bytes, recorded_bytes
from npucompose_vllm.recipe import read

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

    def __init__(self, model: nn.Module, rows: int, width: int = 4) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.width = width
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend=self._catch, dynamic=True, fullgraph=True)(torch.rand(rows, width))

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
        return tuple(
            len(x) if type(arg) is int else x if arg.shape == (rows, self.width) else arg.detach() for arg in first
        )


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).requires_grad_(False)


@pytest.fixture
def piece(model: nn.Module, said: list[str], tmp_path: Path) -> tuple[Piece, Caught]:
    return piece_of(Caught(model, 5), [2, 4], tmp_path, said)


def piece_of(caught: Caught, sizes: list[int], folder: Path, said: list[str]) -> tuple[Piece, Caught]:
    place = folder / "recipe.yaml"
    place.write_text(RECIPE.replace("[2, 4]", str(sizes)))
    recipe, manager = read(str(place)), Untouched()
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
    assert call in PIECES, "what an engine is told of memory is added up over these"


def test_a_call_that_somebody_else_makes_a_handle_of_gets_none_of_its_own(
    piece: tuple[Piece, Caught], model: nn.Module
) -> None:
    call, caught = piece
    args = caught.args(torch.rand(2, 4))
    with torch.no_grad():
        handle = detach_call(lambda: call(*args), args, {}, outputs="keep")
        assert not call._handles
        assert torch.equal(handle(*args)[0], model(next(arg for arg in args if is_input(arg))))


def slices(made: torch.Tensor, other: torch.Tensor) -> None:
    made[:, 2:] = other[:, 2:]


def slices_of_slices(made: torch.Tensor, other: torch.Tensor) -> None:
    made[1:, 2:][:, 1:] = other[1:, 3:]
    made[..., :2] = other[..., 2:]


def selects(made: torch.Tensor, other: torch.Tensor) -> None:
    made[:, 1] = other[:, 0]


def diagonals(made: torch.Tensor, other: torch.Tensor) -> None:
    made.diagonal().copy_(other.diagonal())


def strides(made: torch.Tensor, other: torch.Tensor) -> None:
    made.as_strided((2, 2), (4, 1)).mul_(other[:2, :2])


def indices(made: torch.Tensor, other: torch.Tensor) -> None:
    made[torch.tensor([0, 1])] = other[:2]


class Writes(nn.Module):
    """Writes a part of a value of its own, as attention with a latent cache puts queries and keys together."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        self.first, self.write = nn.Linear(4, 4), write

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, other = self.first(x) * 2, x.sin()
        self.write(made, other)
        x.add_(1)
        return made.cos(), other


@pytest.mark.parametrize("write", [slices, slices_of_slices, selects, diagonals, strides, indices])
def test_a_write_into_a_part_of_a_value_is_recorded(
    write: Callable[[torch.Tensor, torch.Tensor], None], said: list[str], tmp_path: Path
) -> None:
    model = Writes(write).requires_grad_(False)
    call, caught = piece_of(Caught(model, 5), [2, 4], tmp_path, said)
    with torch.no_grad():
        for rows in (2, 4, 2, 4, 2):
            x = torch.rand(rows, 4)
            given, other = x.clone(), x.clone()
            assert all(map(torch.equal, call(*caught.args(given)), model(other)))
            assert torch.equal(given, x + 1)
    assert len(call.recordings()) == 2


def is_input(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.shape == (2, 4)


def test_memory_that_recordings_share_counts_once() -> None:
    one = {"slabs": [(1, 100)], "output_bytes": 8, "unplanned_bytes": 500}
    other = {"slabs": [(1, 100), (2, 50)], "output_bytes": 8, "unplanned_bytes": 500}
    assert recorded_bytes([one, other]) == 100 + 50 + 8 + 8


def counted(call: Callable[[], object]) -> int:
    """Bytes that torch's allocator gave during the call and did not get back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
        gc.collect()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def test_the_memory_that_an_engine_is_told_is_what_the_allocator_counts(tmp_path: Path) -> None:
    """Within one percent; what the process keeps for all recordings (numbers to try kernels with) is made before."""
    sizes = [16, 32, 64, 128, 160, 192, 224, 256]

    def made() -> tuple[Piece, Caught]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.Softmax(-1))
        return piece_of(Caught(model.requires_grad_(False), 5, width=256), sizes, tmp_path, [])

    def record(call: Piece, inputs: list[tuple[Any, ...]]) -> None:
        for args in [*inputs, *inputs]:
            call(*args)

    with torch.no_grad():
        for take in (lambda work: work(), counted):
            call, caught = made()
            inputs = [caught.args(torch.rand(size, 256)) for size in reversed(sizes)]
            foretold = foretold_bytes(iter([call]), sizes)
            assert not call.recordings()
            took = take(partial(record, call, inputs))
    told = recorded_bytes(call.recordings())
    assert len(call.recordings()) == len(sizes)
    assert told == pytest.approx(took, rel=0.01)
    assert foretold == pytest.approx(took, rel=0.01), "known before anything was recorded"


def test_nothing_is_foretold_before_pieces_are_compiled() -> None:
    assert foretold_bytes([], [2, 4]) is None


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
