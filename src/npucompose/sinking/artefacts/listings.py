"""Graphs as code: TorchAir's dump of type py, which is parsed and never run, and GE's ge_readable."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from npucompose.sinking.artefacts.artefact import Artefact, Data, GraphRead
from npucompose.sinking.artefacts.text import cut_off

_PY = re.compile(r"^from torchair\S* import ge_apis as ge|^\w+ = ge\.\w+\(", re.MULTILINE)
_GRAPH = re.compile(r'^graph\("(?P<name>[^"]*)"\):\s*$')
_NODE = re.compile(r"^\s+%(?P<name>\S+) : \[#users=\d+\] = Node\[type=(?P<type>\w+)\]")


def read(text: str, name: str) -> Artefact | None:
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
