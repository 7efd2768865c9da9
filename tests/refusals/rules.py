"""The statements of a module that refuse, found in its syntax tree, and the module as it is without one of them."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from attrs import frozen

COLLECTS = ("_refuse", "unread", "raise_for")
"""Names of what is called, as a statement, with a sentence or several for the person, beside `problems.append(…)`."""
SENTENCES = ("unknown", "named_twice", "_untrusted")
"""Functions whose result is such a sentence."""


@frozen(kw_only=True)
class Rule:
    module: str
    within: tuple[str, ...]
    """Classes and functions around the statement, outermost first."""
    line: int
    text: str
    """The statement in one line, as `ast` writes it."""
    translates: bool
    """It stands in an except clause: without it, the exception goes on as it is."""

    def __str__(self) -> str:
        return f"{self.module} {'.'.join(self.within)}: {self.text}"


@cache
def rules_of(module: str) -> tuple[Rule, ...]:
    """In the order of the lines."""
    tree = ast.parse(_source(module))
    return tuple(sorted(_rules(module, tree.body, (), handled=False, words=False), key=lambda rule: rule.line))


def _rules(
    module: str, body: Sequence[ast.AST], within: tuple[str, ...], *, handled: bool, words: bool
) -> Iterator[Rule]:
    """`handled`: in an except clause. `words`: in a function that says what is refused already (`-> str`; one that may
    refuse is `-> str | None`)."""
    for node in body:
        inside = (*within, node.name) if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else within
        if isinstance(node, ast.Return) and words:
            continue
        if isinstance(node, ast.stmt) and _refuses(node):
            yield Rule(
                module=module,
                within=within,
                line=node.lineno,
                text=" ".join(ast.unparse(node).split()),
                translates=handled and isinstance(node, ast.Raise),
            )
        in_clause = isinstance(node, ast.ExceptHandler) or (handled and inside == within)
        only_words = _only_words(node) if isinstance(node, ast.FunctionDef) else words
        yield from _rules(module, list(ast.iter_child_nodes(node)), inside, handled=in_clause, words=only_words)


def _refuses(node: ast.stmt) -> bool:
    """Whether it raises, or gives a sentence to who asked: by `yield`, `return` or a call."""
    if isinstance(node, ast.Raise):
        return node.exc is not None
    if isinstance(node, ast.Return):
        return node.value is not None and _is_sentence(node.value)
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Yield):
        return node.value.value is not None and _is_sentence(node.value.value)
    return isinstance(node.value, ast.Call) and _collects(node.value)


def _collects(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return "problems" in ast.unparse(call.func.value) and _is_sentence(call.args[0])
    return ast.unparse(call.func).rpartition(".")[2] in COLLECTS


def _is_sentence(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and " " in value.value
    if isinstance(value, ast.JoinedStr):
        return any(map(_is_sentence, value.values))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return _is_sentence(value.func.value)  # "…".strip()
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in SENTENCES


def _only_words(function: ast.FunctionDef) -> bool:
    return function.returns is not None and ast.unparse(function.returns) == "str"


@contextmanager
def without(rule: Rule) -> Iterator[None]:
    """The product lacks this one statement: the code of its function is exchanged, and put back."""
    tree = ast.parse(_source(rule.module))
    changed = _Without(rule)
    tree = ast.fix_missing_locations(changed.visit(tree))
    assert changed.found == 1, rule
    function = _function(rule)
    made = _codes(compile(tree, function.__code__.co_filename, "exec", dont_inherit=True))
    inner = ".".join(rule.within)
    holders = [function]
    if inner != _name(function):  # closures that were made already
        live = _codes(function.__code__, _name(function))
        holders += [f for f in gc.get_referrers(live[inner]) if isinstance(f, FunctionType)]
    with ExitStack() as exchanges:
        for holder in holders:
            exchanges.enter_context(_exchanged(holder, made[_name(holder)]))
        yield


@contextmanager
def _exchanged(function: FunctionType, code: CodeType) -> Iterator[None]:
    kept = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = kept


class _Without(ast.NodeTransformer):
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.found = 0

    def visit(self, node: ast.AST) -> Any:
        if not (
            isinstance(node, ast.stmt)
            and node.lineno == self.rule.line
            and _refuses(node)
            and " ".join(ast.unparse(node).split()) == self.rule.text
        ):
            return self.generic_visit(node)
        self.found += 1
        # Unreachable, and there: what it names stays a name of the outer function, and a generator stays one.
        unreachable = ast.If(test=ast.Constant(False), body=[node], orelse=[])
        instead: ast.stmt = ast.Pass()
        if self.rule.translates:
            instead = ast.Raise()
        elif isinstance(node, ast.Return):
            instead = ast.Return(value=ast.Constant(None))
        return [ast.copy_location(unreachable, node), ast.copy_location(instead, node)]


def _function(rule: Rule) -> FunctionType:
    """The live function: the outermost one around the rule."""
    found: Any = importlib.import_module(rule.module)
    for name in rule.within:
        found = vars(found)[name]
        if not inspect.isclass(found):
            break
    found = getattr(found, "__func__", getattr(found, "fget", found))
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{rule} stands in no function"
    return found


def _codes(code: CodeType, within: str = "") -> dict[str, CodeType]:
    """{dotted name: code} of everything inside of one; `within` is the name of that."""
    found: dict[str, CodeType] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            name = f"{within}.{const.co_name}" if within else const.co_name
            found |= {name: const, **_codes(const, name)}
    return found


def _name(function: FunctionType) -> str:
    return function.__qualname__.replace(".<locals>", "")


@cache
def _source(module: str) -> str:
    path = importlib.import_module(module).__file__
    assert path is not None
    return Path(path).read_text(encoding="utf-8")
