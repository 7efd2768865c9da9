"""Python as text, with what others wrote in it as text and in comments, never as code: names are checked, values are
written as literals, comments lose what could end them, and the text is read back. The templates are in templates/.
"""

from __future__ import annotations

import ast
import io
import keyword
import math
import tokenize
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError, visible

WIDTH = 120
FOLDER = Path(__file__).with_name("templates")


class Code(str):
    """Text that is Python already; anything else is put into a template as a literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def one_line(text: str) -> str:
    """One line of printable characters, whatever was in it."""
    return visible(" ".join(text.splitlines()))


def name(text: str) -> Code:
    """`text`, where Python takes it for a name; ConfigError for any other."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ConfigError(f"a script cannot be written: {text!r} is no name in Python.")
    return Code(text)


def dotted(path: str) -> Code:
    """`torch._dynamo.mark_static`"""
    return Code(".".join(map(name, path.split("."))))


def literal(value: Any) -> Code:
    """A number, text, None, or lists, tuples and mappings of them; what is code already stays so."""
    if isinstance(value, Code):
        return value
    if isinstance(value, tuple):
        return Code(tuple(map(literal, value)))
    if isinstance(value, list):
        return Code([literal(part) for part in value])
    if isinstance(value, Mapping):
        return Code({literal(key): literal(part) for key, part in value.items()})
    if isinstance(value, float) and not math.isfinite(value):
        return call("float", str(value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return Code(repr(value))
    raise ConfigError(f"a script cannot be written: it would have to say {value!r}.")


def call(function: str, /, *arguments: Any, **keywords: Any) -> Code:
    """`call("f", 1, after="x")` is `f(1, after='x')`; values become literals."""
    named = [f"{name(key)}={literal(value)}" for key, value in keywords.items()]
    return Code(f"{dotted(function)}({', '.join([*map(literal, arguments), *named])})")


def item(place: str, key: Any) -> Code:
    """`place[key]`"""
    return Code(f"{dotted(place)}[{literal(key)}]")


def comment(text: str) -> Code:
    return Code(f"# {one_line(text)}".rstrip())


def docstring(text: str) -> Code:
    """In three double quotes where it can stand there as it is, else as Python writes any text."""
    plain = all(line.isprintable() for line in text.split("\n"))
    ends = "\\" in text or '"""' in text or text[:1] == '"' or text[-1:] == '"'
    return Code(repr(text) if ends or not plain else f'"""{text}"""')


def statement(line: str, indent: int = 0) -> Code:
    """A call, an argument a line where it is longer than WIDTH at its indent."""
    made = ast.parse(line, mode="eval").body
    if indent + len(line) <= WIDTH or not isinstance(made, ast.Call):
        return Code(line)
    pad = " " * indent
    arguments = [ast.unparse(part) for part in (*made.args, *made.keywords)]
    return Code("\n".join([f"{ast.unparse(made.func)}(", *(f"{pad}    {one}," for one in arguments), f"{pad})"]))


def written(template: str, **values: Any) -> str:
    """A template of ours with these values. With its quotes changed it must read as before, or it is not written."""
    text = _environment().get_template(template).render(values)
    quoted = _double_quoted(text)
    if ast.dump(ast.parse(quoted)) != ast.dump(ast.parse(text)):
        raise ConfigError("a script cannot be written: its text would say something else than was meant.")
    return quoted


@cache
def _environment() -> Any:
    """Whatever a template puts out is a literal, or was checked by one of these filters."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        finalize=literal,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.filters.update(name=name, dotted=dotted, comment=comment, docstring=docstring, statement=statement)  # pyright: ignore[reportUnknownMemberType]
    return made


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
