"""The path of a module is the same whichever torch wrote the graph."""

from __future__ import annotations

import pytest
from torch import fx

from npucompose.graphs.matching import modules


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("L['self'].layers.0.up", "layers.0.up"),
        ("L['self'].layers[0].up", "layers.0.up"),
        ("L['self']._modules['layers']._modules['0'].up", "layers.0.up"),
        ("G['model']._modules['m']._modules['layers']._modules['0']._modules['act']._modules['1']", "m.layers.0.act.1"),
    ],
)
def test_a_module_has_one_path_however_torch_writes_it(written: str, path: str) -> None:
    """`_modules['0']` is how it was written up to torch 2.9."""
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"1": (written, object), "0": ("L['self']", object)}
    assert modules(node) == (path,)
