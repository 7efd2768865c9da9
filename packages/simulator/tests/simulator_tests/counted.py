"""What captures of built-in models really took of the simulated runtime, beside what was foretold of their graphs.

`counted.py mode "model=mlp passes=stream_plan" …` prints {overrides: {"foretold": …, "captured": …}}.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from typing import Any

import torch

from npu_simulator import install
from npu_simulator.recorder import KERNEL, RECORD, WAIT
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.targets.npu_offline import wheel


def counted(mode: str, overrides: str) -> dict[str, Any]:
    """[streams, kernels, records, waits] of each graph."""
    torch._dynamo.reset()
    session = Session(check(compose(["target=npu_offline", f"mode={mode}", *overrides.split()])))
    known = len(install(wheel.locate()).graphs)
    session.compiled  # noqa: B018  the first call captures
    return {
        "foretold": [
            [one.counts.streams, one.counts.kernels, one.counts.records, one.counts.waits]
            for one in session.compilations
        ],
        "captured": [_taken(graph.tasks) for graph in install(wheel.locate()).graphs[known:]],
    }


def _taken(tasks: list[tuple[str, Any, int]]) -> list[int]:
    kinds = Counter(kind for kind, _, _ in tasks)
    return [len({stream for _, _, stream in tasks}), kinds[KERNEL], kinds[RECORD], kinds[WAIT]]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({overrides: counted(sys.argv[1], overrides) for overrides in sys.argv[2:]}))
