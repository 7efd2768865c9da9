"""What compiling has freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import torch

import npucompose
from npucompose_replay.front import generated_cache
from npucompose_replay.memory import freed_memory
from npucompose_replay.memory.freed_memory import hand_back

PIECE, PIECES = 1024, 64 << 10
FUSED = ("mode=max-autotune", "inductor.max_autotune=false")
glibc = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="only glibc has it"
)


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
def test_free_memory_is_handed_back_and_weights_are_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    put_right: list[int] = []
    monkeypatch.setattr(freed_memory, "move_again", lambda: put_right.append(resident()))
    hand_back()
    before = resident()
    leave_free_memory_behind()
    assert resident() > before + PIECE * PIECES // 2
    assert hand_back()
    assert resident() < before + PIECE * PIECES // 4
    assert len(put_right) == 2
    assert put_right[1] < before + PIECE * PIECES // 4, "after the memory has gone back, which takes huge pages apart"


def test_another_c_library_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: object())
    assert not hand_back()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not hand_back()


def test_it_is_handed_back_behind_a_compilation_and_behind_its_first_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(freed_memory, "hand_back", lambda: called.append("compiled"))
    monkeypatch.setattr(generated_cache, "hand_back", lambda: called.append("recorded"))
    module = torch.nn.Linear(4, 4).requires_grad_(False)

    def called_by(*overrides: str) -> list[str]:
        """With three signatures, of one graph."""
        called.clear()
        compiled = npucompose.compile(module, "shapes=dynamic", *overrides)
        for rows in (2, 3, 4):
            compiled(torch.ones(rows, 4))
        return called

    with torch.no_grad():
        assert called_by("mode=reduce-overhead") == []
        assert called_by(*FUSED, "inductor.replay=wrapper") == ["compiled"]
        assert called_by(*FUSED) == ["compiled", "recorded"]
