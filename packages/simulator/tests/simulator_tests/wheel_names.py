"""What the Python of a torch_npu wheel says, from its syntax trees: names, signatures, constants, and what it asks for.

Nothing of the wheel is imported.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

REACHED = ("npu/**/*.py", "dynamo/**/*.py", "utils/_dynamo*.py", "op_plugin/**/*.py")
"""What a model's code or TorchAir runs into."""


@cache
def parsed(file: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in the wheel's texts
        return ast.parse(file.read_text(encoding="utf-8-sig"))


class Wheel:
    """The sources below `tree`, the folder that holds torch_npu/."""

    def __init__(self, tree: Path) -> None:
        self.root = tree / "torch_npu"

    @cache  # noqa: B019  # one object for each wheel, in one test run
    def tree_of(self, module: str) -> ast.Module | None:
        """`torch_npu.npu.utils`; None where the wheel has no file for it."""
        below = self.root.parent.joinpath(*module.split("."))
        for file in (below.with_suffix(".py"), below / "__init__.py"):
            if file.is_file():
                return parsed(file)
        return None

    def is_package(self, module: str) -> bool:
        return self.root.parent.joinpath(*module.split("."), "__init__.py").is_file()

    @cache  # noqa: B019
    def names(self, module: str) -> frozenset[str]:
        """Every name that the module's own text binds, and the modules that lie in its folder."""
        tree = self.tree_of(module)
        found = set(self._children(module))
        for node in () if tree is None else ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                    found.add(node.name)
                case ast.Name(ctx=ast.Store()):
                    found.add(node.id)
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() as listed):
                    found |= set(ast.literal_eval(listed))
                case ast.Import():
                    found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
                case ast.ImportFrom():
                    found |= self._imported(module, node)
                case _:
                    pass
        return frozenset(found)

    def _imported(self, module: str, node: ast.ImportFrom) -> set[str]:
        if node.names[0].name != "*":
            return {alias.asname or alias.name for alias in node.names}
        source = self.source_of(module, node)
        return {name for name in self.names(source) if not name.startswith("_")}

    def source_of(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + (1 if self.is_package(module) else 0)]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def _children(self, module: str) -> Iterator[str]:
        folder = self.root.parent.joinpath(*module.split("."))
        if folder.is_dir():
            yield from (entry.stem for entry in folder.iterdir())

    def function(self, module: str, name: str) -> ast.FunctionDef | None:
        """The one plain definition of that name at the module's top, or of `Class.method`; imports are followed."""
        tree = self.tree_of(module)
        body: list[ast.stmt] = [] if tree is None else tree.body
        *outer, last = name.split(".")
        for part in outer:
            body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == part), [])
        found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == last]
        if found or outer:
            return found[0] if len(found) == 1 else None
        for node in body:
            if isinstance(node, ast.ImportFrom) and name in self._imported(module, node) and not self._renames(node):
                return self.function(self.source_of(module, node), name)
        return None

    def _renames(self, node: ast.ImportFrom) -> bool:
        return any(alias.asname for alias in node.names)

    def constants(self, module: str) -> dict[str, Any]:
        """Names bound once to a literal that no function of the module changes."""
        tree = self.tree_of(module)
        if tree is None:
            return {}
        changed = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        bound: dict[str, list[Any]] = {}
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name):
                    bound.setdefault(target.id, []).append(node)
        found: dict[str, Any] = {}
        for name, (first, *more) in bound.items():
            if not more and name not in changed and isinstance(first.value, ast.Constant):
                found[name] = first.value.value
        return found

    def asked(self, of: str, patterns: tuple[str, ...] = REACHED) -> dict[str, list[ast.Call | None]]:
        """Names that the sources take from the module `of` (`torch_npu._C`), with the calls of each."""
        found: dict[str, list[ast.Call | None]] = {}
        last = of.rpartition(".")[2]
        mentioned = re.compile(rf"(?<!torch\.)\b{last}\b")
        for file in sorted({file for pattern in patterns for file in self.root.glob(pattern)}):
            if not mentioned.search(file.read_text(encoding="utf-8")):
                continue
            nodes = list(ast.walk(parsed(file)))
            direct = {alias.asname or alias.name: alias.name for n in nodes if isinstance(n, ast.ImportFrom)
                      for alias in n.names if n.module == of}  # fmt: skip
            owners = {of, last} | {alias.asname for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names
                                   if alias.name == last and alias.asname}  # fmt: skip
            calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and node.module == of:
                    for alias in node.names:
                        found.setdefault(alias.name, []).append(None)
                owned = isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners
                if isinstance(node, ast.Attribute) and owned and not node.attr.startswith("__"):
                    found.setdefault(node.attr, []).append(calls.get(id(node)))
                if isinstance(node, ast.Name) and node.id in direct and id(node) in calls:
                    found.setdefault(direct[node.id], []).append(calls[id(node)])
        return found

    def set_from_outside(self, module: str) -> frozenset[str]:
        """`torch_npu.Format = …` in any module of the wheel."""
        written = re.compile(rf"^\s*{re.escape(module)}\.(\w+)\s*=[^=]", re.MULTILINE)
        texts = (file.read_text(encoding="utf-8") for file in self.root.rglob("*.py"))
        return frozenset(name for text in texts if f"{module}." in text for name in written.findall(text))


def signature(node: ast.FunctionDef) -> list[tuple[str, str]]:
    """As surface.py writes a live one's: (name and kind, the default's text)."""
    given, plain = node.args, [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    rows = [
        (arg, "POSITIONAL_ONLY" if arg in given.posonlyargs else "POSITIONAL_OR_KEYWORD", default)
        for arg, default in zip(plain, defaults, strict=True)
    ]
    rows += [(given.vararg, "VAR_POSITIONAL", None)] if given.vararg else []
    rows += [(arg, "KEYWORD_ONLY", d) for arg, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    rows += [(given.kwarg, "VAR_KEYWORD", None)] if given.kwarg else []
    return [
        (f"{arg.arg} {kind}", "" if default is None else _text(default))
        for arg, kind, default in rows
        if arg.arg not in ("self", "cls")
    ]


def _text(default: ast.expr) -> str:
    try:
        return repr(ast.literal_eval(default))
    except ValueError:
        return "?"
