"""Which option each torch_npu version has: since when, until when, with which values. Loads no torch and no wheel.

The data file is read from the wheels by tools/read_option_trees.py; the words (documentation, modes, units) are those
of our table, which describes torch_npu 2.13.0. A leaf that only other versions have is described by the leaf of
torchair that has the same name. The tree of the wheel that is found here is read from it and put in with `learn`; a
version of which there is neither takes the tree of the next older one, and that is said to be assumed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import attrs
from attrs import frozen

from npucompose.errors import ConfigError, listed, unknown
from npucompose.table.modes import MODES
from npucompose.vendor.option_specs import PREFIX, OptionSpec, VendorOption, kind_of, shown, stored_path

REFERENCE_ROWS = Path(__file__).with_name("options.json")


def _rows(package: str) -> tuple[OptionSpec, ...]:
    rows = json.loads(REFERENCE_ROWS.read_text(encoding="utf-8"))[package]
    return tuple(OptionSpec(**{name: _frozen(value) for name, value in row.items()}) for row in rows)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(one) for name, one in cast("dict[str, Any]", value).items()}
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


TORCHAIR = _rows("torchair")
"""Every leaf of torchair.CompilerConfig in torch_npu 2.13.0, in its order: 73 rows, read from the wheel.

`modes` follow the code that reads the leaf, not the lists that torchair warns by: those name `dump_config.enable_dump`
in reduce-overhead, where it acts, and leave out `debug.aclgraph.enable_output_clone` and its neighbours in
max-autotune, where nothing reads them.
"""
NPUGRAPH_EX_LEAVES = _rows("npugraph_ex")
"""Every leaf of npugraph_ex.CompilerConfig in torch_npu 2.13.0, in its order: 30 rows, under `npugraph_ex.` in YAML.

`twin` is the leaf of torchair's tree that torchair's own mode="npugraph_ex" maps it to (23 of them, three inverted; the
wheel's torchair/configs/npugraphex_config.py), plus `deadlock_check`, which both trees have and that map leaves out.
"""

LEAVES: Mapping[str, OptionSpec] = {leaf.path: leaf for leaf in TORCHAIR + NPUGRAPH_EX_LEAVES}
"""Every leaf of both trees of torch_npu 2.13.0 by its YAML path: 73 of torchair, then 30 under `npugraph_ex.`."""

DATA = Path(__file__).with_name("torch_npu_options.json")

REFERENCE = "2.13.0"
"""The version that our table describes, and the one that is meant where nothing is installed and none is named."""
CANN = "9.0.0"
"""The CANN version that REFERENCE was released for, which the wheel's Python is given where there is none."""

WHERE = "compiler"

_VERSION = re.compile(
    r"(?P<release>\d+\.\d+\.\d+)(?P<before>\.?(a|b|rc|dev)\d*)?(\.post(?P<post>\d+))?(\+[\w.]+)?", re.ASCII
)


@frozen(kw_only=True)
class Span:
    """A leaf from version `since` to version `until` (None: it is in the newest), the same all along."""

    since: str
    until: str | None
    leaf: VendorOption


_LIVE: dict[str, Mapping[str, VendorOption]] = {}
"""{version: its tree}, as read from wheels of this machine in this process."""


def _span(path: str, row: dict[str, Any]) -> Span:
    since, until = row.pop("since"), row.pop("until")
    return Span(since=since, until=until, leaf=VendorOption.from_dict({"path": path, **row}))


_DATA = json.loads(DATA.read_text(encoding="utf-8"))
_SPANS: Mapping[str, tuple[Span, ...]] = {
    path: tuple(_span(path, row) for row in rows) for path, rows in _DATA["leaves"].items()
}
_VERSIONS: tuple[str, ...] = tuple(_DATA["versions"])


def versions() -> tuple[str, ...]:
    """The versions whose option tree is known, oldest first: `("2.6.0.post5", …, "2.14.0")`."""
    return _VERSIONS


def same_sources(digest: str) -> str | None:
    """The known version whose option classes are these very files, by their digest."""
    return next((name for name, known in _DATA["sources"].items() if known == digest), None)


def learn(version: str, leaves: Sequence[VendorOption]) -> None:
    """From now on, in this process, the version has this tree: its wheel was read.

    What no table of ours has becomes settable; what the wheel allows beside our values is allowed, and its defaults are
    the defaults.
    """
    tree = {leaf.path: leaf for leaf in leaves}
    if genuine_tree(version) == tree and (version in _LIVE or version in versions()):
        return
    _LIVE[version] = tree
    tree_of.cache_clear()
    every = every_leaf()
    by_stored = {stored_path(leaf): path for path, leaf in every.items()}
    for stored, genuine in tree.items():
        if stored not in by_stored:
            new = _described(genuine)
            every[new.path] = new
        else:
            path = by_stored[stored]
            every[path] = _widened(every[path], genuine)


def _widened(leaf: OptionSpec, genuine: VendorOption) -> OptionSpec:
    """The leaf with the wheel's default, and with the values of both."""
    limits = _limits(genuine)
    wider: dict[str, Any] = {"default": genuine.default}
    if leaf.choices is not None and "choices" in limits:
        wider["choices"] = tuple(dict.fromkeys((*leaf.choices, *limits["choices"])))
    if leaf.least is not None and "least" in limits:
        wider["least"] = min(leaf.least, limits["least"])
    return attrs.evolve(leaf, **wider)


def known(version: str, where: str = "torch_npu_version") -> str:
    """The version that is meant: itself, or for a release of which only post-releases are known the newest of them
    (`2.9.0` is 2.9.0.post6). A version of which nothing is known is meant all the same, see `assumed`; ConfigError for
    what is none.
    """
    if version in _LIVE or version in versions():
        return version
    meant = [name for name in versions() if _release(name) == version]
    if meant:
        return meant[-1]
    if not _VERSION.fullmatch(version):
        raise ConfigError(unknown("torch_npu version", version, versions(), where))
    return version


def assumed(version: str) -> str | None:
    """The known version whose tree stands in for this one's, which nobody has read; None where it was read."""
    version = known(version)
    return None if version in _LIVE or version in versions() else nearest(version)


def nearest(version: str, among: Sequence[str] = _VERSIONS) -> str:
    """The known version that an unknown one is most likely as: itself, else the next older one, else the oldest."""
    older = [name for name in among if order_of(name) <= order_of(version)]
    return older[-1] if older else among[0]


def _release(version: str) -> str:
    return version.partition(".post")[0].partition("+")[0]


def order_of(version: str) -> tuple[tuple[int, ...], int, int]:
    """By what versions are sorted: 2.9.0rc1 before 2.9.0 before 2.9.0.post6 before 2.13.0; `+local` says nothing."""
    said = _VERSION.fullmatch(version)
    if said is None:
        return (), 0, 0
    before = -1 if said["before"] else 0
    return tuple(int(n) for n in said["release"].split(".")), before, int(said["post"] or -1)


def genuine_tree(version: str) -> Mapping[str, VendorOption]:
    """{stored path: leaf} of the genuine classes of a version; of one that nobody has read, as it is assumed."""
    version = known(version)
    if version in _LIVE:
        return _LIVE[version]
    at = versions().index(nearest(version))
    return {path: span.leaf for path, spans in _SPANS.items() for span in spans if _covers(span, at)}


def _covers(span: Span, at: int) -> bool:
    order = versions()
    last = len(order) - 1 if span.until is None else order.index(span.until)
    return order.index(span.since) <= at <= last


@cache
def every_leaf() -> dict[str, OptionSpec]:
    """{YAML path: leaf} over all versions: our table first, then what only other versions have. `learn` adds to it."""
    stored = {stored_path(leaf) for leaf in LEAVES.values()}
    others = [_described(spans[-1].leaf) for path, spans in _SPANS.items() if path not in stored]
    return {**LEAVES, **{leaf.path: leaf for leaf in others}}


def _described(genuine: VendorOption) -> OptionSpec:
    """A leaf that our table lacks: as torchair's leaf of the same name, with the values that its own class takes."""
    prefix = PREFIX if genuine.path.startswith(PREFIX) else ""
    bare = genuine.path.removeprefix(prefix)
    package = "npugraph_ex" if prefix else "torchair"
    own: dict[str, Any] = {
        "path": prefix + bare.replace("._", ".") if bare.endswith("._path") else genuine.path,
        "genuine": bare,
        "default": genuine.default,
        "modes": tuple(mode.name for _, mode in MODES.built_in if mode.package == package),
        "source": f"torch_npu/dynamo/{package}/configs/ of torch_npu {having(genuine.path)[-1]}",
    }
    named = [leaf for leaf in LEAVES.values() if not leaf.path.startswith(PREFIX) and _same_name(leaf, bare)]
    if not named:
        return OptionSpec(**own, kind=kind_of(genuine), doc="described nowhere that we know of", **_limits(genuine))
    like = named[0]
    needs = prefix + like.needs if like.needs and any(p == prefix + like.needs for p in _SPANS) else None
    return attrs.evolve(like, **own, choices_in={}, needs=needs, twin=None, twin_inverted=False, **_limits(genuine))


def _same_name(leaf: OptionSpec, bare: str) -> bool:
    return leaf.genuine_path == bare or leaf.path.split(".")[-1] == bare.split(".")[-1] == "deadlock_check"


def _limits(genuine: VendorOption) -> dict[str, Any]:
    """Choices and the least value, as far as the genuine class has them."""
    limits: dict[str, Any] = {}
    if genuine.allowed is not None and kind_of(genuine) != "bool":
        limits["choices"] = genuine.allowed
    if genuine.least is not None:
        limits["least"] = genuine.least
    return limits


@cache
def tree_of(version: str) -> Mapping[str, OptionSpec]:
    """{YAML path: leaf} of a version, with that version's defaults and allowed values: `tree_of("2.9.0")`."""
    genuine = genuine_tree(version)
    return {
        path: attrs.evolve(leaf, default=genuine[stored].default, **_limits(genuine[stored]))
        for path, leaf in every_leaf().items()
        if (stored := stored_path(leaf)) in genuine
    }


def having(stored: str) -> tuple[str, ...]:
    """The versions that have the leaf at this path of the genuine object: known ones, then those read here."""
    spans = _SPANS.get(stored, ())
    known_ones = [name for at, name in enumerate(versions()) if any(_covers(span, at) for span in spans)]
    return (*known_ones, *(name for name, tree in _LIVE.items() if stored in tree and name not in known_ones))


@frozen(kw_only=True)
class Doubt:
    """A request of which nobody here can say whether the version has it: its tree is only assumed."""

    path: str
    why: str


def refused(values: Mapping[str, Any], version: str, by: str = "") -> tuple[str, ...]:
    """A sentence for each option of `values` ({YAML path: value}) that this version has not, or not with that value.

    `by` says in the sentence where the version comes from: "found by the cache".
    """
    certain = {path: value for path, value in values.items() if not _newer_has(path, value, version)}
    return tuple(_refusals(certain, version, by))


def doubted(values: Mapping[str, Any], version: str) -> tuple[Doubt, ...]:
    """What an assumed tree lacks and a newer known one has: nobody can say whether this version has it already."""
    return tuple(
        Doubt(
            path=path,
            why=f"unknown whether torch_npu {version} has it: its tree was not read, that of {assumed(version)} is "
            f"assumed; versions that have it: {listed(newer)}",
        )
        for path, value in values.items()
        if (newer := _newer_has(path, value, version)) and any(_refusals({path: value}, version))
    )


def _newer_has(path: str, value: Any, version: str) -> tuple[str, ...]:
    """Known versions beyond one whose tree is assumed that take the value there; () where the tree was read."""
    if assumed(version) is None:
        return ()
    have = [name for name in having(stored_path(every_leaf()[path])) if order_of(name) > order_of(known(version))]
    return tuple(name for name in have if (leaf := tree_of(name)[path]).choices is None or value in leaf.choices)


def _refusals(values: Mapping[str, Any], version: str, by: str = "") -> Iterator[str]:
    tree, named = tree_of(version), f"torch_npu {known(version)}" + (f" ({by})" if by else "")
    for path, value in values.items():
        given = f"{WHERE}.{path}={shown(value)}"
        if path not in tree:
            have = listed(having(stored_path(every_leaf()[path])))
            yield f"{given}: {named} has no such option; versions that have it: {have}.{_instead(path, value, tree)}"
            continue
        choices = tree[path].choices
        if choices is not None and value not in choices:
            yield f"{given}: {named} takes {tree[path].allowed()} there."


def _instead(path: str, value: Any, tree: Mapping[str, OptionSpec]) -> str:
    """How that version spells the same: npugraph_ex had torchair's names up to 2.8.0, and flat ones since 2.9.0."""
    for other in (leaf for leaf in every_leaf().values() if leaf.path in tree):
        flat, nested = (other.path, path) if other.twin else (path, other.path)
        leaf = every_leaf()[flat]
        if leaf.twin and flat.startswith(PREFIX) and nested == PREFIX + leaf.twin:
            return f" It writes {WHERE}.{other.path}={shown((not value) if leaf.twin_inverted else value)}."
    return ""


def mode_refused(mode: str, version: str, by: str = "") -> str | None:
    """Why a version cannot run a mode: npugraph_ex came after 2.6.0."""
    if MODES.get(mode).package != "npugraph_ex" or f"{PREFIX}mode" in tree_of(version) or assumed(version):
        return None
    named = f"torch_npu {known(version)}" + (f" ({by})" if by else "")
    return f"mode={mode}: {named} has no such package; versions that have it: {listed(having(f'{PREFIX}mode'))}."


def cann_is_at_least(version: str, module: str = "CANN") -> bool:
    """`cann_is_at_least("8.2.RC1")`: the first two numbers count."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:2])

    return numbers(CANN) >= numbers(version)
