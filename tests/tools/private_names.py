"""Where a test uses a private name of the core: by import, as an attribute, or by its text in a monkeypatch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from tools.layout import ROOT

CORE = ("src/npucompose", "airflow_free")
OTHERS = ("torch", "aten", "ATEN", "os", "sys", "np", "threading", "atexit", "npu", "inspect")
"""Modules of others, as tests call them: their private names are no business of this."""
FOREIGN = {"_cdata", "_orig_mod", "_value", "_for", "_boxed_call"}
"""Names of others that the core has too."""
NOTE = "# private: "
"""Behind the line, or above it."""
OF_ALL = "# Note [Private names]"
"""Begins the Note of a whole file, whose tests take the system's part by hand."""


@frozen
class Use:
    file: str
    line: int
    name: str
    why: str = ""
    """Its Note, where it has one."""


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


def note_of(lines: Sequence[str], number: int) -> str:
    above = lines[number - 2].strip() if number > 1 else ""
    behind = above if above.startswith(NOTE) else lines[number - 1]
    return behind.partition(NOTE)[2] or next((line for line in lines if line.startswith(OF_ALL)), "")


def uses(file: str, text: str, private: set[str]) -> list[Use]:
    tree, lines = ast.parse(text), text.split("\n")
    own, found = set(defined(tree)), list[Use]()
    for node in ast.walk(tree):
        for name in named(node):
            if name in private and name not in own:
                line = int((node.end_lineno if isinstance(node, ast.Attribute) else getattr(node, "lineno", 1)) or 1)
                found.append(Use(file, line, name, note_of(lines, line)))
    return found


def all_uses(root: Path = ROOT) -> list[Use]:
    private = of_the_core(root)
    files = sorted((root / "tests").rglob("*.py"))
    return [use for file in files for use in uses(file.relative_to(root).as_posix(), file.read_text(), private)]
