"""Captures with less memory than they need, one buffer more each time: `python out_of_memory.py EXECUTOR`.

Prints a line for each refusal, and at last whether the graph gives eager's numbers. What a refusal keeps ends it.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from npucompose.errors import CaptureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from replay_tests.capturing import request
from tests.graph_helpers import traced

SIZE = 1 << 23
"""Numbers: 32 megabytes for each buffer, which no malloc keeps when it is freed."""
ALL = resource.RLIM_INFINITY


def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return ((x * 2).exp() + x).sin() * x, x + 1


def memory(field: int) -> int:
    """Bytes: 0 what is reserved (a failing malloc reserves another arena, which it does not use), 5 what is used."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def main(executor: Any) -> None:
    torch.set_num_threads(1)  # OpenMP ends the process where there is no memory for its threads
    module = traced(model, torch.randn(8))
    x, small = torch.randn(SIZE), torch.randn(8)
    CapturedGraph.capture(module, [small], executor=executor)
    cache = GraphCache(request(module), capture_limit=4, executor=executor, partial="refuse")
    gc.collect()
    gc.freeze()  # each collection below looks at what came since
    free, before, buffers = memory(0), memory(5), 0.5
    while not captured(cache, x, free + int(buffers * 4 * SIZE)):
        kept = (memory(5) - before) >> 20
        assert kept < 16, f"{kept} MB kept after {buffers} buffers"
        assert not cache.captured
        assert not cache.arena.slabs()
        assert gc.isenabled()
        assert torch.equal(cache([small])[0], model(small)[0])
        cache.clear()
        cache.last = None
        buffers += 1
    print(all(map(torch.equal, cache([x]), model(x))), buffers)


def captured(cache: GraphCache, x: torch.Tensor, limit: int) -> bool:
    resource.setrlimit(resource.RLIMIT_AS, (limit, ALL))
    try:
        cache([x])
    except CaptureError as error:
        print("refused:", error)
        gc.collect()
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (ALL, ALL))
    return True


if __name__ == "__main__":
    main(sys.argv[1])
