"""The line of the model that a node came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx

from npucompose.graphs.matching import model_line, source_line

MODEL = '  File "model.py", line 12, in forward\n    idx = mask.nonzero()\n'
BLOCK = '  File "/home/me/block.py", line 3, in forward\n    return f(x)  \n'
TORCH = f'  File "{Path(torch.__file__).parent}/nn/functional.py", line 99, in relu\n    return torch.relu(x)\n'


@pytest.mark.parametrize(
    ("trace", "innermost", "model"),
    [
        (None, "", ""),
        ("no frame", "", ""),
        (MODEL, "model.py:12: idx = mask.nonzero()", "model.py:12: idx = mask.nonzero()"),
        (BLOCK + MODEL, "model.py:12: idx = mask.nonzero()", "model.py:12: idx = mask.nonzero()"),
        (MODEL + BLOCK, "/home/me/block.py:3: return f(x)", "/home/me/block.py:3: return f(x)"),
        (MODEL + BLOCK + TORCH, f"{Path(torch.__file__).parent}/nn/functional.py:99: return torch.relu(x)",
         "/home/me/block.py:3: return f(x)"),
        (TORCH, *2 * (f"{Path(torch.__file__).parent}/nn/functional.py:99: return torch.relu(x)",)),
    ],
    ids=["none", "no frame", "one", "two", "two others", "through torch", "torch alone"],
)  # fmt: skip
def test_the_line_is_the_innermost_call_s_and_the_model_s_is_outside_torch(
    trace: str | None, innermost: str, model: str
) -> None:
    node = fx.Graph().placeholder("x")
    if trace is not None:
        node.meta["stack_trace"] = trace
    assert (source_line(node), model_line(node)) == (innermost, model)
