"""A careless change to one line. Knows no language and no test."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import evolve, field, frozen

SHOWN = 60
"""Characters of a piece of source in a list."""


@frozen(kw_only=True)
class Mutation:
    """`source[start:end]` of the file `path` becomes `new`.

    `scope` is the function or class around it; `first` to `last` are the lines of the statement, of which a test has to
    run one to notice anything; `at_import` says that the statement runs as its module is imported. `nth` tells equal
    changes of equal lines in one scope apart, so that a mutation keeps its `key` while lines are added above it.
    """

    path: str
    scope: str = field(default="")
    line: int
    first: int
    last: int
    start: int
    end: int
    old: str
    new: str
    kind: str
    text: str
    at_import: bool = False
    nth: int = 0

    @property
    def key(self) -> str:
        return digest(self.path, self.scope, self.text, self.kind, self.old, self.new, str(self.nth))

    @property
    def change(self) -> str:
        """`a < b → a <= b`, in one line."""
        return f"{_short(self.old)} → {_short(self.new)}"

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def applied(self, source: bytes) -> bytes:
        """The mutated source. ValueError where the file is not the one that the mutation was drawn from."""
        if source[self.start : self.end] != self.old.encode():
            raise ValueError(f"{self.place} has changed since the mutant was drawn")
        return source[: self.start] + self.new.encode() + source[self.end :]


def digest(*words: str) -> str:
    """Eight hexadecimal digits for a tuple of texts."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def numbered(found: Iterable[Mutation]) -> list[Mutation]:
    """The mutations in the order of the file, equal ones of equal lines told apart by `nth`."""
    seen: Counter[str] = Counter()
    result = []
    for mutation in sorted(found, key=lambda m: (m.start, m.end, m.kind, m.new)):
        result.append(evolve(mutation, nth=seen[mutation.key]))
        seen[mutation.key] += 1
    return result


def written(path: str, source: str, old: str, new: str, **more: Any) -> Mutation:
    """A change that somebody wrote down: `old` has to stand in the file once. ValueError otherwise."""
    count = source.count(old)
    if count != 1:
        raise ValueError(f"{path}: {old!r} stands there {count} times; a change that is written down needs one place")
    before = source[: source.index(old)]
    line = before.count("\n") + 1
    start = len(before.encode())
    return Mutation(
        path=path, line=line, first=line, last=line + old.rstrip("\n").count("\n"), start=start,
        end=start + len(old.encode()), old=old, new=new, kind="written",
        text=source.splitlines()[line - 1].strip(), **more,
    )  # fmt: skip


def _short(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
