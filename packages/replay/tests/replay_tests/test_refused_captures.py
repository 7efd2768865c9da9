"""What cannot be recorded is refused, in words that name the operator, the reason and the model's line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose.errors import CaptureError
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import built, traced

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("executor")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.call_function(aten.nonzero.default, (x,)), "the shape of its result depends on the data"),
        (lambda g, x: g.call_function(aten._local_scalar_dense.default, (x,)), "control depends on the data"),
        (
            lambda g, x: g.call_function(aten.index.Tensor, (x, [g.call_function(aten.gt.Scalar, (x, 0))])),
            "a mask as an index",
        ),
        (lambda g, x: g.call_function(aten.empty_like.default, (x,), {"device": "meta"}), "captures CPU graphs only"),
        (lambda g, x: g.call_function(torch.ops.higher_order.cond, (x, x, x, ())), "higher-order operator"),
        (lambda g, x: g.call_function(aten.resize_.default, (x, [9])), "moves a tensor to other memory"),
        (lambda g, x: g.call_method("relu", (x,)), "not an operator"),
        (lambda g, x: g.call_function(len, (x,)), "not an operator"),
        (lambda g, x: g.call_function(aten.mm.default, (x, x)), "fails on the given inputs"),
    ],
)
def test_what_a_recording_cannot_follow_is_refused_with_the_models_line(make: Any, words: str):
    def wrapped(graph: Any, xs: list[Any]) -> Any:
        return (make(graph, xs[0]),)

    module = built(wrapped, 1)
    for node in module.graph.nodes:
        node.meta["stack_trace"] = (
            'File "a.py", line 1, in g\n    f()\nFile "model.py", line 12, in forward\n    y = bad(x)\n'
        )
    with pytest.raises(CaptureError, match=words) as error:
        CapturedGraph.capture(module, [torch.ones(3)])
    assert str(error.value).endswith("model.py:12: y = bad(x)")


def test_inputs_that_cannot_be_recorded_are_refused():
    graph = traced(lambda x: (x + 1,), torch.ones(2))
    with pytest.raises(CaptureError, match="requires grad"):
        CapturedGraph.capture(graph, [torch.ones(2, requires_grad=True)])
    with pytest.raises(CaptureError, match="only tensors on cpu are taken"):
        CapturedGraph.capture(graph, [torch.ones(2, device="meta")])
    with pytest.raises(CaptureError, match="sparse"):
        CapturedGraph.capture(graph, [torch.ones(2, 2).to_sparse()])
    with torch.no_grad():
        x = torch.ones(2, requires_grad=True)
        assert CapturedGraph.capture(graph, [x]).replay(x)[0].tolist() == [2.0, 2.0]
