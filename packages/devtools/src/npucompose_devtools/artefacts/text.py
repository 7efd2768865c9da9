"""A file as text, or one sentence that says why not; and protobuf's text format as plain mappings, without a schema:
every field is a list, every block a mapping again. Knows no form of an artefact."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from airflow_free.foreign_files import UnusableFile, open_regular, read_open
from npucompose.errors import ConfigError

Message = dict[str, list[Any]]
"""{field: its values in order}; a value is text (numbers and enums as written) or a Message."""

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([{}<>\[\]:,;])|([^\s{}<>\[\]:,;"'#]+)""", re.DOTALL
)
_OPEN, _CLOSE = "{<", "}>"
LIMIT_BYTES = 64 << 20
"""A larger file is a dump with its weights, or a log, which is read line by line."""
BLOCK, LONGEST_LINE = 1 << 20, 64 << 10
"""Bytes of such a log that are read at once, and of a line of it."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, for all that is asked of it. ConfigError for what the system refuses, and for a pipe or a device, which
    would never end."""
    try:
        with open_regular(path, sys.maxsize, named=True) as file:
            yield file
    except UnusableFile as error:
        raise ConfigError(f"{path} {error}; logs and dumps are read from files.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def text_of(path: Path, file: BinaryIO, limit: int) -> str:
    """The text of what was opened there; ConfigError when it is empty, binary, or has grown to more than `limit`."""
    data = read_open(file, limit)
    if not data.strip():
        raise ConfigError(f"{path} is empty.")
    _refuse_binary(path, data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.") from error


def _refuse_binary(path: Path, data: bytes) -> None:
    if b"\0" in data:
        raise ConfigError(
            f"{path} is binary. A serialised graph (.pb, .om, .air) is not read: dump it as text "
            "(debug.graph_dump.type=pbtxt, DUMP_GE_GRAPH=2)."
        )


def blocks_of(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """A file of any length in parts of about BLOCK bytes that end with a line; of a longer line its beginning."""
    while block := file.read(BLOCK):
        block += file.readline(LONGEST_LINE)
        _refuse_binary(path, block)
        end = block.endswith(b"\n")
        while not end and (more := file.readline(LONGEST_LINE)):
            end = more.endswith(b"\n")
            block += b"\n" * end
        yield block


def cut_off(name: str, why: str) -> ConfigError:
    """`dump.txt is cut off: …`, with the way out."""
    return ConfigError(f"{name} is cut off: {why}. Write it again, or copy all of it.")


class NotProtobuf(ValueError):
    """The text is something else."""


def parsed(text: str, name: str) -> Message:
    """The root message. NotProtobuf where it is none, ConfigError where it ends inside a block or a value.

    `parsed('op { name: "a" dim: 2 dim: -1 }', "")` is {"op": [{"name": ["a"], "dim": ["2", "-1"]}]}.
    """
    root: Message = {}
    stack: list[Message] = [root]
    field: str | None = None
    listing = False
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:  # every character begins a token, but a quote that nothing closes
            raise cut_off(name, f"a text that begins in line {_line(text, position)} has no end")
        position = found.end()
        quoted, sign, word = found.groups()
        if quoted is not None or word is not None:
            if field is not None:
                stack[-1].setdefault(field, []).append(_unquoted(quoted) if quoted is not None else word)
                field = field if listing else None
            elif word is not None and (word[0].isalpha() or word[0] == "_"):
                field = word
            else:
                raise NotProtobuf(f"line {_line(text, position)}")
        elif sign is not None:
            field, listing = _signed(sign, field, listing, stack, text, position)
    if len(stack) > 1 or field is not None:
        open_blocks = len(stack) - 1
        raise cut_off(name, f"{open_blocks} blocks are open at its end, line {_line(text, position)}")
    return root


def _signed(
    sign: str, field: str | None, listing: bool, stack: list[Message], text: str, position: int
) -> tuple[str | None, bool]:
    """The field that is being read, and whether it is a list in brackets, after this sign."""
    if sign in _OPEN and field is not None:
        message: Message = {}
        cast("list[Any]", stack[-1].setdefault(field, [])).append(message)
        stack.append(message)
        return None, False
    if sign in _CLOSE and field is None and len(stack) > 1:
        stack.pop()
        return None, False
    if sign == "[" and field is not None:
        return field, True
    if sign == "]" and listing:
        return None, False
    if sign in ":,;":
        return field, listing
    raise NotProtobuf(f"line {_line(text, position)}")


def _unquoted(token: str) -> str:
    try:
        return str(ast.literal_eval(token.replace("\n", "\\n")))
    except (SyntaxError, ValueError):
        return token[1:-1]


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


# Reading messages.


def texts(message: Message, field: str) -> list[str]:
    return [value for value in message.get(field, []) if isinstance(value, str)]


def text(message: Message, field: str) -> str:
    """The last value, as protobuf takes it; an empty text where there is none."""
    return (texts(message, field) or [""])[-1]


def messages(message: Message, field: str) -> list[Message]:
    return [value for value in message.get(field, []) if isinstance(value, dict)]


def attributes(message: Message) -> dict[str, Message]:
    """A map field `attr { key: "k" value { … } }`."""
    return {text(a, "key"): (messages(a, "value") or [{}])[-1] for a in messages(message, "attr")}
