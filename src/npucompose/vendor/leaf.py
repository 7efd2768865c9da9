"""One option of TorchAir's trees as data: its name, what it takes, what it means and where it acts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from attrs import field, frozen

from npucompose.table.names import INT64_MAX

Kind = Literal["bool", "int", "str", "ints", "names", "dict", "path", "dir", "file", "pool", "code"]
"""`path` may be missing, `dir` and `file` must exist, `pool` names a graph memory pool, `names` are patterns that
become a function which says of an operator whether it is meant, `code` is a Python object."""

SetBy = Literal["compiler", "mode", "passes"]

ELSEWHERE: Mapping[SetBy, str] = {
    "mode": "the mode is one decision of the whole experiment: write mode=max-autotune|reduce-overhead|npugraph_ex",
    "passes": "npucompose puts its pass pipeline there: write passes=[...], with stage=pre or stage=post in each pass",
}
"""Why a leaf of the genuine tree is not set in YAML under `compiler`, and what to write instead."""


@frozen(kw_only=True)
class Leaf:
    """`Leaf(path="ge_config.oo_level", kind="str", default="O3", choices=("O1", "O3"), modes=("max-autotune",), …)`."""

    path: str
    """Dotted, as written in YAML under `compiler`; npugraph_ex's leaves start with `npugraph_ex.`."""
    kind: Kind
    default: Any
    doc: str
    source: str
    """The document in github.com/Ascend/torchair, or the file of the torch_npu 2.13.0 wheel, that says so."""
    modes: tuple[str, ...]
    choices: tuple[Any, ...] | None = None
    choices_in: Mapping[str, tuple[Any, ...]] = field(factory=dict[str, tuple[Any, ...]])
    """A mode that takes fewer values than `choices`: `{"reduce-overhead": ("py",)}`."""
    least: int | None = None
    refused: tuple[Any, ...] = ()
    """Values that the class accepts and TorchAir's document rules out."""
    pattern: str | None = None
    example: str = ""
    suffix: str = ""
    """How the name of a `file` has to end."""
    needs: str | None = None
    """Acts only while that other leaf is on (true, or given)."""
    written: bool = False
    """A folder that TorchAir writes into: a relative one lies in the run directory and is made when it is needed."""
    set_by: SetBy = "compiler"
    genuine: str | None = None
    """Dotted path of the stored attribute in the genuine object where it is spelled otherwise."""
    twin: str | None = None
    """The leaf of the other tree that means the same: npugraph_ex.clone_input and debug.aclgraph.clone_input."""
    twin_inverted: bool = False

    @property
    def genuine_path(self) -> str:
        """Where the genuine CompilerConfig keeps it: `debug.graph_dump._path`, `capture_limit`."""
        return self.genuine or self.path.removeprefix("npugraph_ex.")

    def allowed(self) -> str:
        """The values that can be given, in words: `O1 | O3`, `an integer >= 1`, `text like 24|48`."""
        none = " | null" if self.default is None else ""
        if self.choices is not None:
            return " | ".join(shown(c) for c in self.choices) + none
        words = {
            "bool": "true | false",
            "int": "an integer",
            "str": "text",
            "ints": "a list of integers",
            "names": "a list of names or globs",
            "dict": "a mapping of names to plain values",
            "path": "a path",
            "dir": "an existing folder",
            "file": "an existing file",
            "pool": "the name of a graph memory pool",
            "code": "a Python object",
        }[self.kind]
        if self.written:
            words = "a folder in the run directory, or an absolute path"
        if self.least is not None:
            words += f" >= {self.least}"
        if self.refused:
            words += f" other than {' and '.join(shown(r) for r in self.refused)}"
        if self.suffix:
            words += f" ending in {self.suffix}"
        if self.example:
            words += f" like {self.example}"
        return words + none

    def checked(self, value: Any) -> Any:
        """The value as it is kept, or ValueError with what is wrong with it: `1` for text is kept as `"1"`."""
        if value is None and self.default is None:
            return None
        kept = _AS_KIND[self.kind](value)
        if kept is None or not self._holds(kept):
            raise ValueError(f"takes {self.allowed()}; given {shown(value)} ({_type_name(value)})")
        return kept

    def _holds(self, value: Any) -> bool:
        return (
            (self.choices is None or value in self.choices)
            and value not in self.refused
            and (self.least is None or self.least <= value <= INT64_MAX)
            and (self.pattern is None or re.fullmatch(self.pattern, value, re.ASCII) is not None)
            and (not self.suffix or value.endswith(self.suffix))
        )

    def missing(self, value: Any) -> str | None:
        """What a path that has to exist lacks, in words, or None; the default is never looked at."""
        if value is None or value == self.default or (self.written and not Path(value).is_absolute()):
            return None
        if self.kind == "dir" and not Path(value).is_dir():
            return f"names a folder that does not exist: {value}"
        if self.kind == "file" and not Path(value).is_file():
            return f"names a file that does not exist: {value}"
        return None


def shown(value: Any) -> str:
    """A value as a person writes it in YAML: `null`, `true`, `O1`, `[2, 4]`, `''`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(v) for v in cast(Iterable[Any], value)) + "]"
    return "''" if value == "" else str(value)


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _str(value: Any) -> str | None:
    """Text; an integer is taken as its digits, because the command line turns `aoe_mode=2` into one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _some_str(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _ints(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    items = [_int(v) for v in cast(Iterable[Any], value)]
    return None if None in items else tuple(i for i in items if i is not None)


def _names(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    items = [_some_str(v) for v in cast(Iterable[Any], value)]
    return None if None in items else tuple(i for i in items if i is not None)


def _dict(value: Any) -> dict[str, Any] | None:
    """A mapping of names to plain values, lists and mappings of them, so that it can be written as JSON."""
    try:
        return _plain(value) if isinstance(value, Mapping) else None
    except TypeError:
        return None


def _plain(value: Any) -> Any:
    """TorchAir hands such an option on as it is, and torch_npu asks for lists and dicts: [".*"], {event: 1}."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        if not all(isinstance(name, str) for name, _ in pairs):
            raise TypeError
        return {name: _plain(inner) for name, inner in sorted(pairs)}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in cast("Iterable[Any]", value)]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError


def _code(value: Any) -> None:
    """Nothing that YAML can say."""


_AS_KIND: Mapping[Kind, Callable[[Any], Any]] = {
    "bool": _bool,
    "int": _int,
    "str": _str,
    "ints": _ints,
    "names": _names,
    "dict": _dict,
    "path": _some_str,
    "dir": _some_str,
    "file": _some_str,
    "pool": _some_str,
    "code": _code,
}
