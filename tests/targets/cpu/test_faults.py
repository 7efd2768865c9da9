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


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("static", [False, True])
def test_an_input_whose_memory_was_freed_or_cut_short_is_refused_each_time(executor: Any, static: bool) -> None:
    """Eager reads beyond the end of such a tensor; a recording, which may have known it before, does not."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, x.sin() + y

    x, y = torch.randn(64, 64), torch.randn(64, 64)
    fixed = frozenset({1} if static else ())
    captured = CapturedGraph.capture(traced(function, x, y), [x, y], executor=executor, static=fixed)
    kept = [out.clone() for out in captured.replay(x, y)]
    before = y.untyped_storage().nbytes()
    for nbytes in (0, 100, before - 1):
        other = torch.randn(64, 64)
        given = y if static else other
        given.untyped_storage().resize_(nbytes)
        for _ in range(3):
            with pytest.raises(SignatureError, match=f"of which its memory holds {nbytes} bytes"):
                captured.replay(x, given)
            if not static:
                assert all(map(torch.equal, captured.replay(x, y), kept))


def test_an_input_that_is_copied_in_is_refused_when_its_memory_is_gone() -> None:
    """The portable replayer copies a small input with many views; the copy would read what is not there."""
    x = torch.randn(16, 4)
    module = traced(lambda x: tuple(row * 2 for row in x.unbind()), x)
    captured = CapturedGraph.capture(module, [x], executor="torchscript")
    captured.replay(torch.randn(16, 4))
    assert captured._inputs._copies
    gone = torch.randn(16, 4)
    gone.untyped_storage().resize_(64)
    with pytest.raises(SignatureError, match="of which its memory holds 64 bytes"):
        captured.replay(gone)
    assert torch.equal(captured.replay(x)[3], x[3] * 2)


def test_an_input_whose_memory_was_freed_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    module = traced(lambda x: (x @ x,), x)
    x.untyped_storage().resize_(32)
    with pytest.raises(CaptureError, match=r"input 0 \(torch.float32\[4,4\]\) has 32 bytes of memory: it was freed"):
        CapturedGraph.capture(module, [x])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_input_that_was_resized_or_laid_out_anew_is_refused(executor: Any) -> None:
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    captured = CapturedGraph.capture(traced(lambda x, y: (x @ y,), x, y), [x, y], executor=executor)
    kept = captured.replay(x, y)[0].clone()
    for wrong in (torch.randn(4, 6).resize_(2, 6), torch.randn(6, 4).t(), torch.randn(4, 6).t_().t_()[:, :5]):
        with pytest.raises(SignatureError, match=r"captured for \('torch.float32\[4,6\]@cpu', .*got "):
            captured.replay(wrong, y)
        assert torch.equal(captured.replay(x, y)[0], kept)


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
