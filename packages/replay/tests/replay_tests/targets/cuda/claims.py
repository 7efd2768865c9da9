"""What is claimed of a device that captures: functions of a target, so that the CPU can prove that they can be run.

Each raises AssertionError where the claim does not hold, and returns what was found, plain JSON.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import npucompose
from npucompose.api import checked
from npucompose.compose.comparison import every_step
from npucompose.compose.session import Session
from npucompose.errors import NpuComposeError
from npucompose.measure.numerics import compare
from npucompose.measure.timing import Samples
from npucompose.models.inputs import Bound
from npucompose.npu.capture.pool import PoolRules, requests_of, reserved
from npucompose_replay.front.detached import DetachedHandle

ROOT = Path(__file__).resolve().parents[3]
MODELS = {
    "tiny_ops": "[]",
    "mlp": "[dead_code,cse]",
    "gpt_decode": "[]",
    "moe_shared_expert": "stream_plan",
    "parallel_branches": "stream_plan",
}
"""{built-in model: passes}; of a plan that is found each is applied, whether it pays or not."""
TIMED = ("tiny_ops", "gpt_decode", "moe_shared_expert", "gpt_prefill")
"""Models that are timed; those of extensions need an installed package."""
Found = dict[str, Any]
RECORDED = ("reduce-overhead", "max-autotune")
"""The modes that record: eager's kernels, and Inductor's."""


def agrees(target: str, model: str, passes: str, mode: str = "reduce-overhead", *more: str) -> Found:
    """Every step of a model equals eager, through torch.compile and by the detached handle; bit for bit where eager's
    own kernels are recorded."""
    said = [f"target={target}", f"mode={mode}", f"model={model}", f"passes={passes}", "streams.min_gain=0", *more]
    session = Session(checked(said))
    found = every_step(session, lambda _: None).numerics
    assert found.passed, found.problems
    assert found.bitwise or mode == "max-autotune"
    assert session.detached is not None, session.why_attached
    recordings = session.materialised.backend.recordings()
    return {
        "bitwise": found.bitwise,
        "max_abs_err": found.max_abs_err,
        "kernels": sum(one["kernels"] for one in recordings),
        "streams": max((len(set(c.plan.nodes.values())) for c in session.compilations if c.plan.nodes), default=1),
    }


def random_numbers_go_on(target: str, mode: str = "reduce-overhead") -> Found:
    """A recording that draws gives other numbers in each replay, and the same after the same seed: eager's, where it is
    eager's kernels that are recorded."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True) + 1

    compiled, x = _compiled(target, model, mode=mode), torch.ones(64, 64, device=target)
    with torch.no_grad():
        compiled(x)
        first, second = compiled(x).clone(), compiled(x).clone()
        assert not torch.equal(first, second)
        torch.manual_seed(3)
        wanted = model(x)
        seeded = list[torch.Tensor]()
        for _ in range(2):
            torch.manual_seed(3)
            seeded.append(compiled(x).clone())
        assert torch.equal(*seeded)
        return {"as_eager_after_a_seed": torch.equal(seeded[0], wanted)}


def results_live_on(target: str, mode: str = "reduce-overhead") -> Found:
    """Results that are held keep their bits, from the first call on; a handle overwrites only what it lent."""
    linear = torch.nn.Linear(16, 16, device=target).requires_grad_(False)

    def block(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        if y.sum().item() > 1e9:  # a graph break: one recording serves all places
            raise ValueError
        return y

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([block(x), block(x + 1), block(x + 2)])

    with torch.no_grad():
        xs = [torch.randn(4, 16, device=target) for _ in range(8)]
        one = _compiled(target, linear, mode=mode)
        three = _compiled(target, model, "compile.fullgraph=false", mode=mode)
        for call, reference in ((one, linear), (three, model)):
            kept = [(x, call(x).view(-1, 16)[:, 1:]) for x in xs]
            assert all(_same(y, reference(x).view(-1, 16)[:, 1:], mode) for x, y in kept)
        made = npucompose.compile(linear, f"target={target}", f"mode={mode}")
        handle = made.detach(xs[0])
        mine, lent = made(xs[1]), [handle(xs[2])]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lent += [handle(x) for x in xs[3:5]]
        assert _same(mine, linear(xs[1]), mode)
        assert _same(lent[-1], linear(xs[4]), mode)
        return {"warnings": len(said), "overwritten": not _same(lent[0], linear(xs[2]), mode)}


def operators_run_once(target: str, mode: str = "reduce-overhead", *, unsafe: bool = False) -> Found:
    """A custom operator that counts on the device counts calls; what it counts on the host is noted, and is as much
    where its author has tagged it `cudagraph_unsafe`."""
    on_host, on_device = [0], torch.zeros(4, device=target)

    def count(x: torch.Tensor) -> torch.Tensor:
        on_host[0] += 1
        return x + on_device.add_(1)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.npucompose_claims.count(x).abs()

    with torch.library._scoped_library("npucompose_claims", "FRAGMENT") as library, torch.no_grad():
        library.define("count(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,) if unsafe else ())
        library.impl("count", count, target.upper())
        library.impl("count", torch.empty_like, "Meta")
        compiled, x = _compiled(target, model, mode=mode), torch.ones(4, device=target)
        for call in (1.0, 2.0, 3.0, 4.0):
            assert compiled(x).tolist() == [call + 1] * 4, f"call {call}"
            assert on_device.tolist() == [call] * 4, f"call {call}"
    assert on_host[0] == 4 or not unsafe, f"{on_host[0]} calls of the host code"
    return {"calls": 4, "calls_of_the_host_code": on_host[0]}


def signatures_take_turns(target: str, mode: str = "reduce-overhead") -> Found:
    """Two shapes of one graph, in turns, share memory and agree with eager."""

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).relu() @ w).softmax(-1)

    compiled, w = _compiled(target, model, "shapes=dynamic", mode=mode), torch.randn(32, 32, device=target)
    with torch.no_grad():
        for rows in (4, 8, 4, 16, 8, 4):
            x = torch.randn(rows, 32, device=target)
            assert _same(compiled(x, w), model(x, w), mode), f"{rows} rows"
    return {}


def what_the_host_holds_counts(target: str, mode: str = "reduce-overhead") -> Found:
    """A number in a tensor on the host is read in every call."""

    def model(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x + 1) * (scale + 1)

    compiled, x = _compiled(target, model, mode=mode), torch.randn(8, device=target)
    with torch.no_grad():
        for number in range(5):
            scale = torch.tensor(float(number))
            assert _same(compiled(x, scale), model(x, scale), mode), f"scale {number}"
    return {}


def weights_are_followed(target: str) -> Found:
    """A frozen weight that is written to counts in the next call, with one warning; a handle refuses its call."""
    linear = torch.nn.Linear(16, 16, device=target).requires_grad_(False)
    compiled = npucompose.compile(linear, f"target={target}", "mode=max-autotune")
    x = torch.randn(4, 16, device=target)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        handle = compiled.detach(x)
        for _ in range(3):
            assert _same(compiled(x), linear(x), "max-autotune")
        linear.weight.mul_(2)
        refused = ""
        try:
            handle(x)
        except NpuComposeError as error:
            refused = str(error)
        assert "weight" in refused, "the handle was called with the weights of before"
        for _ in range(3):
            assert _same(compiled(x), linear(x), "max-autotune")
    return {"warnings": sum("weight" in str(one.message) for one in said)}


def torchs_own_graphs_beside(target: str) -> Found:
    """A recording keeps its bits while torch records CUDA graphs of its own and memory goes back to the device."""

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).relu() @ w.t()).sum(-1)

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sigmoid() @ w.t()).abs()

    x, w = torch.randn(64, 8192, device=target), torch.randn(8192, 64, device=target)
    with torch.no_grad():
        handle = npucompose.compile(ours, f"target={target}", "mode=reduce-overhead").detach(x, w)
        wanted = [handle(x, w).clone() for _ in range(3)][-1]
        assert torch.equal(wanted, ours(x, w))
        other = torch.compile(theirs, mode="reduce-overhead")
        for _ in range(4):
            other(x, w)
        if target == "cuda":
            torch.cuda.empty_cache()
        held = [torch.full((1 << 20,), 3.0, device=target) for _ in range(64)]
        for _ in range(3):
            assert torch.equal(handle(x, w), wanted)
        assert all((one == 3.0).all() for one in held), "a replay wrote to memory of others"
    return {}


def ways_side_by_side(target: str, model: str, rounds: int = 200, *more: str) -> Found:
    """Microseconds of one call of a model: eager, both modes of ours that record, both of torch.compile's.

    Before it is timed each is called four times and its last results are compared with eager's.
    """
    live = Session(checked([f"target={target}", "mode=eager", f"model={model}", *more]))
    bound, start = live.bind(live.inputs(0)), copy.deepcopy(live.reference)
    with torch.no_grad():
        wanted = copy.deepcopy(start)(*bound.args, **bound.kwargs)
        calls: dict[str, Callable[[], Any]] = {}
        found: Found = {}
        for name, make in _ways(target).items():
            own = copy.deepcopy(start)
            begun = time.perf_counter()
            way = make(own, bound)
            for _ in range(4):
                _rewind(own, start)
                result = way(*bound.args, **bound.kwargs)
            compared = compare(wanted, result)
            found[name] = {"made_s": time.perf_counter() - begun, "max_abs_err": compared.max_abs_err}
            assert compared.passed, (name, compared.problems)
            calls[name] = lambda way=way: way(*bound.args, **bound.kwargs)
            if target == "cuda" and isinstance(way, DetachedHandle):
                found[f"{name}, graph alone"] = {}
                calls[f"{name}, graph alone"] = way.captured._giving.graph.replay  # type: ignore[attr-defined]
        for name, times in timed(calls, target, rounds).items():
            found[name] |= times
    return found


def _ways(target: str) -> dict[str, Callable[[torch.nn.Module, Bound], Callable[..., Any]]]:
    def detached(mode: str) -> Callable[[torch.nn.Module, Bound], Callable[..., Any]]:
        return lambda module, bound: npucompose.compile(module, f"target={target}", f"mode={mode}").detach(
            *bound.args, **bound.kwargs
        )

    return {
        "eager": lambda module, _: module,
        "npucompose reduce-overhead": detached("reduce-overhead"),
        "npucompose max-autotune, not detached": lambda module, _: npucompose.compile(
            module, f"target={target}", "mode=max-autotune"
        ),
        "npucompose max-autotune": detached("max-autotune"),
        "torch reduce-overhead": lambda module, _: torch.compile(module, mode="reduce-overhead"),
        "torch max-autotune": lambda module, _: torch.compile(module, mode="max-autotune"),
    }


def _rewind(module: torch.nn.Module, start: torch.nn.Module) -> None:
    """Its buffers as they were; those that have not changed are not written: they may be frozen."""
    for buffer, value in zip(module.buffers(), start.buffers(), strict=True):
        if not torch.equal(buffer, value):
            buffer.copy_(value)


def small_kernels(target: str, rounds: int = 200) -> Found:
    """Microseconds of forty small kernels: eager, ours, torch's own reduce-overhead; the same results first."""

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (torch.mm(x, w) + torch.abs(x)).relu() * 0.05
        return x

    fast = npucompose.compile(model, f"target={target}", "mode=reduce-overhead")
    theirs = torch.compile(model, mode="reduce-overhead")
    x, w = torch.randn(64, 64, device=target), torch.randn(64, 64, device=target)
    with torch.no_grad():
        calls: dict[str, Callable[..., Any]] = {
            "eager": model,
            "npucompose": fast,
            "npucompose, detached": fast.detach(x, w),
        }
        for name, call in calls.items():
            assert torch.equal(call(x, w), model(x, w)), name
        calls["torch reduce-overhead"] = theirs
        return timed({name: lambda call=call: call(x, w) for name, call in calls.items()}, target, rounds)


def decoding(target: str, rounds: int = 200, *more: str) -> Found:
    """Microseconds of one step of gpt_decode."""
    session = Session(checked([f"target={target}", "mode=reduce-overhead", "model=gpt_decode", *more]))
    assert every_step(session, lambda _: None).numerics.bitwise
    inputs = tuple(session.inputs(0).values())
    session.rewind()
    calls = {"eager": session.reference, "npucompose": session.compiled, "npucompose, detached": session.detached}
    with torch.no_grad():
        bound = {name: lambda call=call: call(*inputs) for name, call in calls.items() if call is not None}
        return timed(bound, target, rounds)


def a_whole_job(target: str, folder: Path, *more: str) -> Found:
    """The command line in workers of its own, three modes against one another."""
    said = ["mode=reduce-overhead", "model=gpt_decode", "benchmark.against=[max-autotune]", *more]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), f"target={target}", "hydra.run.dir=out", *said],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    modes = json.loads((folder / "out" / "report.json").read_text())["stages"]["modes"]
    assert all(one["passed"] for one in modes["modes"]), modes
    times = {one["mode"]: one["timing"]["p50_us"] for one in modes["modes"]}
    return {"fastest": modes["fastest"], "won": modes["won"], "p50_us": times}


def pools_are_foretold(target: str, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)) -> Found:
    """torch's allocator holds what was foretold, within 1 %, for captures of eight sizes, in one pool and apart.

    Where there is no GPU the same is asked of a pool that was given the same requests twice: its bytes are no less.
    """
    graph_modules = [make_fx(_chain, tracing_mode="fake")(torch.ones(1024 * n, 512, device=target)) for n in sizes]
    asked = [requests_of(one.graph) for one in reversed(graph_modules)]
    rules = PoolRules()
    found: Found = {"shared": reserved(asked, rules, shared=True), "apart": reserved(asked, rules, shared=False)}
    if target != "cuda":
        assert found["shared"] <= reserved([*asked, *asked], rules, shared=True)
        return found
    for kind, pool in (("shared", torch.cuda.graph_pool_handle()), ("apart", None)):
        graphs, kept = list[Any](), list[Any]()
        for n, graph_module in zip(reversed(sizes), reversed(graph_modules), strict=True):
            x = torch.ones(1024 * n, 512, device=target)
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], pool=pool):
                kept.append(graph_module(x))
        own = {graph.pool() for graph in graphs}
        segments = (one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) in own)
        found[f"{kind} then held"] = sum(one["total_size"] for one in segments)
        assert abs(found[kind] - found[f"{kind} then held"]) <= 0.01 * found[f"{kind} then held"], found
    return found


def _chain(x: torch.Tensor) -> torch.Tensor:
    """No product: a library's workspace is nobody's request."""
    y = torch.relu(x)
    return torch.softmax(y * 2 + x, -1) - y.sum(-1, keepdim=True)


def timed(calls: Mapping[str, Callable[[], Any]], target: str, rounds: int) -> Found:
    """{name: p50, quartiles} of calls in turns: by CUDA events on a GPU, by the clock elsewhere."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-10, rounds):
        for name, call in calls.items():
            us = _by_events(call) if target == "cuda" else _by_clock(call)
            if number >= 0:
                taken[name].append(us)
    found = {name: Samples(us=us) for name, us in taken.items()}
    return {
        name: {"p25_us": s.percentile(25), "p50_us": s.p50, "p75_us": s.percentile(75), "calls": len(s.us)}
        for name, s in found.items()
    }


def _by_events(call: Callable[[], Any]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def _by_clock(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6


def _same(a: torch.Tensor, b: torch.Tensor, mode: str) -> bool:
    """Bit for bit, or within the tolerances of torch.testing where kernels are fused."""
    return torch.equal(a, b) if mode == "reduce-overhead" else torch.allclose(a, b, rtol=1.3e-6, atol=1e-5)


def _compiled(target: str, model: Callable[..., Any], *said: str, mode: str = "reduce-overhead") -> Callable[..., Any]:
    made = npucompose.materialize(f"target={target}", f"mode={mode}", *said)
    return torch.compile(model, backend=made.backend, **made.compile_keywords)
