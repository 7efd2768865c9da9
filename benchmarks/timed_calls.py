"""One build of npucompose at work for `benchmarks/price.py`, which sets PYTHONPATH to it: it answers lines.

`prepare detached gpt_decode` makes a call ready and answers how many of its kind take a batch's time; `time detached
gpt_decode 40` makes 40 calls and answers the median of one, in nanoseconds. It imports only what every commit has, and
between two lines it waits, on a core that is its own and the other build's.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

BATCH_NS = 20_000_000
WARM_UP = 20
OUTPUTS = "outputs"
"""`prepare outputs 4`: a recording of four results without a front around it."""


def prepared(way: str, what: str) -> Callable[[], Any]:
    """The call of one way to run one model; its results are dropped at once."""
    import npucompose

    if way == OUTPUTS:
        return _of_results(int(what))
    built = _built(what)
    arguments = tuple(built.inputs(0).values())
    if way == "backend":
        import torch

        call = torch.compile(built.module, backend="npucompose")
    else:
        compiled = npucompose.compile(built.module, "mode=reduce-overhead")
        call = compiled.detach(*arguments) if way == "detached" else compiled
    return lambda: call(*arguments)


def _built(model: str) -> Any:
    from npucompose import ops
    from npucompose.api import checked

    ops.define()
    made = checked([f"model={model}"]).model
    assert made is not None
    return made.build(0)


def _of_results(count: int) -> Callable[[], Any]:
    """A replay of `count` tiny kernels, each of which makes a result."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from npucompose_replay.captured_graph import CapturedGraph

    x = torch.ones(4)
    graph = make_fx(lambda x: [x + k for k in range(count)])(x)
    captured = CapturedGraph.capture(graph, [x])
    return lambda: captured.try_replay([x])


def timed(call: Callable[[], Any], calls: int) -> float:
    """The median of one call, in nanoseconds."""
    samples: list[int] = []
    for _ in range(calls):
        begun = perf_counter_ns()
        call()
        samples.append(perf_counter_ns() - begun)
    return median(samples)


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    gc.disable()
    with torch.no_grad():
        for line in sys.stdin:
            verb, way, what, *rest = line.split()
            if verb == "prepare":
                call = calls[way, what] = prepared(way, what)
                answers.write(f"{max(5, round(BATCH_NS / timed(call, WARM_UP)))}\n")
            else:
                answers.write(f"{timed(calls[way, what], int(rest[0]))}\n")
                gc.collect()


if __name__ == "__main__":
    main()
