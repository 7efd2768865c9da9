"""Inductor's options as the installed torch declares them, read from its source as text. Loads no torch.

`torch/_inductor/config.py` is a list of assignments with a comment above each; classes in it are groups (`cpp`,
`triton`). What an option takes is what its annotation says, else what the expression of its default can be.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

BY_NAME: Mapping[str, frozenset[str]] = {
    "bool": frozenset({"bool"}),
    "int": frozenset({"int"}),
    "float": frozenset({"int", "float"}),
    "str": frozenset({"str"}),
    "None": frozenset({"null"}),
}

OTHER = frozenset({"other"})


@frozen(kw_only=True)
class InductorOption:
    """`InductorOption(path="cpp.simdlen", kinds={"int", "null"}, default="None", …)`."""

    path: str
    kinds: frozenset[str]
    """bool, int, float, str, null; `other` for what no YAML can say: functions, classes, collections."""
    choices: tuple[Any, ...]
    """The values of a Literal; empty where it is none."""
    default: str
    """As torch's source writes it: often an expression over environment variables."""
    doc: str
    """The comment above it, one line."""


@cache
def installed() -> Mapping[str, InductorOption]:
    """Every option of the installed torch by its dotted path; empty where no torch is installed."""
    spec = importlib.util.find_spec("torch")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [file for place in places if (file := Path(place) / "_inductor" / "config.py").is_file()]
    return read(files[0].read_text(encoding="utf-8")) if files else {}


def read(source: str) -> Mapping[str, InductorOption]:
    """`read("# Doc.\\nfreezing: bool = False\\n")["freezing"].doc` is `Doc.`."""
    lines = source.splitlines()
    groups: dict[str, dict[str, InductorOption]] = {}
    found: dict[str, InductorOption] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            inherited = [groups[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in groups]
            own = {option.path: option for option in _assignments(node.body, lines)}
            groups[node.name] = {name: option for base in (*inherited, own) for name, option in base.items()}
        else:
            found.update({option.path: option for option in _assignments([node], lines)})
    for group, options in groups.items():
        if not group.startswith("_"):
            paths = {f"{group}.{name}": option for name, option in options.items()}
            found.update({path: evolve(option, path=path) for path, option in paths.items()})
    return found


def _assignments(body: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[InductorOption]:
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, kinds, choices = node.target.id, *_annotated(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, kinds, choices = node.targets[0].id, _kinds(node.value), ()
        else:
            continue
        if node.value is None or name.startswith("_") or "TESTING" in name:
            continue
        default = " ".join(ast.unparse(node.value).split())
        yield InductorOption(
            path=name, kinds=kinds, choices=choices, default=default, doc=_comment(lines, node.lineno - 1)
        )


def _comment(lines: Sequence[str], at: int) -> str:
    """The lines of comment right above line `at`, as one."""
    words: list[str] = []
    while at and lines[at - 1].strip().startswith("#"):
        at -= 1
        words.insert(0, lines[at].strip().lstrip("# "))
    return " ".join(words)


def _annotated(annotation: ast.expr) -> tuple[frozenset[str], tuple[Any, ...]]:
    """(kinds, the values of a Literal) of `int | None`, `Optional[bool]`, `Literal["a", "b"]`."""
    match annotation:
        case ast.Constant(value=None):
            return BY_NAME["None"], ()
        case ast.Name(id=name):
            return BY_NAME.get(name, OTHER), ()
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            (kinds, choices), (more, others) = _annotated(left), _annotated(right)
            return kinds | more, (*choices, *others)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            kinds, choices = _annotated(inner)
            return kinds | BY_NAME["None"], choices
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            found = tuple(v.value for v in values if isinstance(v, ast.Constant))
            return frozenset(kind for v in values for kind in _kinds(v)), found
        case _:
            return OTHER, ()


def _kinds(value: ast.expr) -> frozenset[str]:
    """What a default without an annotation can be: `os.environ.get(…) == "1"` is true or false."""
    match value:
        case ast.Constant(value=None):
            return BY_NAME["None"]
        case ast.Constant(value=constant):
            return BY_NAME.get(type(constant).__name__, OTHER)
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return BY_NAME["bool"]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _kinds(operand)
        case ast.BinOp(left=left):
            return _kinds(left)
        case ast.Call(func=ast.Name(id="int" | "float" | "bool" as name)):
            return BY_NAME[name]
        case ast.Call(func=ast.Name(id="is_fbcode")):
            return BY_NAME["bool"]
        case ast.Call(func=ast.Attribute(attr="get" | "getenv")):
            return BY_NAME["str"] | BY_NAME["None"]
        case ast.Call(func=ast.Attribute(attr="upper" | "lower")):
            return BY_NAME["str"]
        case ast.BoolOp(values=values):
            return frozenset(kind for v in values for kind in _kinds(v))
        case ast.IfExp(body=one, orelse=other):
            return _kinds(one) | _kinds(other)
        case _:
            return OTHER
