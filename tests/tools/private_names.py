"""Where a test uses a private name of the core: by import, as an attribute, or by its text in a monkeypatch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from tools.layout import ROOT

CORE = ("src/npucompose", "airflow_free")
OTHERS = ("torch", "aten", "ATEN", "os", "sys", "np", "threading", "atexit", "npu", "inspect")
"""Modules of others, as tests call them: their private names are no business of this."""
FOREIGN = {"_cdata", "_orig_mod", "_value", "_for", "_boxed_call"}
"""Names of others that the core has too."""
NOTE = "# private: "


@frozen
class Use:
    file: str
    line: int
    name: str
    why: str = ""
    """The Note behind the line, where there is one."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.Module) -> Iterator[str]:
    """What a source defines with one underscore before it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
                yield from (one.attr for one in ast.walk(target) if isinstance(one, ast.Attribute))


def of_the_core(root: Path = ROOT) -> set[str]:
    files = [file for folder in CORE for file in (root / folder).rglob("*.py")]
    return {name for file in files for name in defined(ast.parse(file.read_text())) if is_private(name)} - FOREIGN


def root_of(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def named(node: ast.AST) -> Iterator[str]:
    """The private names that a node itself uses."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("npucompose", "airflow_free"):
        yield from (one.name for one in node.names if is_private(one.name))
    elif isinstance(node, ast.Attribute) and root_of(node.value) not in (*OTHERS, "self", "cls"):
        yield from [node.attr] if is_private(node.attr) else []
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("setattr", "getattr"):
        texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        others = node.args and root_of(node.args[0]) in OTHERS
        yield from (last for text in texts if is_private(last := text.split(".")[-1]) and not others)


def uses(file: str, text: str, private: set[str]) -> list[Use]:
    lines, own = text.split("\n"), set(defined(ast.parse(text)))
    found: list[Use] = []
    for node in ast.walk(ast.parse(text)):
        for name in named(node):
            if name in private and name not in own:
                line = node.end_lineno if isinstance(node, ast.Attribute) else node.lineno
                _, _, why = lines[(line or 1) - 1].partition(NOTE)
                found.append(Use(file, line or 1, name, why))
    return found


def all_uses(root: Path = ROOT) -> list[Use]:
    private = of_the_core(root)
    files = sorted((root / "tests").rglob("*.py"))
    return [use for file in files for use in uses(file.relative_to(root).as_posix(), file.read_text(), private)]
