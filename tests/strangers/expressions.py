"""Regular expressions of the sources, and texts that an expression tries in the most ways: made of its own pieces.

An expression whose cost grows with the square of a text gives itself away on a text that begins to match everywhere and
matches nowhere: a piece of it, again and again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

with_parser: Any
try:
    from re import _constants as codes  # pyright: ignore[reportAttributeAccessIssue]
    from re import _parser as with_parser  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # before Python 3.11
    import sre_constants as codes
    import sre_parse as with_parser

FUNCTIONS = ("compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split")
AT_ONE_PLACE = frozenset({"match", "fullmatch"})
MOST_PIECES = 16
SPACES = (" ", "\n")


@frozen
class Expression:
    """One that stands in a source: where, its text and flags, and whether it is only ever tried at one place."""

    where: str
    pattern: str
    flags: int
    anchored: bool

    def tries(self, text: str) -> None:
        """As its users do: at the beginning, or everywhere."""
        compiled = re.compile(self.pattern, self.flags)
        if self.anchored:
            compiled.match(text)
            compiled.fullmatch(text)
        else:
            for _ in compiled.finditer(text):
                pass


def expressions(file: Path, name: str, everywhere: str = "") -> Iterator[Expression]:
    """All that `re` is given in the file: a text, or texts that are joined, of names and f-strings too where the module
    itself says what they hold. How a compiled one is used is looked up in `everywhere`, all sources together."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    constants = _constants(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in FUNCTIONS):
            continue
        pattern = _text(node.args[0], constants)
        if pattern is None:
            continue
        used = {node.func.attr} if node.func.attr != "compile" else _uses(tree, source, everywhere or source, node)
        flags = _flags(node, source)
        yield Expression(f"{name}:{node.lineno}", pattern, flags, bool(used) and used <= AT_ONE_PLACE)


def _constants(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            text = _text(node.value, found)
            if text is not None:
                found[node.targets[0].id] = text
    return found


def _text(node: ast.expr, constants: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part.value if isinstance(part, ast.FormattedValue) else part, constants) for part in node.values]
        return None if None in parts else "".join(part or "" for part in parts)
    return None


def _flags(node: ast.Call, source: str) -> int:
    given = [ast.get_source_segment(source, word) or "" for word in (*node.args[1:], *(k.value for k in node.keywords))]
    named = {word for text in given for word in re.findall(r"re\.([A-Z]+)\b", text)}
    return sum({int(getattr(re, word)) for word in named})


def _uses(tree: ast.Module, own: str, everywhere: str, call: ast.Call) -> set[str]:
    """The methods that are called on the name to which the compiled expression is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            return set(re.findall(rf"\b{name}\.(\w+)\(", own if name.startswith("_") else everywhere))
    return set()


def hostile_texts(expression: Expression, length: int) -> Iterator[str]:
    """Texts of about that length."""
    parsed = with_parser.parse(expression.pattern, expression.flags)
    for space in SPACES:
        beginnings = list(dict.fromkeys(_beginnings(parsed, space)))[:MOST_PIECES]
        pieces = list(dict.fromkeys(piece for piece in (*beginnings, *_pieces(parsed, space)) if piece))[:MOST_PIECES]
        for piece in pieces:
            pumped = piece * (length // len(piece))
            yield pumped
            yield pumped + "\0"
        for head in beginnings[:6]:
            yield from (head + piece * (length // len(piece)) + "\0" for piece in pieces if len(piece) < 4)


def _beginnings(items: Sequence[Any], space: str) -> Iterator[str]:
    """What matches the first part, the first two and so on."""
    made = ""
    for item in items:
        made += _sample(item, space)
        yield made[:200]


def _pieces(items: Sequence[Any], space: str) -> Iterator[str]:
    """What matches each part, and the parts of each."""
    for item in items:
        yield _sample(item, space)[:200]
        yield from _pieces_inside(item, space)


def _pieces_inside(item: Any, space: str) -> Iterator[str]:
    for inner in _inner(item):
        yield from _pieces(inner, space)


def _inner(item: Any) -> Iterator[Sequence[Any]]:
    """The sequences within."""
    code, given = item
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None)):
        yield given[2]
    elif code is codes.SUBPATTERN:
        yield given[3]
    elif code is codes.BRANCH:
        yield from given[1]
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield given[1]
    elif code is getattr(codes, "ATOMIC_GROUP", None):
        yield given


def _sample(item: Any, space: str) -> str:
    code, given = item
    if code is codes.LITERAL:
        return chr(given)
    if code is codes.NOT_LITERAL:
        return "a" if given != ord("a") else "b"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(given, space)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None)):
        return "".join(_sample(one, space) for one in given[2]) * min(max(given[0], 1), 4)
    if code in (codes.SUBPATTERN, codes.BRANCH):
        inner = list(_inner(item))
        return "".join(_sample(one, space) for one in inner[0])
    return ""


def _member(given: Sequence[Any], space: str) -> str:
    """A character of the set."""
    negated = given[0][0] is codes.NEGATE
    text = _class_text(given[1:] if negated else given)
    tried = re.compile(f"[{'^' if negated else ''}{text}]")
    likely = f"a1{space}_.:,=-/\"'()[]{{}}<>#%$@!xyz"
    return next((one for one in likely if tried.fullmatch(one)), "") or next(
        (chr(n) for n in range(32, 300) if tried.fullmatch(chr(n))), ""
    )


def _class_text(given: Sequence[Any]) -> str:
    names = {
        codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
    }  # fmt: skip
    made = ""
    for code, value in given:
        if code is codes.LITERAL:
            made += re.escape(chr(value))
        elif code is codes.RANGE:
            made += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif code is codes.CATEGORY:
            made += names[value]
    return made
