"""Cases of files as text and as YAML."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose.input_safety import InputLimits, plain_data, read_text, variable
from tests.refusals.case import Case

WITH_ALIASES = InputLimits(most_values=1_000, deepest=5, aliases=True)
RECIPE = InputLimits(most_values=1_000, deepest=5, aliases=False)
BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))


def text(content: bytes, most_bytes: int = 1_000) -> Callable[[Path], Any]:
    def read(folder: Path) -> str:
        (folder / "file").write_bytes(content)
        return read_text(folder / "file", most_bytes)

    return read


def at(path: str, most_bytes: int = 1_000) -> Callable[[Path], Any]:
    return lambda folder: read_text(folder / path, most_bytes)


def socket(folder: Path) -> str:
    place = folder / "socket"
    with sockets.socket(sockets.AF_UNIX) as made:
        made.bind(os.path.relpath(place))  # its name may not be long
        return read_text(place)


def link(folder: Path) -> str:
    (folder / "link").symlink_to("/etc/hostname")
    return read_text(folder / "link")


def yaml(content: str, limits: InputLimits = WITH_ALIASES) -> Callable[[Path], Any]:
    return lambda folder: plain_data(content, "x", limits)


TEXT, YAML, FILES = "npucompose.input_safety", "npucompose.input_safety", "airflow_free.foreign_files"
CASES = (
    Case(FILES, "that can be opened", socket, "is no file that can be opened", "cannot be read: [Errno 6]"),
    Case(FILES, "raise UnusableFile('is no file')", at("/dev/null"), "/dev/null is no file"),
    Case(FILES, "is a link", link, "is a link, and no link is followed", "cannot be read: [Errno 40]"),
    Case(FILES, "a file of more than", text(b"12345", 4), "has 5 bytes; a file of more than 4", "is longer"),
    Case(FILES, "is longer than", at("/proc/self/status", 10), "is longer than 10 bytes"),
    Case(TEXT, "{path} {error}", at("/dev/null"), "/dev/null is no file", "UnusableFile: is no file"),
    Case(TEXT, "there is no such file", at("none"), "there is no such file", "FileNotFoundError"),
    Case(TEXT, "cannot be read", at("x" * 300), "cannot be read", "OSError"),
    Case(TEXT, "is not text in UTF-8", text(b"caf\xe9"), "is not text in UTF-8", "UnicodeDecodeError"),
    Case(TEXT, "is no name of an environment", lambda _: variable("A,B"), "is no name of an environment variable"),
    Case(TEXT, "that it is a secret", lambda _: variable("API_TOKEN"), "its name says that it is a secret"),
    Case(YAML, "{why}{tab}", yaml("a: [1,"), "x:2 is not YAML: did not find", "ParserError"),
    Case(YAML, "str(error).split()", yaml("a: \ud800"), "x is not YAML", "Unicode"),
    Case(YAML, "a second document", yaml("a: 1\n---\nb: 2"), ":2: a second document begins"),
    Case(YAML, "_Builder._refuse :: raise", yaml("a: 1\n---\nb: 2"), ":2: a second document begins"),
    Case(YAML, "holds more than", yaml(f"[{', '.join('1' * 1000)}]"), "more than 1,000 values"),
    Case(YAML, "holds more than", yaml(BOMB), "more than 1,000 values"),
    Case(YAML, "take :: anchors", yaml("a: &x 1", RECIPE), ":1: anchors and aliases are not read"),
    Case(YAML, "take :: anchors", yaml("a: &x [1]", RECIPE), ":1: anchors and aliases are not read"),
    Case(YAML, "take :: anchors", yaml("a: *x", RECIPE), ":1: anchors and aliases are not read", "stands for"),
    Case(YAML, "event.tag", yaml("a: !!set {b: null}"), "the tag tag:yaml.org,2002:set is not read"),
    Case(YAML, "nested more than", yaml("[[[[[[1]]]]]]"), ":1: nested more than 5 deep"),
    Case(YAML, "nested more than", yaml("[" * 1000 + "]" * 1000), ":1: nested more than 5 deep"),
    Case(YAML, "stands for nothing", yaml("a: *b"), ":1: *b stands for nothing", "KeyError"),
    Case(YAML, "stands for nothing", yaml("&a [*a]"), ":1: *a stands for nothing", "KeyError"),
    Case(YAML, "the merge key << is not read", yaml("<<: {a: 1}", RECIPE), "the merge key << is not read"),
    Case(YAML, "a key must", yaml("{[1]: 2}"), ":1: a key must be a plain value", "TypeError"),
    Case(YAML, "a key must", yaml("a: &k [1]\n*k : 2"), ":2: a key must be a plain value", "TypeError"),
    Case(YAML, "stands in line", yaml("a: 1\nb: 2\na: 3\n"), ":3: the key 'a' stands in line 1 already"),
    Case(YAML, "takes a mapping or", yaml("{<<: 1}"), "the merge key << takes a mapping", "TypeError"),
    Case(YAML, "which is not printed", yaml('a: "\\x1b[31m"'), "the text holds \\x1b"),
    Case(YAML, "the tag {tag} is", yaml("a: !!binary aGk="), "the tag tag:yaml.org,2002:binary is not", "TypeError"),
    Case(YAML, "that can be held", yaml("a: !!int text"), "'text' is no int that can be held", "ValueError"),
)  # fmt: skip
