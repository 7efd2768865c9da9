"""The line of the model that a node came from."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n\s*(?P<code>[^\n]*)')


_TORCH = str(Path(torch.__file__).parent)


def source_line(node: fx.Node) -> str:
    """`model.py:12: idx = mask.nonzero()`, the innermost call's file as it was named; '' when nothing is known."""
    frames = _frames(node)
    return _line(frames[-1]) if frames else ""


def model_line(node: fx.Node) -> str:
    """`source_line`, but of the innermost call that is not in torch: what a person can change."""
    frames = _frames(node)
    outside = [frame for frame in frames if not frame["file"].startswith(_TORCH)]
    return _line((outside or frames)[-1]) if frames else ""


def _frames(node: fx.Node) -> list[re.Match[str]]:
    return list(_FRAME.finditer(node.meta.get("stack_trace") or ""))


def _line(frame: re.Match[str]) -> str:
    return f"{frame['file']}:{frame['line']}: {frame['code'].strip()}"
