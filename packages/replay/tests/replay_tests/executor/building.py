"""What tests of the extension's build share: a recording that says who replays it, and a compiler that copies."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import traced


def captured() -> CapturedGraph:
    x = torch.randn(3)
    made = CapturedGraph.capture(traced(lambda x: (x + 1,), x), [x])
    assert torch.equal(made.replay(x)[0], x + 1)
    return made


def copying(real: Path) -> str:
    """A compiler that makes empty objects and links to what the real one made."""
    return f"""for last; do :; done
case "$1" in -shared) cp {shlex.quote(str(real))} "$last" ;; --version) ;; *) : > "$last" ;; esac"""
