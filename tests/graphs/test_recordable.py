"""Which nodes no recording can hold, and in what words that is said."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose import ops
from npucompose.graphs import recordable
from npucompose.graphs.recordable import name_in_torch, name_of, outside_of, refused_by_recordings, refused_by_torchair
from tests.sample_graphs import aten

ops.define()
FLOAT, BOOL, BYTE = torch.empty(4), torch.empty(4, dtype=torch.bool), torch.empty(4, dtype=torch.uint8)
LONG, META = torch.empty(4, dtype=torch.int64), torch.empty(4, device="meta")
META_BOOL = torch.empty(4, dtype=torch.bool, device="meta")


def node_of(target: Any, *args: Any, values: dict[str, Any] | None = None, **kwargs: Any) -> fx.Node:
    """A call in a graph of its own; tensors among the arguments come in as inputs with that value."""
    graph = fx.Graph()

    def given(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [given(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder("x")
        made.meta["val"] = value
        return made

    args, kwargs = tuple(given(arg) for arg in args), {key: given(value) for key, value in kwargs.items()}
    made = graph.call_function(target, args, kwargs)
    made.meta.update(values or {})
    return made


def elsewhere(*devices: str) -> str:
    return f"it works on {', '.join(devices)}; a recording here holds cpu kernels only."


CASES: list[tuple[str, fx.Node, str | None]] = [
    ("a kernel", node_of(aten.relu.default, FLOAT, values={"val": FLOAT}), None),
    ("getitem", node_of(operator.getitem, [FLOAT], 0), None),
    ("arithmetic", node_of(operator.add, 1, 2), None),
    ("torch's arithmetic on sizes", node_of(torch.sym_max, 1, 2), None),
    ("control flow", node_of(torch.ops.higher_order.cond, True), recordable.HIGHER_ORDER),
    ("a function", node_of(id, 1), None),
    ("a function of somebody's", node_of(elsewhere, 1), recordable.NO_OPERATOR),
    ("a number out of data", node_of(aten._local_scalar_dense.default, FLOAT), recordable.TO_PYTHON),
    ("a shape out of data", node_of(aten.nonzero.default, FLOAT), recordable.SHAPE),
    ("a symbol born", node_of(aten.relu.default, FLOAT, values={"unbacked_bindings": {"u0": ()}}), recordable.SHAPE),
    ("repeats", node_of(aten.repeat_interleave.Tensor, LONG), recordable.SHAPE),
    ("repeats of a known size", node_of(aten.repeat_interleave.Tensor, LONG, output_size=8), None),
    ("resize", node_of(aten.resize_.default, FLOAT, [8]), recordable.RESIZES),
    ("a resized copy", node_of(aten.resize.default, FLOAT, [8]), None),
    ("written in place", node_of(aten.add_.Tensor, FLOAT, 1), None),
    ("integers as an index", node_of(aten.index.Tensor, FLOAT, [LONG]), None),
    ("a mask as an index", node_of(aten.index.Tensor, FLOAT, [BOOL]), recordable.MASK),
    ("bytes as an index", node_of(aten.index.Tensor, FLOAT, [None, BYTE]), recordable.MASK),
    ("the unsafe index", node_of(aten._unsafe_index.Tensor, FLOAT, [BOOL]), recordable.MASK),
    ("a mask that is written to", node_of(aten.index_put.default, FLOAT, [BOOL], FLOAT), None),
    ("on another device", node_of(aten.index_put.default, META, [META_BOOL], META), recordable.MASK),
    ("a mask of values", node_of(aten.masked_fill.Scalar, FLOAT, BOOL, 0.0), None),
    ("a copy to another device", node_of(aten._to_copy.default, FLOAT, values={"val": META}), elsewhere("meta")),
    ("a copy from another device", node_of(aten._to_copy.default, META, values={"val": FLOAT}), elsewhere("meta")),
    ("two results", node_of(aten.max.dim, FLOAT, 0, values={"val": (FLOAT, META)}), elsewhere("meta")),
]  # fmt: skip


@pytest.mark.parametrize(("node", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_node_is_refused_with_its_reason(node: fx.Node, reason: str | None) -> None:
    assert recordable.why_not(node, "cpu") == reason
    anywhere = None if reason is not None and reason.startswith("it works on") else reason
    assert recordable.why_not(node, None) == anywhere


def test_inputs_constants_and_outputs_are_no_kernels_and_modules_are_unknown() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    held, called, method = graph.get_attr("held"), graph.call_module("layer", (x,)), graph.call_method("relu", (x,))
    reasons = [recordable.why_not(node, "cpu") for node in (x, held, graph.output(x), called, method)]
    assert reasons == [None, None, None, recordable.NO_OPERATOR, recordable.NO_OPERATOR]
    assert list(refused_by_recordings(graph, "cpu")) == [
        (called, recordable.NO_OPERATOR),
        (method, recordable.NO_OPERATOR),
    ]


def test_an_operator_whose_author_says_so_runs_each_time() -> None:
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    if unsafe is None:
        assert not recordable.is_unsafe(aten.relu.default)
        return
    with torch.library._scoped_library("npucompose_recordable", "FRAGMENT") as library:
        library.define("sample(Tensor x) -> Tensor", tags=(unsafe,))
        sample = torch.ops.npucompose_recordable.sample.default
        assert recordable.is_unsafe(sample)
        assert recordable.why_not(node_of(sample, FLOAT), None) == recordable.UNSAFE
    assert not recordable.is_unsafe(aten.relu.default)


NAMES = [
    (aten.nonzero.default, (), "aten.nonzero", "aten.nonzero.default"),
    (aten.add.Tensor, (), "aten.add.Tensor", "aten.add.Tensor"),
    (torch.ops.higher_order.cond, (aten.relu.default,), "cond", "cond"),
    (torch.ops.higher_order.auto_functionalized, (), "auto_functionalized", "auto_functionalized"),
    (torch.ops.higher_order.auto_functionalized, (aten.resize_.default,), "aten.resize_", "auto_functionalized"),
    (torch.ops.higher_order.auto_functionalized, (3,), "auto_functionalized", "auto_functionalized"),
    pytest.param(elsewhere, (), "elsewhere", str(elsewhere), id="a function"),
]


@pytest.mark.parametrize(("target", "args", "name", "in_torch"), NAMES)
def test_an_operator_is_called_as_a_person_calls_it(target: Any, args: Any, name: str, in_torch: str) -> None:
    node = node_of(target, *args)
    assert (name_of(node), name_in_torch(node)) == (name, in_torch)


def test_an_entry_says_node_operator_reason_and_the_model_s_line() -> None:
    node = node_of(aten.nonzero.default, FLOAT)
    node.meta["stack_trace"] = '  File "model.py", line 12, in forward\n    idx = mask.nonzero()\n'
    told = outside_of(node, recordable.SHAPE)
    assert (told.node, told.operator, told.reason, told.source) == (
        "nonzero_default", "aten.nonzero", recordable.SHAPE, "model.py:12: idx = mask.nonzero()"
    )  # fmt: skip


def test_torchair_refuses_data_dependence_and_control_flow_but_not_what_it_takes_apart() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = FLOAT
    for target, args in (
        (aten.relu.default, (x,)), (aten.resize_.default, (x, [8])), (torch.ops.higher_order.cond, (True,)),
        (torch.ops.higher_order.auto_functionalized, (aten.relu_.default,)), (aten.nonzero.default, (x,)),
        (aten._local_scalar_dense.default, (x,)), (elsewhere, (x,)),
    ):  # fmt: skip
        graph.call_function(target, args)
    told = [(entry.operator, entry.reason) for entry in refused_by_torchair(graph)]
    assert told == [
        ("cond", recordable.HIGHER_ORDER),
        ("aten.nonzero", recordable.SHAPE),
        ("aten._local_scalar_dense", recordable.TO_PYTHON),
    ]
