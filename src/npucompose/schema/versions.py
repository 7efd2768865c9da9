"""Which option each torch_npu version has: since when, until when, with which values. Loads no torch and no wheel.

The data file is read from the wheels by tools/read_option_trees.py; the words (documentation, modes, units) are those
of our table, which describes torch_npu 2.13.0. A leaf that only other versions have is described by the leaf of
torchair that has the same name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from npucompose.errors import ConfigError, listed, unknown
from npucompose.schema.genuine import PREFIX, GenuineLeaf, kind_of, stored_path
from npucompose.schema.leaf import ACLGRAPH, GE, NPUGRAPH_EX, Leaf, shown
from npucompose.schema.npugraph_ex_options import NPUGRAPH_EX_LEAVES
from npucompose.schema.torchair_options import TORCHAIR

DATA = Path(__file__).with_name("torch_npu_options.json")
REFERENCE = "2.13.0"
"""The version that our table describes, and the one that is meant where nothing is installed and none is named."""
WHERE = "compiler"


@frozen(kw_only=True)
class Span:
    """A leaf from version `since` to version `until` (None: it is in the newest), the same all along."""

    since: str
    until: str | None
    leaf: GenuineLeaf


@cache
def _loaded() -> tuple[tuple[str, ...], Mapping[str, tuple[Span, ...]]]:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(data["versions"]), {
        path: tuple(_span(path, dict(row)) for row in rows) for path, rows in data["leaves"].items()
    }


def _span(path: str, row: dict[str, Any]) -> Span:
    since, until = row.pop("since"), row.pop("until")
    return Span(since=since, until=until, leaf=GenuineLeaf.of_dict({"path": path, **row}))


def versions() -> tuple[str, ...]:
    """The versions whose option tree is known, oldest first: `("2.6.0.post5", …, "2.14.0")`."""
    return _loaded()[0]


def known(version: str, where: str = "torch_npu_version") -> str:
    """The known version that is meant: `2.9.0` is 2.9.0.post6. ConfigError names them all where it is none of them."""
    meant = [name for name in versions() if version in (name, _release(name))]
    if not meant:
        raise ConfigError(unknown("torch_npu version", version, versions(), where))
    return meant[-1]


def nearest(version: str) -> str:
    """The known version whose tree an installed one has most likely: its release, else the next older one."""
    numbers = _numbers(_release(version))
    older = [name for name in versions() if _numbers(_release(name)) <= numbers]
    return older[-1] if older else versions()[0]


def _release(version: str) -> str:
    return version.partition(".post")[0].partition("+")[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def genuine_tree(version: str) -> Mapping[str, GenuineLeaf]:
    """{stored path: leaf} of the genuine classes of a known version."""
    at = versions().index(known(version))
    return {path: span.leaf for path, spans in _loaded()[1].items() for span in spans if _covers(span, at)}


def _covers(span: Span, at: int) -> bool:
    order = versions()
    last = len(order) - 1 if span.until is None else order.index(span.until)
    return order.index(span.since) <= at <= last


@cache
def every_leaf() -> Mapping[str, Leaf]:
    """{YAML path: leaf} over all versions: our table first, then what only other versions have."""
    table = {leaf.path: leaf for leaf in TORCHAIR + NPUGRAPH_EX_LEAVES}
    stored = {stored_path(leaf) for leaf in table.values()}
    others = [_described(spans[-1].leaf, table) for path, spans in _loaded()[1].items() if path not in stored]
    return {**table, **{leaf.path: leaf for leaf in others}}


def _described(genuine: GenuineLeaf, table: Mapping[str, Leaf]) -> Leaf:
    """A leaf that our table lacks: as torchair's leaf of the same name, with the values that its own class takes."""
    prefix = PREFIX if genuine.path.startswith(PREFIX) else ""
    bare = genuine.path.removeprefix(prefix)
    package = "npugraph_ex" if prefix else "torchair"
    own: dict[str, Any] = {
        "path": prefix + bare.replace("._", ".") if bare.endswith("._path") else genuine.path,
        "genuine": bare,
        "default": genuine.default,
        "modes": (NPUGRAPH_EX,) if prefix else (GE, ACLGRAPH),
        "source": f"torch_npu/dynamo/{package}/configs/ of torch_npu {having(genuine.path)[-1]}",
    }
    named = [leaf for leaf in table.values() if not leaf.path.startswith(PREFIX) and _same_name(leaf, bare)]
    if not named:
        return Leaf(**own, kind=kind_of(genuine), doc="described nowhere that we know of", **_limits(genuine))
    like = named[0]
    needs = prefix + like.needs if like.needs and any(p == prefix + like.needs for p in _loaded()[1]) else None
    return attrs.evolve(like, **own, choices_in={}, needs=needs, twin=None, twin_inverted=False, **_limits(genuine))


def _same_name(leaf: Leaf, bare: str) -> bool:
    return leaf.genuine_path == bare or leaf.path.split(".")[-1] == bare.split(".")[-1] == "deadlock_check"


def _limits(genuine: GenuineLeaf) -> dict[str, Any]:
    """Choices and the least value, as far as the genuine class has them."""
    limits: dict[str, Any] = {}
    if genuine.allowed is not None and kind_of(genuine) != "bool":
        limits["choices"] = genuine.allowed
    if genuine.least is not None:
        limits["least"] = genuine.least
    return limits


@cache
def tree_of(version: str) -> Mapping[str, Leaf]:
    """{YAML path: leaf} of a version, with that version's defaults and allowed values: `tree_of("2.9.0")`."""
    genuine = genuine_tree(version)
    return {
        path: attrs.evolve(leaf, default=genuine[stored].default, **_limits(genuine[stored]))
        for path, leaf in every_leaf().items()
        if (stored := stored_path(leaf)) in genuine
    }


def having(stored: str) -> tuple[str, ...]:
    """The versions that have the leaf at this path of the genuine object."""
    spans = _loaded()[1].get(stored, ())
    return tuple(name for at, name in enumerate(versions()) if any(_covers(span, at) for span in spans))


def refused(values: Mapping[str, Any], version: str, by: str = "") -> tuple[str, ...]:
    """A sentence for each option of `values` ({YAML path: value}) that this version has not, or not with that value.

    `by` says in the sentence where the version comes from: "found by the cache".
    """
    named = f"torch_npu {known(version)}" + (f" ({by})" if by else "")
    return tuple(_refusals(values, tree_of(version), named))


def _refusals(values: Mapping[str, Any], tree: Mapping[str, Leaf], named: str) -> Iterator[str]:
    for path, value in values.items():
        given = f"{WHERE}.{path}={shown(value)}"
        if path not in tree:
            have = listed(having(stored_path(every_leaf()[path])))
            yield f"{given}: {named} has no such option; versions that have it: {have}.{_instead(path, value, tree)}"
            continue
        choices = tree[path].choices
        if choices is not None and value not in choices:
            yield f"{given}: {named} takes {tree[path].allowed()} there."


def _instead(path: str, value: Any, tree: Mapping[str, Leaf]) -> str:
    """How that version spells the same: npugraph_ex had torchair's names up to 2.8.0, and flat ones since 2.9.0."""
    for other in (leaf for leaf in every_leaf().values() if leaf.path in tree):
        flat, nested = (other.path, path) if other.twin else (path, other.path)
        leaf = every_leaf()[flat]
        if leaf.twin and flat.startswith(PREFIX) and nested == PREFIX + leaf.twin:
            return f" It writes {WHERE}.{other.path}={shown((not value) if leaf.twin_inverted else value)}."
    return ""


def mode_refused(mode: str, version: str, by: str = "") -> str | None:
    """Why a version cannot run a mode: npugraph_ex came after 2.6.0."""
    if mode != NPUGRAPH_EX or f"{PREFIX}mode" in tree_of(version):
        return None
    named = f"torch_npu {known(version)}" + (f" ({by})" if by else "")
    return f"mode={mode}: {named} has no such package; versions that have it: {listed(having(f'{PREFIX}mode'))}."
