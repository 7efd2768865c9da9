"""What a person's factory takes: its signature, read in its file without running it, or asked of the function itself.

Knows no device and no torch.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import read_text
from npucompose.models.inputs import call_problems, shown_signature

PLAIN = (bool, int, float, str, type(None))
SEED = "seed"
"""The parameter that is given the experiment's seed, where no argument of that name is."""


@frozen
class CodeDefault:
    """A default that is no plain value, as its file has it: `torch.float32`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@frozen
class Declared:
    """A factory's signature and the line that says it: `net.py:14`."""

    signature: Signature
    place: str

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Why the factory cannot be called with these arguments, as clauses; the seed is given where it has one."""
        given = {**({SEED: 0} if takes_seed(self.signature) else {}), **arguments}
        return list(call_problems(self.signature, given))

    def defaults(self) -> dict[str, Any]:
        """{parameter: default} of those whose default is null, true or false, a number or text."""
        parameters = self.signature.parameters.items()
        return {name: p.default for name, p in parameters if type(p.default) in PLAIN and name != SEED}

    def __str__(self) -> str:
        return f"{shown_signature(self.signature)}, {self.place}"


def takes_seed(signature: Signature) -> bool:
    parameter = signature.parameters.get(SEED)
    return parameter is not None and parameter.kind is not Parameter.POSITIONAL_ONLY


def live(found: Callable[..., Any]) -> Declared | None:
    """Of a function or class that was imported; None where Python does not know its signature."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    place = "line not known"
    with suppress(OSError, TypeError):
        function = inspect.unwrap(found)
        line = inspect.getsourcelines(function)[1]
        place = f"{_near(inspect.getsourcefile(function) or '')}:{line}"
    return Declared(signature, place)


def read(file: str, name: str) -> Declared | None:
    """Of a function or class at the top of a Python file, which is parsed and not run.

    None where the text does not decide it: decorated, bound twice, imported from elsewhere, an inherited `__init__`.
    """
    try:
        tree = ast.parse(read_text(Path(file), named=True))
    except (SyntaxError, ValueError, RecursionError, MemoryError, ConfigError):
        return None  # importing it will say why
    if list(_bound(tree)).count(name) != 1:
        return None
    node = next((one for one in tree.body if getattr(one, "name", None) == name), None)
    if isinstance(node, ast.ClassDef):
        return _of_class(node, file)
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return Declared(_signature(node.args), f"{_near(file)}:{node.lineno}")
    return None


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that something in the file binds, in whatever scope; `*` for what an import of all might bind."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _of_class(node: ast.ClassDef, file: str) -> Declared | None:
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]
    if node.decorator_list or node.keywords or len(made) != 1 or made[0].decorator_list:
        return None
    signature = _signature(made[0].args)
    itself, *rest = signature.parameters.values() or (None,)
    if itself is None or itself.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return None
    return Declared(Signature(rest), f"{_near(file)}:{made[0].lineno}")  # pyright: ignore[reportArgumentType]


def _signature(written: ast.arguments) -> Signature:
    positional = [*written.posonlyargs, *written.args]
    defaults = [None] * (len(positional) - len(written.defaults)) + [*written.defaults]
    kinds = [Parameter.POSITIONAL_ONLY] * len(written.posonlyargs)
    kinds += [Parameter.POSITIONAL_OR_KEYWORD] * len(written.args)
    found = [_parameter(*one) for one in zip(positional, kinds, defaults, strict=True)]
    if written.vararg is not None:
        found.append(_parameter(written.vararg, Parameter.VAR_POSITIONAL, None))
    named = zip(written.kwonlyargs, written.kw_defaults, strict=True)
    found += [_parameter(one, Parameter.KEYWORD_ONLY, default) for one, default in named]
    if written.kwarg is not None:
        found.append(_parameter(written.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(found)


def _parameter(written: ast.arg, kind: Any, default: ast.expr | None) -> Parameter:
    return Parameter(written.arg, kind, default=Parameter.empty if default is None else _value(default))


def _value(written: ast.expr) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return CodeDefault(ast.unparse(written))


def _near(file: str) -> str:
    """As a person would name it from here."""
    here = os.path.relpath(file)
    return file if here.startswith("..") else here
