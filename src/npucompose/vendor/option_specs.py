"""One option of TorchAir's trees as data: what it takes and means, where it acts, and what the vendor's class says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from attrs import field, frozen

from npucompose.table.options import INT64_MAX

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
class OptionSpec:
    """`OptionSpec(path="ge_config.oo_level", kind="str", default="O3", choices=("O1", "O3"), …)`."""

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
        with suppress(TypeError):
            kept = _as_kind(self.kind, value)
            if self._holds(kept):
                return kept
        raise ValueError(f"takes {self.allowed()}; given {shown(value)} ({_type_name(value)})")

    def _holds(self, value: Any) -> bool:
        return (
            (self.choices is None or value in self.choices)
            and value not in self.refused
            and (self.least is None or self.least <= value <= INT64_MAX)
            and (self.pattern is None or re.fullmatch(self.pattern, value, re.ASCII) is not None)
            and (not self.suffix or value.endswith(self.suffix))
            and (self.kind not in _FILLED or "" not in (value if self.kind == "names" else (value,)))
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


_TYPES: Mapping[Kind, type[Any]] = {"bool": bool, "int": int, "ints": int, "dict": dict, "code": type(None)}
"""What YAML gives for a kind, or for each item of it; text for all others."""
_LISTS = ("ints", "names")
_FILLED = ("names", "path", "dir", "file", "pool")
"""Kinds in which no text is empty."""


def _as_kind(kind: Kind, value: Any) -> Any:
    """The value as it is kept; TypeError where it is of another kind."""
    if kind == "str" and type(value) is int:
        return str(value)  # the command line turns `aoe_mode=2` into a number
    items: Any = value if kind in _LISTS else (value,)
    if not isinstance(items, (list, tuple)) or any(
        type(one) is not _TYPES.get(kind, str) for one in cast("Iterable[Any]", items)
    ):
        raise TypeError
    return tuple(cast("Iterable[Any]", items)) if kind in _LISTS else _plain(value)


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


# One leaf of a genuine CompilerConfig as its own class declares it, and what it and our table say of each other.

PREFIX = "npugraph_ex."


@frozen(kw_only=True)
class VendorOption:
    """`VendorOption(path="ge_config.oo_level", kind="OptionValue", default="O3", allowed=("O1", "O3"))`."""

    path: str
    """Dotted, as in the genuine object; leaves of the package npugraph_ex start with `npugraph_ex.`."""
    kind: str
    """Name of the genuine class; `plain` is an attribute that no class guards."""
    default: Any
    allowed: tuple[Any, ...] | None = None
    least: int | None = None
    most: int | None = None
    pattern: str | None = None

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> VendorOption:
        given: dict[str, Any] = dict(data)
        if given.get("allowed") is not None:
            given["allowed"] = tuple(given["allowed"])
        return VendorOption(**given)


CLASSES: Mapping[Kind, tuple[str, ...]] = {
    "bool": ("OptionValue",),
    "int": ("IntRangeValue", "OptionValue"),
    "str": ("OptionValue", "RegexValue", "StrOptionValue", "plain"),
    "ints": ("IntListValue",),
    "names": ("plain",),
    "dict": ("DictOptionValue", "plain"),
    "path": ("OptionValue", "StrOptionValue"),
    "dir": ("MustExistedPathValue",),
    "file": ("FileValue", "MustExistedFileAddr"),
    "pool": ("plain",),
    "code": ("CallableValue",),
}
"""Which genuine classes may stand behind each kind of ours."""


def stored_path(leaf: OptionSpec) -> str:
    """Where a genuine tree has it: `npugraph_ex.capture_limit`, `debug.graph_dump._path`."""
    return (PREFIX if leaf.path.startswith(PREFIX) else "") + leaf.genuine_path


def differences(
    ours: Iterable[OptionSpec], theirs: Iterable[VendorOption], other_pattern: Mapping[str, str]
) -> list[str]:
    """One sentence for each thing that one side has and the other has not, or has otherwise; [] where they agree.

    `other_pattern` is {path: the genuine pattern} where ours is another one on purpose.
    """
    mine = {stored_path(leaf): leaf for leaf in ours}
    genuine = {leaf.path: leaf for leaf in theirs}
    found = [f"{path}: only in our table" for path in mine if path not in genuine]
    found += [f"{path}: only in the genuine class" for path in genuine if path not in mine]
    for path, leaf in mine.items():
        if path in genuine:
            found += [f"{path}: {said}" for said in _unlike(leaf, genuine[path], other_pattern.get(path))]
    return found


def _unlike(leaf: OptionSpec, genuine: VendorOption, pattern: str | None) -> Iterable[str]:
    if genuine.kind not in CLASSES[leaf.kind]:
        yield f"ours is {leaf.kind}, the genuine class is {genuine.kind}"
    # 0 == False in Python, and "2" is not 2: the type belongs to the value.
    if (type(leaf.default), leaf.default) != (type(genuine.default), genuine.default):
        yield f"our default is {shown(leaf.default)}, the genuine one {shown(genuine.default)}"
    ours = (True, False) if leaf.kind == "bool" else leaf.choices
    if _as_set(ours) != _as_set(genuine.allowed):
        yield f"we allow {shown(ours)}, the genuine class {shown(genuine.allowed)}"
    if genuine.kind == "IntRangeValue" and (leaf.least, INT64_MAX) != (genuine.least, genuine.most):
        yield f"ours begins at {leaf.least}, the genuine range is {genuine.least} to {genuine.most}"
    if genuine.kind == "RegexValue" and _bare(genuine.pattern) != _bare(pattern or leaf.pattern):
        yield f"our pattern is {leaf.pattern}, the genuine one {genuine.pattern}"
    if genuine.kind == "MustExistedFileAddr" and leaf.suffix != ".json":
        yield f"ours ends in '{leaf.suffix}', the genuine file in '.json'"


def _bare(pattern: str | None) -> str | None:
    """Without the anchors: ours is compared with the whole text anyway."""
    return None if pattern is None else pattern.removeprefix("^").removesuffix("$")


def _as_set(values: tuple[Any, ...] | None) -> set[tuple[type[Any], Any]] | None:
    return None if values is None else {(type(value), value) for value in values}


def kind_of(genuine: VendorOption) -> Kind:
    """Our kind for a leaf that our table does not describe."""
    if genuine.allowed is not None and set(genuine.allowed) == {True, False}:
        return "bool"
    kinds: Mapping[str, Kind] = {
        "IntRangeValue": "int",
        "IntListValue": "ints",
        "DictOptionValue": "dict",
        "MustExistedPathValue": "dir",
        "FileValue": "file",
        "MustExistedFileAddr": "file",
        "CallableValue": "code",
    }
    return kinds.get(genuine.kind, "str")
