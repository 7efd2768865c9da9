"""Graph dumps: in protobuf's text format (TorchAir's txt and pbtxt, GE's ge_proto and ge_onnx), and as code (TorchAir's
dump of type py, which is parsed and never run, and GE's ge_readable)."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose_devtools.artefacts.artefact import Artefact, Data, Form, GraphRead, Mark, Stage
from npucompose_devtools.artefacts.text import (
    Message,
    NotProtobuf,
    attributes,
    cut_off,
    messages,
    parsed,
    text,
    texts,
)

_PY = re.compile(r"^from torchair\S* import ge_apis as ge|^\w+ = ge\.\w+\(", re.MULTILINE)
_GRAPH = re.compile(r'^graph\("(?P<name>[^"]*)"\):\s*$')
_NODE = re.compile(r"^\s+%(?P<name>\S+) : \[#users=\d+\] = Node\[type=(?P<type>\w+)\]")
_FIELDS = "name|version|custom_version|op|node|graph|attr|ir_version|producer_name"
_BEGINNING = re.compile(rf"\s*(?:#[^\n]*\n\s*)*(?:{_FIELDS})\s*[:{{]")
_PART = re.compile(r"_sub_\d+_(know|unknow)$")
_BUILT = re.compile(r"_(?:PreRunAfterBuild|Build|AfterAssignResource|AfterDynamicShapePartition|After_DSP)\.\w+$")
_BEGUN = re.compile(r"_(?:GraphPreRunBegin|PreRunBegin)\.\w+$")

_ATTRIBUTES: Mapping[str, tuple[int, bool, bool]] = {
    "_force_unknown_shape": (1, True, True),
    "_is_unknown_shape": (1, True, True),
    "_is_support_addr_refresh": (6, False, True),
    "_tiling_sink_op": (5, True, False),
}
"""{attribute: (row, the value that counts, whether the node is dynamic then)}."""
_TILING_DEPENDENT = "_dynamic_tiling_depend_op"


@frozen(kw_only=True)
class _Node:
    """What all four forms say of a node."""

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...]
    """Of its outputs; of a Data node the first is its own."""
    flags: Mapping[str, bool]


def read_dump(content: str, name: str) -> Artefact | None:
    """The dump, or None for a text that is none of the four."""
    if not _BEGINNING.match(content):
        return None
    try:
        return _read(parsed(content, name), name)
    except NotProtobuf:
        return None
    except ValueError as error:
        raise ConfigError(f"{name} looks like a graph dump, but is none: {error}.") from error


def _read(root: Message, name: str) -> Artefact | None:
    if "graph" in root and ("ir_version" in root or "producer_name" in root):
        return _artefact(name, "ge_onnx", _onnx_graphs(root))
    if "graph" in root:
        return _artefact(name, "ge_proto", [_ge_graph(g) for g in messages(root, "graph")])
    if "op" in root:
        form: Form = "ge_proto" if name.startswith("ge_proto") else "torchair_txt"
        return _artefact(name, form, [_ge_graph(root)])
    if "node" in root:
        nodes = [_tensorflow_node(n, name) for n in messages(root, "node")]
        return _artefact(name, "torchair_pbtxt", [("graph", nodes, {})])
    return None


_Graph = tuple[str, list[_Node], Mapping[str, bool]]
"""Name, nodes, and the flags of the graph itself."""


def _artefact(name: str, form: Form, graphs: list[_Graph]) -> Artefact:
    stage = _stage(form, name)
    if form.startswith("torchair") and not any(node.type == "NetOutput" for _, nodes, _ in graphs for node in nodes):
        raise cut_off(name, "it has no NetOutput, with which TorchAir ends every graph")
    parts: dict[str, list[str]] = {"know": [], "unknow": []}
    for graph, _, _ in graphs:
        if part := _PART.search(graph):
            parts[part[1]].append(graph)
    roots = [graph for graph in graphs if not _PART.search(graph[0])] or graphs
    made = [_graph_read(graph, stage, form) for graph in roots]
    made[0] = evolve(made[0], static_parts=tuple(parts["know"]), dynamic_parts=tuple(parts["unknow"]))
    unfinished = name.startswith("dynamo_original")  # TorchAir still folds what it forces onto the host here
    marks = [] if unfinished else sorted((m for _, n, _ in graphs for m in _marks(n)), key=lambda m: m.row == 1)
    return Artefact(name=name, forms=(form,), graphs=tuple(made), marks=tuple(marks))


def _stage(form: Form, name: str) -> Stage:
    if form.startswith("torchair") or _BEGUN.search(name):
        return "original"
    return "build" if _BUILT.search(name) else "between"


def _graph_read(graph: _Graph, stage: Stage, form: Form) -> GraphRead:
    name, nodes, flags = graph
    data = [n for n in nodes if n.type in ("Data", "RefData")]
    others = [n for n in nodes if n.type not in ("Data", "RefData")]
    return GraphRead(
        name=name,
        stage=stage,
        nodes=len(nodes),
        types=Counter(n.type for n in nodes),
        data=tuple(Data(name=n.name, shape=n.shapes[0] if n.shapes else None) for n in data),
        unknown_flag=flags.get("_graph_unknown_flag"),
        flag_shown=form == "ge_proto",
        unknown_nodes=sum(any(size < 0 for shape in n.shapes for size in shape) for n in others),
    )


def _marks(nodes: Iterable[_Node]) -> Iterator[Mark]:
    """Why the attributes of a node make it dynamic; GE sets the forcing one where its tiling depends on values, too."""
    for node in nodes:
        for attribute, (row, counts, dynamic) in _ATTRIBUTES.items():
            if node.flags.get(attribute) is not counts:
                continue
            tiling = attribute == "_force_unknown_shape" and node.flags.get(_TILING_DEPENDENT) is True
            yield Mark(
                node=node.name,
                operator=node.type,
                row=5 if tiling else row,
                dynamic=dynamic,
                words=f"{attribute} is {str(counts).lower()}" + (" and its tiling depends on values" if tiling else ""),
            )
            break


# ge_proto and TorchAir's txt: GraphDef and OpDef of ge_ir.proto.


def _ge_graph(graph: Message) -> _Graph:
    return text(graph, "name"), [_ge_node(op) for op in messages(graph, "op")], _ge_flags(graph)


def _ge_node(op: Message) -> _Node:
    shapes = tuple(_ge_shape(desc) for desc in messages(op, "output_desc"))
    return _Node(name=text(op, "name"), type=text(op, "type"), shapes=shapes, flags=_ge_flags(op))


def _ge_shape(desc: Message) -> tuple[int, ...]:
    return tuple(int(d) for shape in messages(desc, "shape") for d in texts(shape, "dim"))


def _ge_flags(message: Message) -> dict[str, bool]:
    return {key: text(value, "b") == "true" for key, value in attributes(message).items() if "b" in value}


# TorchAir's pbtxt: TensorFlow's GraphDef, whose attributes are GE's in text form.


def _tensorflow_node(node: Message, name: str) -> _Node:
    values = {key: text(value, "s") for key, value in attributes(node).items()}
    flags = {key: value.strip() == "b: true" for key, value in values.items() if value.startswith("b: ")}
    shapes = [_ge_shape(parsed(value, name)) for key, value in values.items() if key.startswith("[o]")]
    return _Node(name=text(node, "name"), type=text(node, "op"), shapes=tuple(shapes), flags=flags)


# ge_onnx: ONNX with GE's fields as attributes.


def _onnx_graphs(root: Message) -> list[_Graph]:
    found: list[_Graph] = []
    waiting = messages(root, "graph")
    while waiting:
        graph = waiting.pop(0)
        nodes = messages(graph, "node")
        subgraphs = [n for n in nodes if text(n, "op_type") == "subgraph"]
        waiting += [g for n in subgraphs for a in messages(n, "attribute") for g in messages(a, "g")]
        found.append((text(graph, "name"), [_onnx_node(n) for n in nodes if n not in subgraphs], {}))
    return found


def _onnx_node(node: Message) -> _Node:
    given = {text(a, "name"): a for a in messages(node, "attribute")}
    shapes = [_onnx_shape(key, a) for key, a in given.items() if re.match(r"output_desc_(shape:)?\d+$", key)]
    return _Node(
        name=text(node, "name"),
        type=text(node, "op_type").removeprefix("ge:"),
        shapes=tuple(shapes),
        flags={key: text(a, "i") not in ("", "0") for key, a in given.items()},
    )


def _onnx_shape(key: str, attribute: Message) -> tuple[int, ...]:
    """`output_desc_shape:0` holds ints; a node with very many outputs has JSON in `output_desc_0`."""
    if "shape:" in key:
        return tuple(int(size) for size in texts(attribute, "ints"))
    try:
        described: Any = json.loads(text(attribute, "s"))
        return tuple(int(size) for size in described["shape"])
    except (ValueError, KeyError, TypeError):
        return ()


def read_listing(text: str, name: str) -> Artefact | None:
    """The listing, or None for a text that is none of the two."""
    if _PY.search(text[:4000]):
        return _py(text, name)
    if _GRAPH.match(next((line for line in text.splitlines() if line.strip()), "")):
        return _readable(text, name)
    return None


def _py(text: str, name: str) -> Artefact:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise cut_off(
            name, f"line {error.lineno} is no whole statement: {(error.text or '').strip()[:60]!r}"
        ) from error
    calls = list(_ge_calls(tree))
    types = Counter(operator for operator, _ in calls)
    if not types["NetOutput"]:
        raise cut_off(name, "it has no ge.NetOutput, with which TorchAir ends every graph")
    data = [_data(call) for operator, call in calls if operator == "Data"]
    graph = GraphRead(name=name, stage="original", nodes=len(calls), types=types, data=tuple(data))
    return Artefact(name=name, forms=("torchair_py",), graphs=(graph,))


def _ge_calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """`ge.Mul(…)` as ("Mul", the call), constants inside the arguments included."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "ge":
            yield node.func.attr, node


def _data(call: ast.Call) -> Data:
    given = {k.arg: k.value for k in call.keywords}
    try:
        name, shape = str(ast.literal_eval(given["node_name"])), tuple(map(int, ast.literal_eval(given["shape"])))
    except (KeyError, ValueError, TypeError):
        return Data(name=ast.unparse(call)[:60], shape=None)
    return Data(name=name, shape=shape)


def _readable(text: str, name: str) -> Artefact:
    graphs: list[GraphRead] = []
    lines: list[str] = []
    for line in [*text.strip().splitlines(), 'graph(""):']:
        if _GRAPH.match(line) and lines:
            graphs.append(_readable_graph(lines, name))
            lines = []
        lines.append(line)
    return Artefact(name=name, forms=("ge_readable",), graphs=tuple(graphs))


def _readable_graph(lines: list[str], name: str) -> GraphRead:
    """A readable dump shows no shapes and no attributes of GE's own."""
    title = _GRAPH.match(lines[0])
    assert title is not None
    called = title["name"]
    if not any(line.strip().startswith("return (") and line.rstrip().endswith(")") for line in lines):
        raise cut_off(name, f'graph("{called}") has no return')
    nodes = [found for line in lines if (found := _NODE.match(line))]
    return GraphRead(
        name=called,
        stage="between",
        nodes=len(nodes),
        types=Counter(n["type"] for n in nodes),
        data=tuple(Data(name=n["name"], shape=None) for n in nodes if n["type"] == "Data"),
    )
