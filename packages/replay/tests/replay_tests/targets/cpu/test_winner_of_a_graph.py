"""mode=max-autotune keeps a graph unfused where that is faster, remembers it, and says what won and by how much."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose.errors import NpuComposeError
from npucompose.results.graphs import Winner
from npucompose_replay.front import contest
from npucompose_replay.front.contest import FUSED, UNFUSED
from npucompose_replay.inductor import through as inductor
from npucompose_replay.inductor import unfused

MODE = ("mode=max-autotune", "inductor.max_autotune=null")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With the native replayer that is built already."""
    from npucompose_replay.executor import build

    build.load()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Norm(nn.Module):
    """What Inductor has taken apart (a layer norm), a frozen weight, a buffer that each call writes."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.up(x))
        self.seen.add_(y.sum(0))
        return torch.relu(y) + self.seen


def faster(monkeypatch: pytest.MonkeyPatch, winner: str) -> list[Sequence[Any]]:
    """Contests end so, whatever the clock says; the inputs of each."""
    held: list[Sequence[Any]] = []

    def in_turns(ways: Mapping[str, Any], inputs: Sequence[Any], *_: Any) -> tuple[dict[str, list[float]], float]:
        held.append(inputs)
        return {name: [10.0 if name == winner else 20.0] * 8 for name in ways}, 1.0

    monkeypatch.setattr(contest, "_in_turns", in_turns)
    return held


def winner_of(fast: Any) -> Winner:
    (compilation,) = fast.materialised.backend.compilations
    (found,) = [one for key, one in compilation.winners.items() if key.startswith("graph_")]
    return found


def ways(fast: Any) -> Mapping[str, int]:
    (compilation,) = fast.materialised.backend.compilations
    (one,) = compilation.lowered.captured
    return one.facts()["ways"]


def agree(fast: Any, module: Norm, reference: nn.Module, calls: int = 3) -> None:
    with torch.no_grad():
        for _ in range(calls):
            x = torch.randn(6, 16)
            torch.testing.assert_close(fast(x), reference(x))
            torch.testing.assert_close(module.seen, reference.get_buffer("seen"))


def fresh() -> tuple[Norm, nn.Module, Any]:
    torch._dynamo.reset()
    module = Norm().eval()
    reference = copy.deepcopy(module)
    return module, reference, npucompose.compile(module, *MODE)


@pytest.mark.parametrize("winner", [FUSED, UNFUSED])
def test_the_faster_of_fused_and_unfused_is_recorded_and_the_next_process_knows_it(
    monkeypatch: pytest.MonkeyPatch, winner: str
):
    held = faster(monkeypatch, winner)
    module, reference, fast = fresh()
    agree(fast, module, reference)
    found = winner_of(fast)
    assert (found.winner, found.by, found.gain) == (winner, "measured", (2.0, 2.0))
    assert found.max_abs_err is not None
    assert ("generated" in ways(fast)) is (winner == FUSED)
    assert len(held) == 1

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is remembered")

    where, what = (inductor, "compile_fx_inner") if winner == UNFUSED else (unfused, "unfused")
    monkeypatch.setattr(where, what, refused)
    again, reference, fast = fresh()
    agree(fast, again, reference)
    assert (winner_of(fast).winner, winner_of(fast).by) == (winner, "remembered")
    assert len(held) == 1


@pytest.mark.slow
def test_a_handle_is_of_what_won(monkeypatch: pytest.MonkeyPatch):
    faster(monkeypatch, UNFUSED)
    module, reference, fast = fresh()
    with torch.no_grad():
        x = torch.randn(6, 16)
        handle = fast.detach(x, outputs="keep")
        reference(x)
        torch.testing.assert_close(handle(x), reference(x))
        assert "generated" not in handle.captured.facts()["ways"]
    torch.testing.assert_close(module.seen, reference.get_buffer("seen"))


@pytest.mark.slow
def test_each_signature_of_a_graph_follows_the_first_one(monkeypatch: pytest.MonkeyPatch):
    held = faster(monkeypatch, UNFUSED)
    module = Norm().eval()
    reference = copy.deepcopy(module)
    fast = npucompose.compile(module, *MODE, "shapes=dynamic", "target.when_new=at_once")
    with torch.no_grad():
        for rows in (5, 6, 5, 6):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(fast(x), reference(x))
    (compilation,) = fast.materialised.backend.compilations
    assert [one.facts()["ways"].get("generated", 0) for one in compilation.lowered.captured] == [0, 0]
    assert len(held) == 1


@pytest.mark.slow
def test_a_pinned_graph_is_computed_so_and_one_that_cannot_be_is_refused():
    module, reference, fast = fresh()
    agree(fast, module, reference, calls=1)
    key = winner_of(fast).key
    for winner in (FUSED, UNFUSED):
        torch._dynamo.reset()
        again = copy.deepcopy(reference)
        fast = npucompose.compile(again, *MODE, f"target.kernels={{{key}: {winner}}}")
        agree(fast, again, copy.deepcopy(again), calls=1)  # type: ignore[arg-type]
        assert (winner_of(fast).winner, winner_of(fast).by) == (winner, "pinned")
        assert ("generated" in ways(fast)) is (winner == FUSED)
    torch._dynamo.reset()
    fast = npucompose.compile(Norm().eval(), *MODE, f"target.kernels={{{key}: tpu}}")
    with (
        torch.no_grad(),
        pytest.raises(NpuComposeError, match=rf"{key}: tpu cannot compute this here"),
    ):
        fast(torch.randn(6, 16))
