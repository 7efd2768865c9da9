"""200 shapes called twice: what every setting costs against eager, captures included, compilation told apart.

    python benchmarks/shapes.py [--models wide,block,mlp] [--rounds 3] [--order rounds|pairs]

Eager and the compiled model take turns shape by shape, on one thread; times are the thread's own, so that other work on
the machine counts as little as it can. A call in which torch compiles is left out of the ratio and its time stands in a
column of its own. `torch eager` is torch.compile with torch's backend "eager": what the guards alone cost.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import nn

import npucompose
from npucompose.results.measured import CallStatistics

SHAPES = 200
LIMIT = "compiler.debug.aclgraph.static_capture_size_limit"
_now = time.thread_time


class Block(nn.Module):
    """Attention and a feed-forward part, as a decoder has them."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "wide": (lambda: Block(768, 12), lambda n: torch.randn(1, n, 768)),
    "block": (Block, lambda n: torch.randn(1, n, 256)),
    "mlp": (_mlp, lambda n: torch.randn(n, 256)),
}


@frozen(kw_only=True)
class Cost:
    ratio: float
    """Time of the calls in which nothing was compiled, over eager's for the same shapes."""
    compile_s: float
    eager_us: float
    told: CallStatistics | None


def _compiled(model: nn.Module, front: str, overrides: Sequence[str]) -> tuple[Callable[..., Any], Any]:
    """(what is called, the backend that counts; None for torch's own)."""
    if front == "torch eager":
        return torch.compile(model, backend="eager"), None
    if front == "npucompose.compile":
        made = npucompose.compile(model, *overrides)
        return made, made.materialised.backend
    backend = npucompose.backend(*overrides)
    return torch.compile(model, backend=backend), backend


def _order(order: str, inputs: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Each shape twice: all of them and all again, or each one twice in a row."""
    return itertools.chain(inputs, inputs) if order == "rounds" else (x for x in inputs for _ in range(2))


def cost(name: str, front: str, overrides: Sequence[str], order: str) -> Cost:
    torch._dynamo.reset()
    make, input_of = MODELS[name]
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    inputs = [input_of(n) for n in range(2, 2 + SHAPES)]
    call, backend = _compiled(model, front, overrides)
    eager_s = called_s = compile_s = 0.0
    counted = torch._dynamo.utils.counters["stats"]
    for x in inputs:
        model(x)
    for x in _order(order, inputs):
        known = counted["unique_graphs"]
        begun = _now()
        expected = model(x)
        between = _now()
        got = call(x)
        ended = _now()
        if counted["unique_graphs"] > known:
            compile_s += ended - between
        else:
            eager_s, called_s = eager_s + between - begun, called_s + ended - between
        assert torch.equal(got, expected), f"{name}, {front}, {overrides}: wrong results for {tuple(x.shape)}"
    return Cost(
        ratio=called_s / eager_s,
        compile_s=compile_s,
        eager_us=eager_s / (2 * SHAPES) * 1e6,
        told=None if backend is None else backend.statistics,
    )


def settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(front, overrides): every one that has a say in which signatures are recorded."""
    yield "torch eager", ()
    for front in ("torch.compile", "npucompose.compile"):
        for full, limit in itertools.product(("eager", "replace"), (None, 8, 256)):
            yield front, (f"target.when_full={full}", *(() if limit is None else (f"{LIMIT}={limit}",)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3, help="each setting so often; the median ratio comes first")
    parser.add_argument("--order", choices=("rounds", "pairs"), default="rounds")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in asked.models.split(","):
        for front, overrides in settings():
            with torch.no_grad():
                found = sorted(
                    (cost(name, front, overrides, asked.order) for _ in range(asked.rounds)), key=lambda one: one.ratio
                )
            one = found[len(found) // 2]
            ratios = " ".join(f"{each.ratio:.3f}" for each in found)
            words = " ".join(override.split(".")[-1] for override in overrides)
            counts = (
                ""
                if one.told is None
                else (
                    f"{one.told.hits} replayed, {one.told.captures} recorded, "
                    f"{one.told.replacements} in another's place, {one.told.eager} without"
                )
            )
            print(
                f"{name:6} {front:18} {words:55} x{one.ratio:.3f} of {one.eager_us:.0f} us ({ratios}) "
                f"· compiling {one.compile_s:.1f} s · {counts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
