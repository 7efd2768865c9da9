"""One leaf of a genuine CompilerConfig as its own class declares it, and what it and our table say of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from npucompose.vendor.leaf import INT64_MAX, Kind, Leaf, shown

PREFIX = "npugraph_ex."


@frozen(kw_only=True)
class GenuineLeaf:
    """`GenuineLeaf(path="ge_config.oo_level", kind="OptionValue", default="O3", allowed=("O1", "O3"))`."""

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
    def of_dict(data: Mapping[str, Any]) -> GenuineLeaf:
        given: dict[str, Any] = dict(data)
        if given.get("allowed") is not None:
            given["allowed"] = tuple(given["allowed"])
        return GenuineLeaf(**given)


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


def stored_path(leaf: Leaf) -> str:
    """Where a genuine tree has it: `npugraph_ex.capture_limit`, `debug.graph_dump._path`."""
    return (PREFIX if leaf.path.startswith(PREFIX) else "") + leaf.genuine_path


def differences(ours: Iterable[Leaf], theirs: Iterable[GenuineLeaf], other_pattern: Mapping[str, str]) -> list[str]:
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


def _unlike(leaf: Leaf, genuine: GenuineLeaf, pattern: str | None) -> Iterable[str]:
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


def kind_of(genuine: GenuineLeaf) -> Kind:
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
