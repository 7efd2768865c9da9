"""What is noted and listed of GE graphs, on fakes of TorchAir's modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.npu.torchair import facts
from npucompose.npu.torchair.facts import Loaded

# GE graphs.


def attribute(kind: str | None, value: Any = None) -> Any:
    return SimpleNamespace(WhichOneof=lambda _: kind, **({kind: value} if kind else {}))


def described(dtype: int, *dims: int, device: str = "") -> Any:
    return SimpleNamespace(dtype=dtype, shape=SimpleNamespace(dim=list(dims)), device_type=device, name=f"x{dtype}")


def ge_op(name: str, type: str, *inputs: str, out: Sequence[Any] = (), slots: Sequence[str] = (), **attr: Any) -> Any:
    return SimpleNamespace(
        name=name, type=type, input=list(inputs), output_desc=list(out), attr=attr,
        input_desc=[SimpleNamespace(name=slot) for slot in slots],
    )  # fmt: skip


@pytest.fixture
def ge_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumeration of the package's protobuf file."""
    module: Any = ModuleType("torchair._ge_concrete_graph.ge_ir_pb2")
    module.DataType = SimpleNamespace(Name=lambda number: {1: "DT_FLOAT", 2: "DT_INT64"}[number])
    for name in ("torchair", "torchair._ge_concrete_graph"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


LABEL, CUBE = attribute("s", b"stream1"), attribute("i", 8)
ADD = ge_op("Add_2", "Add", "b:0", "", "a:0", "Mm:-1", slots=("x1", "x2", "x3"), out=[described(1), described(2, 2)],
            _user_stream_label=LABEL, _op_aicore_num=CUBE, _op_vectorcore_num=attribute("s", b"16"),
            _super_kernel_scope=attribute(None))  # fmt: skip


def ge_graph(size: int = -1) -> Loaded:
    ops = [
        ge_op(
            "b",
            "RefData",
            out=[described(2, 3, device="NPU"), described(1, -1)],
            index=SimpleNamespace(i=1),
            _user_stream_label=LABEL,
        ),
        ge_op("a", "Data", out=[described(1, 4, size)], index=SimpleNamespace(i=0)),
        ge_op("Mm", "MatMul", "a:0", "gone:0", out=[described(1)], slots=("x1", "x2")),
        ADD,
        ge_op("Out", "NetOutput", "Add_2:0"),
        ge_op("Add_3", "Add", out=[described(1)], _super_kernel_scope=attribute("s", b"sk")),
    ]
    return Loaded(name="graph_1", graph=SimpleNamespace(op=ops), options={"ge.b": "2", "ge.a": "1"})


@pytest.mark.usefixtures("ge_ir")
def test_a_ge_graph_becomes_facts() -> None:
    found = facts.graph_facts(ge_graph())
    assert (found.name, found.nodes, found.shapes) == ("graph_1", 6, "dynamic")
    assert list(found.types.items()) == [("Add", 2), ("Data", 1), ("MatMul", 1), ("NetOutput", 1), ("RefData", 1)]
    assert list(found.data.items()) == [("a", "FLOAT [4, -1]"), ("b", "INT64 [3] NPU")]
    assert list(found.options.items()) == [("ge.a", "1"), ("ge.b", "2")]
    assert found.streams == {"b": "stream1", "Add_2": "stream1"}
    assert found.cores == {"Add_2": "8 cube, 16 vector"}
    assert found.super_kernels == {"Add_2": "", "Add_3": "sk"}
    assert found.control_edges == ("Mm -> Add_2",)
    assert facts.graph_facts(ge_graph(-2)).shapes == "dynamic"
    assert facts.graph_facts(ge_graph(0)).shapes == "static"


def test_what_feeds_each_operator_decides_whether_a_graph_sinks() -> None:
    loaded = ge_graph()
    found = facts.ge_facts(loaded)
    assert found.data == {"a": (4, -1), "b": (3,)}
    assert list(found.data) == ["a", "b"]
    assert found.inputs["Mm"] == ("MatMul", {"x1": "Data", "x2": "?"})
    assert found.inputs["Add_2"] == ("Add", {"x1": "RefData", "x3": "Data"})
    assert found.inputs["Out"] == ("NetOutput", {})
    assert (found.name, found.options) == ("graph_1", {"ge.b": "2", "ge.a": "1"})
    assert found.options is not loaded.options


@pytest.mark.usefixtures("ge_ir")
def test_a_ge_graph_is_listed_a_line_for_each_node() -> None:
    assert facts.listing(ge_graph(), {"ge.y": "0", "ge.x": "1"}) == (
        "# GE graph graph_1: 6 nodes, dynamic shapes, as handed to libge\n"
        "# option ge.a = 1\n# option ge.b = 2\n# global option ge.x = 1\n# global option ge.y = 0\n"
        "b: INT64 [3] NPU, FLOAT [-1] = RefData()  # index=1, _user_stream_label=stream1\n"
        "a: FLOAT [4, -1] = Data()  # index=0\n"
        "Mm: FLOAT = MatMul(x1=a:0, x2=gone:0)\n"
        "Add_2: FLOAT, INT64 [2] = Add(x1=b:0, x3=a:0, Mm:-1)"
        "  # _user_stream_label=stream1, _op_aicore_num=8, _op_vectorcore_num=16, _super_kernel_scope=\n"
        "Out: nothing = NetOutput(Add_2:0)\n"
        "Add_3: FLOAT = Add()  # _super_kernel_scope=sk\n"
    )


@pytest.mark.usefixtures("ge_ir")
def test_constants_lists_and_plain_attributes_are_listed_with_their_values() -> None:
    data = torch.tensor([2, 3], dtype=torch.int64).numpy().tobytes()
    tensor = SimpleNamespace(desc=described(2, 2, device="CPU"), data=data)
    listed = SimpleNamespace(ListFields=lambda: [("i", [1, 2]), ("val_type", 2)])
    const = ge_op("Const", "Const", out=[described(2, 2)], value=attribute("t", tensor), b=attribute("list", listed))
    assert facts._line(const) == "Const: INT64 [2] = Const()  # b=[1, 2], value=INT64 [2] CPU [2, 3]"
    long = SimpleNamespace(desc=described(1, 9), data=torch.arange(9.0).numpy().tobytes())
    assert facts._constant(long) == "FLOAT [9] [0, 1, 2, 3, 4, 5, 6, 7, …]"
    assert facts._constant(SimpleNamespace(desc=described(1, 0), data=b"")) == "FLOAT [0] of 0 bytes"
    assert facts._text(attribute("b", True)) == "True"


def test_every_graph_that_is_loaded_or_exported_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Graph:
        def load(self, ge_graph: Any, options: Any = None, **keywords: Any) -> str:
            told.append(("load", ge_graph.SerializeToString(), options, keywords))
            return "loaded"

    class ModelDef:
        def ParseFromString(self, data: bytes) -> None:
            self.graph = [SimpleNamespace(name=data.decode())]

    def module(name: str, **named: Any) -> Any:
        made = ModuleType(name)
        vars(made).update(named)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    compiled = SimpleNamespace(export=lambda serialized, options: told.append(("export", options)) or "exported")
    for name in ("torchair", "torchair._ge_concrete_graph"):
        module(name)
    module("torchair._ge_concrete_graph.ge_ir_pb2", ModelDef=ModelDef)
    backend = module("torchair.core._backend", TorchNpuGraph=Graph, _GLOBAL_COMPILE_OPTION=None)
    module("torchair.core", _torchair=compiled, _backend=backend)
    monkeypatch.setattr(facts, "LOADED", [])
    facts.watch_ge.cache_clear()
    facts.watch_ge()
    facts.watch_ge()
    assert Graph().load(SimpleNamespace(SerializeToString=lambda: b"one"), {"ge.a": 1}, more=2) == "loaded"
    assert Graph().load(SimpleNamespace(SerializeToString=lambda: b"two")) == "loaded"
    assert compiled.export(b"three", {"k": True}) == "exported"
    assert told == [
        ("load", b"one", {"ge.a": 1}, {"more": 2}), ("load", b"two", None, {}), ("export", {"k": True})
    ]  # fmt: skip
    assert [(one.name, one.options) for one in facts.LOADED] == [
        ("one", {"ge.a": "1"}),
        ("two", {}),
        ("three", {"k": "True"}),
    ]
    assert facts.global_options() == {}
    backend._GLOBAL_COMPILE_OPTION = {"ge.x": 1}
    assert facts.global_options() == {"ge.x": "1"}
