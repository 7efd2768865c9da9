"""What compiling has freed goes back to the system, until weights lie on huge pages."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

import pytest
import torch

import npucompose
from npucompose.replay import captured_graph
from npucompose.replay.memory import freed_memory
from npucompose.replay.memory.freed_memory import hand_back

PIECE, PIECES = 1024, 64 << 10
FUSED = ("mode=max-autotune", "inductor.max_autotune=false", "target.measuring=never")
glibc = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="only glibc has it"
)


@pytest.fixture(autouse=True)
def moved(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What stands for `MOVED`; other tests of this process have moved weights."""
    event = threading.Event()
    monkeypatch.setattr(freed_memory, "MOVED", event)
    return event


def resident() -> int:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def leave_free_memory_behind() -> None:
    """Freed from the first on, with one piece at the end that is kept: the heap cannot shrink by itself."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [libc.malloc(PIECE) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[:-1]:
        libc.free(piece)


@glibc
def test_free_memory_is_handed_back_until_weights_lie_on_huge_pages(moved: threading.Event) -> None:
    hand_back()
    before = resident()
    leave_free_memory_behind()
    assert resident() > before + PIECE * PIECES // 2
    moved.set()
    assert not hand_back()
    assert resident() > before + PIECE * PIECES // 2
    moved.clear()
    assert hand_back()
    assert resident() < before + PIECE * PIECES // 4


def test_another_c_library_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: object())
    assert not hand_back()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not hand_back()


def test_it_is_handed_back_behind_a_compilation_and_behind_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(freed_memory, "hand_back", lambda: called.append("compiled"))
    monkeypatch.setattr(captured_graph, "hand_back", lambda: called.append("recorded"))
    monkeypatch.setattr(captured_graph, "move_to_huge_pages", lambda spans: called.append("weights moved"))
    module, x = torch.nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)
    recording = ["recorded", "weights moved"]
    with torch.no_grad():
        npucompose.compile(module, "mode=reduce-overhead")(x)
        assert called == recording
        npucompose.compile(module, *FUSED, "inductor.replay=wrapper")(x)
        assert called == [*recording, "compiled"]
        npucompose.compile(module, *FUSED)(x)
    assert called == [*recording, "compiled", "compiled", *recording]
