"""What a person can do wrong to a recording, and what the machine can: an error in words, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nursery import command

from npucompose.errors import CaptureError, SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import traced

EXECUTORS = ("native", "torchscript", "python")
OUT_OF_MEMORY = Path(__file__).with_name("out_of_memory.py")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_input_on_another_device_is_refused_at_replay_and_nothing_is_done(executor: Any) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    captured = CapturedGraph.capture(traced(lambda x, y: (x @ y,), x, y), [x, y], executor=executor)
    (before,) = captured.replay(x, y)
    kept = before.clone()
    with pytest.raises(SignatureError, match="input 1 is on meta; only tensors on cpu are taken"):
        captured.replay(x, y.to("meta"))
    assert torch.equal(before, kept)
    assert torch.equal(captured.replay(x, y)[0], x @ y)


def test_an_input_on_another_device_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    with pytest.raises(CaptureError, match="input 0 is on meta; only tensors on cpu are taken"):
        CapturedGraph.capture(traced(lambda x: (x @ x,), x), [x.to("meta")])


def test_a_graph_that_makes_something_on_another_device_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    module = traced(lambda x: (x.to("meta") * 2,), x)
    with pytest.raises(CaptureError, match="it works on meta"):
        CapturedGraph.capture(module, [x])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("left", [0, 100, 16383])
def test_an_input_whose_memory_was_freed_or_cut_short_is_refused_each_time(
    executor: Any, static: bool, left: int
) -> None:
    """Eager reads beyond the end of such a tensor; a recording, which may have known it before, does not."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, x.sin() + y

    x, y = torch.randn(64, 64), torch.randn(64, 64)
    fixed = frozenset({1} if static else ())
    captured = CapturedGraph.capture(traced(function, x, y), [x, y], executor=executor, static=fixed)
    kept = [out.clone() for out in captured.replay(x, y)]
    given = y if static else torch.randn(64, 64)
    given.untyped_storage().resize_(left)
    for _ in range(3):
        with pytest.raises(SignatureError, match=f"input 1 has {left} bytes of memory where it needs 16384"):
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
    with pytest.raises(SignatureError, match="input 0 has 64 bytes of memory where it needs 256"):
        captured.replay(gone)
    assert torch.equal(captured.replay(x)[3], x[3] * 2)


def test_an_input_whose_memory_was_freed_is_refused_at_capture() -> None:
    x = torch.randn(4, 4)
    module = traced(lambda x: (x @ x,), x)
    x.untyped_storage().resize_(32)
    with pytest.raises(
        CaptureError, match=r"input 0 \(torch.float32\[4,4\]\) has 32 bytes of memory where it needs 64: it was freed"
    ):
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


@pytest.mark.parametrize("executor", ["native", pytest.param("torchscript", marks=pytest.mark.slow)])
def test_a_capture_without_memory_says_so_and_keeps_nothing_whenever_it_runs_out(executor: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command(str(OUT_OF_MEMORY), executor), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *refusals, right = done.stdout.splitlines()
    assert len(refusals) >= 3, done.stdout
    assert all(line.startswith("refused: cannot capture") and "memory" in line for line in refusals), done.stdout
    assert right.startswith("True"), done.stdout
