"""What came out on the vendor's side: GE graphs, noted at the border of libge, as facts and as a listing; files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from npucompose.npu.torchair.records import GeGraph

if TYPE_CHECKING:
    from npucompose.npu.static_graph.facts import GeFacts


@frozen(kw_only=True, eq=False)
class Loaded:
    """A GE graph as it was handed over."""

    name: str
    graph: Any
    """The GraphDef, a copy."""
    options: dict[str, str]


PATCHED = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "all_to_all_single", "all_to_all",
)  # fmt: skip
"""Functions of torch.distributed that patch_for_hcom replaces."""

LOADED: list[Loaded] = []


@cache
def watch_ge() -> None:
    """Note every TorchNpuGraph.load and every export of this process in LOADED, once in a process."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef  # pyright: ignore[reportMissingImports]
    from torchair.core import _torchair  # pyright: ignore[reportMissingImports]
    from torchair.core._backend import TorchNpuGraph  # pyright: ignore[reportMissingImports]

    load, export = TorchNpuGraph.load, _torchair.export

    def note(serialized: bytes, options: Any) -> None:
        model = ModelDef()
        model.ParseFromString(serialized)
        given = {str(key): str(value) for key, value in (options or {}).items()}
        LOADED.append(Loaded(name=str(model.graph[0].name), graph=model.graph[0], options=given))

    def watched_load(self: Any, ge_graph: Any, options: Any = None, **keywords: Any) -> Any:
        note(ge_graph.SerializeToString(), options)
        return load(self, ge_graph, options, **keywords)

    def watched_export(serialized: bytes, options: Any) -> Any:
        note(serialized, options)
        return export(serialized, options)

    TorchNpuGraph.load = watched_load
    _torchair.export = watched_export


def global_options() -> dict[str, str]:
    """What TorchAir initialised GE with in this process; {} before it did."""
    from torchair.core import _backend  # pyright: ignore[reportMissingImports]

    recorded = _backend._GLOBAL_COMPILE_OPTION
    return {str(key): str(value) for key, value in (recorded or {}).items()}


INPUTS = ("Data", "RefData")
STREAM, CUBE, VECTOR, SUPER = "_user_stream_label", "_op_aicore_num", "_op_vectorcore_num", "_super_kernel_scope"
SHOWN = (STREAM, "_user_stream_priority", CUBE, VECTOR, SUPER, "_super_kernel_options")
"""Attributes that say where and on how many cores a node runs."""
FORCED = ("_force_unknown_shape", "_is_unknown_shape")
"""Attributes by which GE schedules a node from the host, whatever its sizes are."""
SAID = ("_input_name_key", "_input_name_value", "_output_name_key", "_output_name_value", "_readable_value")
"""Attributes in which TorchAir repeats the slots' names and a constant's value."""
NUMBERS = {
    "FLOAT": "float32", "FLOAT16": "float16", "BF16": "bfloat16", "DOUBLE": "float64", "INT8": "int8", "INT16": "int16",
    "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""{type of GE: torch's name of it} of constants whose numbers are shown."""
MOST_NUMBERS = 8
UNKNOWN = (-1, -2)
"""An unknown dimension, and an unknown number of dimensions."""


def graph_facts(loaded: Loaded) -> GeGraph:
    """What the report says of a graph."""
    operators = loaded.graph.op
    data = {op.name: _described(op.output_desc[0]) for op in _inputs(operators)}
    dynamic = any(size in UNKNOWN for op in _inputs(operators) for size in op.output_desc[0].shape.dim)
    types = Counter(op.type for op in operators)
    return GeGraph(
        name=loaded.name,
        nodes=len(operators),
        types=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
        data=data,
        shapes="dynamic" if dynamic else "static",
        options=dict(sorted(loaded.options.items())),
        streams={op.name: _text(op.attr[STREAM]) for op in operators if STREAM in op.attr},
        cores={
            op.name: f"{_text(op.attr[CUBE])} cube, {_text(op.attr[VECTOR])} vector"
            for op in operators
            if CUBE in op.attr
        },
        super_kernels={op.name: _text(op.attr[SUPER]) for op in operators if SUPER in op.attr},
        control_edges=tuple(  # an input `MatMul:-1` is an order, not a value
            f"{source[:-3]} -> {op.name}" for op in operators for source in op.input if source.endswith(":-1")
        ),
    )


def ge_facts(loaded: Loaded) -> GeFacts:
    """What decides whether the graph can sink: sizes of its inputs, who feeds each operator, its options."""
    from npucompose.npu.static_graph.facts import GeFacts

    operators = loaded.graph.op
    types = {op.name: op.type for op in operators}
    return GeFacts(
        name=loaded.name,
        data={op.name: tuple(op.output_desc[0].shape.dim) for op in _inputs(operators)},
        inputs={op.name: (op.type, _feeders(op, types)) for op in operators},
        options=dict(loaded.options),
        forced=tuple(op.name for op in operators if any(name in op.attr and op.attr[name].b for name in FORCED)),
    )


def _feeders(op: Any, types: Mapping[str, str]) -> dict[str, str]:
    """{name of the input: type of the node that gives it}; an optional input that is not given has no node."""
    given = zip(op.input_desc, op.input, strict=False)
    return {described.name: types.get(source.rpartition(":")[0], "?") for described, source in given if source}


def listing(loaded: Loaded, global_options: Mapping[str, str]) -> str:
    """One line for each node: `Add_2: FLOAT [2, 2] = Add(x1=MatMul:0, x2=Sub:0)  # _user_stream_label=stream1`."""
    fact = graph_facts(loaded)
    lines = [f"# GE graph {fact.name}: {fact.nodes} nodes, {fact.shapes} shapes, as handed to libge"]
    lines += [f"# option {key} = {value}" for key, value in fact.options.items()]
    lines += [f"# global option {key} = {value}" for key, value in sorted(global_options.items())]
    lines += [_line(op) for op in loaded.graph.op]
    return "\n".join(lines) + "\n"


def _line(op: Any) -> str:
    """Inputs by the name of their slot, which an order has not; every attribute, where it runs first."""
    results = ", ".join(_described(result) for result in op.output_desc)
    rest = sorted(key for key in op.attr if key not in (*SHOWN, *SAID, "index"))
    notes = [f"{key}={_text(op.attr[key])}" for key in (*(key for key in SHOWN if key in op.attr), *rest)]
    if op.type in INPUTS:
        notes.insert(0, f"index={op.attr['index'].i}")
    note = f"  # {', '.join(notes)}" if notes else ""
    return f"{op.name}: {results or 'nothing'} = {op.type}({', '.join(_operands(op))}){note}"


def _operands(op: Any) -> Iterator[str]:
    for source, described in zip_longest(op.input, op.input_desc):
        if source:
            slot = "" if described is None or source.endswith(":-1") else f"{described.name}="
            yield f"{slot}{source}"


def _inputs(operators: Iterable[Any]) -> list[Any]:
    return sorted((op for op in operators if op.type in INPUTS), key=lambda op: op.attr["index"].i)


def _described(result: Any) -> str:
    """`FLOAT [4, 16] NPU`: TorchAir writes shape and device of inputs and constants; the rest GE infers."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import DataType  # pyright: ignore[reportMissingImports]

    dtype = DataType.Name(result.dtype).removeprefix("DT_")
    shape = f" {list(result.shape.dim)}" if result.shape.dim or result.device_type else ""
    return f"{dtype}{shape} {result.device_type}".rstrip()


def _text(attribute: Any) -> str:
    kind = attribute.WhichOneof("value")
    value: Any = getattr(attribute, kind) if kind else ""
    if kind == "t":
        return _constant(value)
    if kind == "list":  # what is repeated; the kind of its values is a number by itself
        lists = (items for _, items in value.ListFields() if not isinstance(items, int))
        return f"[{', '.join(_plain(item) for items in lists for item in items)}]"
    return _plain(value)


def _plain(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else " ".join(str(value).split())


def _constant(tensor: Any) -> str:
    """`INT32 [2] CPU [1, 2]`, the first eight numbers of a Const."""
    import torch

    described = _described(tensor.desc)
    dtype = NUMBERS.get(described.partition(" ")[0])
    if dtype is None or not tensor.data:
        return f"{described} of {len(tensor.data)} bytes"
    numbers = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, dtype)).tolist()
    more = ", …" if len(numbers) > MOST_NUMBERS else ""
    return f"{described} [{', '.join(f'{number:g}' for number in numbers[:MOST_NUMBERS])}{more}]"


def patched() -> tuple[str, ...]:
    """Which functions of torch.distributed are TorchAir's by now."""
    import torch.distributed

    found: dict[str, Any] = {name: getattr(torch.distributed, name, None) for name in PATCHED}
    return tuple(
        name for name, function in found.items() if str(getattr(function, "__module__", "")).startswith("torchair.")
    )


def written(folder: Path | None) -> tuple[str, ...]:
    """The files below `folder`, by their path in it."""
    if folder is None or not folder.is_dir():
        return ()
    return tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))


def plain_options(options: Any) -> dict[str, Any]:
    """as_dict() gives one mapping, or a pair of local and global ones."""
    if isinstance(options, tuple):
        return {name: plain_options(part) for name, part in zip(("local", "global"), options, strict=True)}
    return {str(key): value if isinstance(value, (bool, int, float)) else str(value) for key, value in options.items()}
