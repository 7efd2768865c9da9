"""What a person can do wrong to a recording, and what the machine can: an error in words, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from npucompose.errors import CaptureError, SignatureError
from npucompose.targets.cpu.captured_graph import CapturedGraph
from tests.targets.capturing import traced

EXECUTORS = ("native", "torchscript", "python")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_input_on_another_device_is_refused_at_replay_and_nothing_is_done(executor: Any) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    captured = CapturedGraph.capture(traced(lambda x, y: (x @ y,), x, y), [x, y], executor=executor)
    (before,) = captured.replay(x, y)
    kept = before.clone()
    with pytest.raises(SignatureError, match=r"got .*torch\.float32\[4,4\]@meta"):
        captured.replay(x, y.to("meta"))
    assert torch.equal(before, kept)
    assert torch.equal(captured.replay(x, y)[0], x @ y)


def test_an_input_on_another_device_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    with pytest.raises(CaptureError, match=r"input 0 .* is on meta; this target captures CPU graphs only"):
        CapturedGraph.capture(traced(lambda x: (x @ x,), x), [x.to("meta")])


def test_a_graph_that_makes_something_on_another_device_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    module = traced(lambda x: (x.to("meta") * 2,), x)
    with pytest.raises(CaptureError, match="it works on meta"):
        CapturedGraph.capture(module, [x])


OUT_OF_MEMORY = """
import gc, resource, torch
from npucompose.errors import CaptureError
from npucompose.targets.cpu.captured_graph import CapturedGraph
from npucompose.targets.cpu.graph_cache import GraphCache
from tests.targets.capturing import request, traced

SIZE = 1 << 26  # numbers: a quarter of a gigabyte for each buffer
def model(x): return (((x * 2).exp() + x).sin() * x, x + 1)
module = traced(model, torch.randn(8))
x = torch.randn(SIZE)
seed = torch.get_rng_state()
CapturedGraph.capture(module, [torch.randn(8)], executor="torchscript")
used = lambda: int(open("/proc/self/statm").read().split()[0]) * 4096
cache = GraphCache(request(module), capture_limit=4, executor="torchscript")
gc.collect()
free = used()
resource.setrlimit(resource.RLIMIT_AS, (free + 5 * SIZE, resource.RLIM_INFINITY))
for attempt in range(3):
    try:
        cache([x])
    except CaptureError as error:
        print("refused:", error)
gc.collect()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("kept", max(0, used() - free) // (1 << 20), "MB", len(cache.captured), gc.isenabled())
small = torch.randn(8)
print(torch.equal(cache([small])[0], model(small)[0]))
"""


def test_a_capture_without_memory_says_so_and_keeps_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *refusals, kept, right = done.stdout.splitlines()
    assert len(refusals) == 3, done.stdout
    assert all(line.startswith("refused: cannot capture") and "memory" in line for line in refusals), done.stdout
    _, megabytes, _, recordings, collects = kept.split()
    assert int(megabytes) < 64
    assert (recordings, collects, right) == ("0", "True", "True")
