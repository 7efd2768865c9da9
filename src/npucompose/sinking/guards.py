"""Dynamo's words for a guard that failed, as a value. Knows no policy and no torch.

The words are those of `torch._dynamo.utils.get_compilation_metrics()` and of `TORCH_LOGS=recompiles`; older versions
write the source expression `L['x']` where newer ones write `x`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from attrs import frozen

Kind = Literal["size", "stride", "dtype", "rank", "value", "length", "least", "equal_sizes", "size_value", "other"]

_LOCAL = re.compile(r"\bL\[(['\"])(\w+)\1\]")
_COMPILE_ID = re.compile(r"^-?\s*(\d+/\d+):\s*")
_TENSOR = re.compile(
    r"tensor '(?P<name>.+?)' (?P<what>size|stride) mismatch at index (?P<at>\d+)\. "
    r"expected (?P<expected>-?\d+), actual (?P<actual>-?\d+)"
)
_WHOLE_TENSOR = re.compile(
    r"tensor '(?P<name>.+?)' (?P<what>dtype|rank) mismatch\. expected (?P<expected>\S+), actual (?P<actual>\S+)"
)
_SIZE = r"(?P<{0}>[^\s()]+)\.size\(\)\[(?P<{0}_at>\d+)\]"
_LEAST = re.compile(rf"(?P<least>\d+) <= {_SIZE.format('name')}$")
_EQUAL = re.compile(rf"{_SIZE.format('name')} == {_SIZE.format('other')}$")
_SIZE_VALUE = re.compile(rf"{_SIZE.format('name')} == (?P<expected>\d+)$")
_LENGTH = re.compile(r"len\((?P<name>[^()]+)\) == (?P<expected>\d+)$")
_VALUE = re.compile(r"(?P<name>[^\s()=<>]+) == (?P<expected>\S+)$")
_TUTORIAL = " (user code shown is first use"
_WORD = re.compile(r"[A-Za-z_]\w*")


@frozen(kw_only=True)
class Guard:
    """`Guard(kind="size", text="tensor 'x' size mismatch …", argument="x", dimension=0, expected="4", actual="6")`."""

    kind: Kind
    text: str
    """One line: the guard, without the id of the entry it belongs to and without code that only quotes the model."""
    source: str | None = None
    """Where Dynamo says the guard comes from: `return x * lens[0]  # model.py:3 in forward`."""
    argument: str | None = None
    """The argument of the model that the guard is about; None where it is about none (a parameter, a global)."""
    other: str | None = None
    """The second argument of `equal_sizes`."""
    dimension: int | None = None
    expected: str | None = None
    actual: str | None = None


def parsed(reason: str, arguments: Collection[str] | None = None) -> Guard:
    """The guard in a recompile reason; `arguments` are the model's, None where nobody knows them.

    `parsed("0/0: L['lens'][0] == 512  # return x * lens[0]")` is the value 512 of the argument `lens`.
    """
    first_line = reason.strip().splitlines()[0] if reason.strip() else ""
    code, _, comment = _LOCAL.sub(r"\2", _COMPILE_ID.sub("", first_line)).partition("  #")
    text, source = " ".join(code.split()), " ".join(comment.partition(_TUTORIAL)[0].split()) or None

    def guard(kind: Kind, found: re.Match[str] | None = None, at: str | None = None) -> Guard:
        groups = found.groupdict() if found is not None else {}
        return Guard(
            kind=kind,
            text=text,
            source=source,
            argument=_argument(groups.get("name") or text, arguments, named=found is not None),
            other=_argument(groups["other"], arguments, named=True) if "other" in groups else None,
            dimension=int(groups[at]) if at else None,
            expected=groups.get("expected") or groups.get("least"),
            actual=groups.get("actual"),
        )

    if found := _TENSOR.search(text):
        return guard("size" if found["what"] == "size" else "stride", found, "at")
    if found := _WHOLE_TENSOR.search(text):
        return guard("dtype" if found["what"] == "dtype" else "rank", found)
    if found := _LEAST.fullmatch(text):
        return guard("least", found, "name_at")
    if found := _EQUAL.fullmatch(text):
        return guard("equal_sizes", found, "name_at")
    if found := _SIZE_VALUE.fullmatch(text):
        return guard("size_value", found, "name_at")
    if found := _LENGTH.fullmatch(text):
        return guard("length", found)
    if found := _VALUE.fullmatch(text):
        return guard("value", found)
    return guard("other")


def _argument(expression: str, arguments: Collection[str] | None, *, named: bool) -> str | None:
    """The argument an expression starts from: `lens[0]` is of `lens`, `self._buffers['k']` is of none."""
    words = _WORD.findall(expression)
    if arguments is None:
        return words[0] if named and words and words[0] not in ("self", "G") else None
    if named:
        return words[0] if words and words[0] in arguments else None
    return next((word for word in words if word in arguments), None)
