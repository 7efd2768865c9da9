"""Python as text, with what others wrote in it as text and in comments, never as code: names are checked, values are
written as literals, and comments lose what could end them. The templates are in templates/.
"""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Callable, Mapping
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


def _no_literal(value: Any) -> Code:
    raise ConfigError(f"a script cannot be written: it would have to say {value!r}.")


def literal(value: Any, other: Callable[[Any], Code] = _no_literal) -> Code:
    """A number, text, None, or lists, tuples and mappings of them; code stays so, and `other` writes anything else."""
    if isinstance(value, Code):
        return value
    if isinstance(value, (tuple, list)):
        return Code((tuple if isinstance(value, tuple) else list)(literal(part, other) for part in value))
    if isinstance(value, Mapping):
        return Code({literal(key, other): literal(part, other) for key, part in value.items()})
    if isinstance(value, float) and not math.isfinite(value):
        return call("float", str(value))
    if value is not None and not isinstance(value, (bool, int, float, str)):
        return other(value)
    plain = repr(value)  # texts in double quotes, as formatters want it; what holds a quote stays as it is
    quoted = plain[:1] == "'" and not set(plain[1:-1]) & set("\"'\\")
    return Code(f'"{plain[1:-1]}"' if quoted else plain)


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
    arguments = [ast.get_source_segment(line, part) for part in (*made.args, *made.keywords)]
    called = f"{ast.get_source_segment(line, made.func)}("
    return Code("\n".join([called, *(f"{pad}    {one}," for one in arguments), f"{pad})"]))


def written(template: str, **values: Any) -> str:
    """A template of ours with these values."""
    return _environment().get_template(template).render(values)


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
    made.globals.update(call=call, item=item)  # pyright: ignore[reportUnknownMemberType]
    return made
