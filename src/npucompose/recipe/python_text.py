"""Python as a tree, and the text that is written of it. What others wrote can be in it as text and in comments, never
as code: names are checked, strings are constants, comments lose what could end them, and the text is read back.
"""

from __future__ import annotations

import ast
import io
import keyword
import math
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.visible import visible

WIDTH = 120


@frozen
class Comment:
    """`# …`, alone on a line."""

    text: str


@frozen
class Block:
    """Lines of comment that are safe as they are: each begins with `#` and holds printable characters only."""

    lines: tuple[str, ...]


@frozen
class Remarked:
    """A statement with a comment behind it."""

    statement: ast.stmt
    remark: str


@frozen
class Pasted:
    """Text of our own, with the comments it has."""

    source: str


@frozen
class Function:
    """`def name(parameters) -> returns:` with a docstring; `parameters` and `returns` are constants of our own."""

    name: str
    parameters: str
    returns: str
    doc: str
    body: Sequence[Part]


@frozen
class Blank:
    pass


Part = ast.stmt | Comment | Block | Remarked | Pasted | Function | Blank


def said(text: str) -> str:
    """One line of printable characters, whatever was in it."""
    return visible(" ".join(text.splitlines()))


# -- trees


def name(text: str) -> str:
    """`text`, where Python takes it for a name; ConfigError for any other."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ConfigError(f"a script cannot be written: {text!r} is no name in Python.")
    return text


def dotted(path: str) -> ast.expr:
    """`torch._dynamo.mark_static`"""
    first, *rest = path.split(".")
    made: ast.expr = ast.Name(name(first), ast.Load())
    for part in rest:
        made = ast.Attribute(made, name(part), ast.Load())
    return made


def literal(value: Any) -> ast.expr:
    """A number, text, None, or lists, tuples and mappings of them; what is an expression already stays so."""
    if isinstance(value, ast.expr):
        return value
    if isinstance(value, tuple):
        return ast.Tuple([literal(part) for part in value], ast.Load())
    if isinstance(value, list):
        return ast.List([literal(part) for part in value], ast.Load())
    if isinstance(value, Mapping):
        return ast.Dict([literal(key) for key in value], [literal(part) for part in value.values()])
    if isinstance(value, float) and not math.isfinite(value):
        return call("float", str(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.copysign(1, value) < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return ast.Constant(value)
    raise ConfigError(f"a script cannot be written: it would have to say {value!r}.")


def call(function: str, /, *arguments: Any, **keywords: Any) -> ast.Call:
    """`call("f", 1, after="x")` is `f(1, after="x")`; values become literals."""
    named = [ast.keyword(name(key), literal(value)) for key, value in keywords.items()]
    return ast.Call(dotted(function), [literal(value) for value in arguments], named)


def said_alone(expression: ast.expr) -> ast.stmt:
    return ast.Expr(expression)


def assigned(place: str, value: Any) -> ast.stmt:
    target = dotted(place)
    target.ctx = ast.Store()  # type: ignore[attr-defined]
    return ast.Assign([target], literal(value))


def item(place: str, key: Any) -> ast.expr:
    """`place[key]`"""
    return ast.Subscript(dotted(place), literal(key), ast.Load())


def ours(constant: str) -> ast.stmt:
    """A statement that stands in npucompose's own source."""
    (statement,) = ast.parse(constant).body
    return statement


# -- text


def written(sections: Iterable[Sequence[Part]]) -> str:
    """The sections, two blank lines between them. Read back it is the tree, or it is not written."""
    kept = [list(section) for section in sections]
    text = _double_quoted("\n\n\n".join("\n".join(_lines(section, 0)) for section in kept) + "\n")
    tree = ast.Module([statement for section in kept for statement in _statements(section)], [])
    if ast.dump(ast.parse(text)) != ast.dump(tree):
        raise ConfigError("a script cannot be written: its text would say something else than was meant.")
    return text


def _statements(parts: Iterable[Part]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for part in parts:
        if isinstance(part, ast.stmt):
            found.append(part)
        elif isinstance(part, Remarked):
            found.append(part.statement)
        elif isinstance(part, Pasted):
            found += ast.parse(part.source).body
        elif isinstance(part, Function):
            made = _head(part)
            made.body = [ast.Expr(ast.Constant(part.doc)), *_statements(part.body)]
            found.append(made)
    return found


def _head(function: Function) -> ast.FunctionDef:
    (made,) = ast.parse(f"def f({function.parameters}) -> {function.returns}: ...").body
    assert isinstance(made, ast.FunctionDef)
    made.name = name(function.name)
    return made


def _lines(parts: Iterable[Part], indent: int) -> list[str]:
    pad, lines = " " * indent, list[str]()
    for part in parts:
        if isinstance(part, Blank):
            lines.append("")
        elif isinstance(part, Comment):
            lines.append(f"{pad}# {said(part.text)}".rstrip())
        elif isinstance(part, Block):
            lines += [pad + line for line in part.lines]
        elif isinstance(part, Remarked):
            lines.append(f"{pad}{_text(part.statement)}  # {said(part.remark)}")
        elif isinstance(part, Pasted):
            lines += part.source.rstrip().split("\n")
        elif isinstance(part, Function):
            head = _text(_head(part)).splitlines()[0]
            lines += [pad + head, f"{pad}    {docstring(part.doc)}", *_lines(part.body, indent + 4)]
        else:
            lines += _statement(part, indent)
    return lines


def docstring(text: str) -> str:
    """In three double quotes where it can stand there as it is, else as Python writes any text."""
    plain = all(line.isprintable() for line in text.split("\n"))
    ends = "\\" in text or '"""' in text or text[:1] == '"' or text[-1:] == '"'
    return repr(text) if ends or not plain else f'"""{text}"""'


def _statement(statement: ast.stmt, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(statement, (ast.For, ast.If)):
        head = type(statement)(**{field: getattr(statement, field) for field in statement._fields})
        head.body = [ast.Pass()]
        return [pad + _text(head).splitlines()[0], *_lines(statement.body, indent + 4)]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return [pad + docstring(str(statement.value.value))]
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict) and value.keys and _in_rows(statement):
        head = _text(statement).partition("{")[0]
        rows = (f"{_text(k)}: {_text(v)}" for k, v in zip(value.keys, value.values, strict=True) if k)
        return [f"{pad}{head}{{", *(f"{pad}    {row}," for row in rows), f"{pad}}}"]
    line = pad + _text(statement)
    if len(line) <= WIDTH or not isinstance(statement, ast.Expr) or not isinstance(value, ast.Call):
        return [line]
    arguments = [*map(_text, value.args), *(f"{k.arg}={_text(k.value)}" for k in value.keywords)]
    return [f"{pad}{_text(value.func)}(", *(f"{pad}    {one}," for one in arguments), f"{pad})"]


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def _in_rows(statement: ast.stmt) -> bool:
    """A mapping that is returned, or a constant of the module: one entry a line."""
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        return isinstance(target, ast.Name) and target.id.isupper()
    return isinstance(statement, ast.Return)


def _double_quoted(source: str) -> str:
    """Text in double quotes, as formatters want it; `repr` prefers single ones. What holds a quote stays as it is.

    So does text inside an f-string, which Python 3.12 reads as tokens of its own: older ones need another quote there.
    """
    lines = source.splitlines(keepends=True)
    inside = 0
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        inside += (tokenize.tok_name[token.type] == "FSTRING_END") - (tokenize.tok_name[token.type] == "FSTRING_START")
        (row, start), (last, end) = token.start, token.end
        plain = row == last and not inside and not set(token.string[1:-1]) & set("\"'\\")
        if token.type == tokenize.STRING and token.string.startswith("'") and plain:
            line = lines[row - 1]
            lines[row - 1] = f'{line[:start]}"{token.string[1:-1]}"{line[end:]}'
    return "".join(lines)
