"""TorchAir's two option trees as one checked value, and which of its options do nothing where. Loads no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import yaml
from attrs import field, frozen
from attrs.converters import optional

from npucompose.errors import ConfigError, did_you_mean, listed, raise_for, unknown
from npucompose.input_safety import yaml_loader
from npucompose.table.modes import MODES
from npucompose.table.structure import nested, structure
from npucompose.vendor.option_specs import ELSEWHERE, OptionSpec, shown
from npucompose.vendor.versions import LEAVES, every_leaf, known, tree_of

EVERY_LEAF: Mapping[str, OptionSpec] = every_leaf()
"""Those, then the leaves that only other versions have; `npucompose.vendor.versions` says which have which."""

VERSION = "torch_npu_version"
"""The one key under `compiler` that is no option of TorchAir's: whose option tree is meant."""


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they are kept: checked, in the order of the table, and only those that differ from the default."""
    problems: list[str] = []
    kept = _all_checked(values.items(), "compiler", problems)
    raise_for(problems)
    return {path: kept[path] for path, leaf in EVERY_LEAF.items() if path in kept and kept[path] != leaf.default}


def _all_checked(given: Iterable[tuple[str, Any]], where: str, problems: list[str]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for path, value in given:
        try:
            checked[path] = _checked(path, value, where)
        except ConfigError as error:
            problems += error.problems
    return checked


@frozen(kw_only=True)
class CompilerOptions:
    """Equal values ask for the same; `CompilerOptions.of_tree({"ge_config": {"oo_level": "O1"}}).changed()` is
    `{"ge_config.oo_level": "O1"}`. Only what differs from TorchAir's defaults is kept, so a YAML that spells the
    defaults out is the same point of the design space as one that does not.
    """

    values: Mapping[str, Any] = field(factory=dict[str, Any], converter=_kept)
    """{path: value}, as `changed()`; names and values are checked, existence of files only by `of_tree`."""
    torch_npu_version: str | None = field(default=None, converter=optional(partial(known, where=f"compiler.{VERSION}")))
    """The version whose option tree is asked for; None leaves it to the torch_npu that is found."""

    @classmethod
    def of_tree(cls, tree: Any, path: str = "compiler") -> CompilerOptions:
        """What YAML says under `path`. Every mistake is reported at once, each with its full path."""
        problems: list[str] = []
        version = _version(tree, path, problems)
        options: Any = tree
        if isinstance(tree, Mapping):
            options = {k: v for k, v in cast("Mapping[str, Any]", tree).items() if k != VERSION}
        values = _all_checked(_flat(options, "", path, problems), path, problems)
        for found, value in values.items():
            if missing := EVERY_LEAF[found].missing(value):
                problems.append(f"{path}.{found} {missing}.")
        raise_for(problems)
        return cls(values=values, torch_npu_version=version)

    @classmethod
    def base_tree(cls) -> dict[str, Any]:
        """Every settable option of torch_npu 2.13.0 at its default."""
        return cls().as_tree()

    def __getitem__(self, path: str) -> Any:
        """The value of `path`, which is the default where nothing was asked."""
        return self.values[path] if path in self.values else EVERY_LEAF[path].default

    @staticmethod
    def default(path: str) -> Any:
        return EVERY_LEAF[path].default

    def changed(self) -> dict[str, Any]:
        """{path: value} of what differs from TorchAir's defaults, in the order of the table."""
        return dict(self.values)

    def with_values(self, values: Mapping[str, Any]) -> CompilerOptions:
        """The same with other values: `with_values({"experimental_config.tiling_schedule_optimize": True})`."""
        return CompilerOptions(values={**self.values, **values}, torch_npu_version=self.torch_npu_version)

    def as_tree(self, changed_only: bool = False) -> dict[str, Any]:
        """A nested, JSON-able mapping that `of_tree` reads back: every settable leaf, or only what is changed."""
        there = LEAVES if self.torch_npu_version is None else tree_of(self.torch_npu_version)
        written: dict[str, Any] = {VERSION: self.torch_npu_version}
        if changed_only and self.torch_npu_version is None:
            del written[VERSION]
        for path, leaf in EVERY_LEAF.items():
            if leaf.set_by == "compiler" and (path in self.values or (not changed_only and path in there)):
                value = self[path]
                written[path] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
        return nested(written)


def _version(tree: Any, where: str, problems: list[str]) -> str | None:
    given = cast("Mapping[str, Any]", tree).get(VERSION) if isinstance(tree, Mapping) else None
    try:
        if given is None or isinstance(given, str):
            return None if given is None else known(given, f"{where}.{VERSION}")
        problems.append(f"{where}.{VERSION} takes a version such as 2.13.0, as text, or null; given {shown(given)}.")
    except ConfigError as error:
        problems += error.problems
    return None


def _flat(tree: Any, at: str, where: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf that `tree` names; what is no leaf and no group becomes a problem."""
    if not isinstance(tree, Mapping):
        full = f"{where}.{at}".rstrip(".")
        there = listed(_children(at))
        problems.append(f"{full} takes a mapping of options; given {shown(tree)}. Options there: {there}.")
        return
    for name, value in cast("Mapping[Any, Any]", tree).items():
        path = f"{at}.{name}" if at else str(name)
        if path in EVERY_LEAF:
            yield path, value
        elif any(leaf.startswith(f"{path}.") for leaf in EVERY_LEAF):
            yield from _flat(value, path, where, problems)
        else:
            problems.append(_unknown(str(name), at, where))


def _children(group: str) -> tuple[str, ...]:
    """Settable names one level below `group`: `_children("fusion_config")` is `("fusion_switch_file",)`."""
    prefix = f"{group}." if group else ""
    table = LEAVES if any(path.startswith(prefix) for path in LEAVES) else EVERY_LEAF
    below = [path for path, leaf in table.items() if path.startswith(prefix) and leaf.set_by == "compiler"]
    return tuple(dict.fromkeys(path.removeprefix(prefix).split(".")[0] for path in below))


def _unknown(name: str, group: str, where: str) -> str:
    """Says where the same name lives if it lives elsewhere (`compiler.oo_level`), else which sibling is near."""
    full = f"{where}.{group}".rstrip(".")
    near = [path for path in LEAVES if path.split(".")[-1] == name]
    near = near or [path for path in EVERY_LEAF if path.split(".")[-1] == name]
    if near:
        there = " or ".join(f"{where}.{path}" for path in near)
        return f"unknown option '{name}' @ {full}. Did you mean {there}? Options there: {listed(_children(group))}."
    return unknown("option", name, _children(group), full)


def _checked(path: str, value: Any, where: str) -> Any:
    if path not in EVERY_LEAF:
        group, _, name = path.rpartition(".")
        raise ConfigError(_unknown(name, group, where))
    leaf = EVERY_LEAF[path]
    if leaf.set_by != "compiler":
        raise ConfigError(f"{where}.{path} is not set under {where}: {ELSEWHERE[leaf.set_by]}.")
    try:
        return leaf.checked(value)
    except ValueError as error:
        choices = [str(c) for c in leaf.choices or ()]
        hint = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
        raise ConfigError(f"{where}.{path} {error}. {hint}".rstrip()) from None


# Which of TorchAir's options do nothing in a mode, on a target or without another one; what GE makes of one.

_WHERE = "compiler"


def idle_options(
    options: CompilerOptions, mode: str, target: str, honoured: frozenset[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(path, why, which `strict` refuses it) of each changed option that takes no effect, in the table's order."""
    illegal, waits = illegal_in_mode(options, mode), waiting(options, mode)
    for path, value in options.changed().items():
        if not MODES.get(mode).compiles:
            yield path, f"{_given(path, value)} has no effect: {mode} compiles nothing.", ()
        elif path in illegal:
            yield path, illegal[path], ("mode", "all")
        elif path not in honoured:
            yield path, f"{_given(path, value)} has no meaning on target={target} in mode={mode}.", ("all",)
        elif path in waits:
            yield path, waits[path], ("all",)


def illegal_in_mode(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that `mode` cannot honour; nothing is illegal in eager.

    `{"ge_config.oo_level": "compiler.ge_config.oo_level=O1 has no effect in mode=reduce-overhead; …"}`
    """
    if not MODES.get(mode).compiles:
        return {}
    reasons = {path: _mode_reason(EVERY_LEAF[path], value, mode) for path, value in options.changed().items()}
    return {path: reason for path, reason in reasons.items() if reason}


def waiting(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that act only beside another one, which is off."""
    if not MODES.get(mode).compiles:
        return {}
    found: dict[str, str] = {}
    for path, value in options.changed().items():
        needs = EVERY_LEAF[path].needs
        if needs and not options[needs]:
            found[path] = f"{_given(path, value)} takes effect only together with {_WHERE}.{needs}, which is off."
    return found


def twins() -> dict[str, OptionSpec]:
    """{path: the leaf of the other tree that means the same}, both ways."""
    pairs = [(leaf, LEAVES[leaf.twin]) for leaf in LEAVES.values() if leaf.twin]
    return {a.path: b for a, b in pairs} | {b.path: a for a, b in pairs}


def _given(path: str, value: Any) -> str:
    return f"{_WHERE}.{path}={shown(value)}"


def _mode_reason(leaf: OptionSpec, value: Any, mode: str) -> str | None:
    if mode in leaf.modes:
        fewer = leaf.choices_in.get(mode)
        if fewer is None or value in fewer:
            return None
        also = [m for m in leaf.modes if value in leaf.choices_in.get(m, (value,))]
        return (
            f"{_given(leaf.path, value)} has no effect in mode={mode}, which takes: {listed(map(shown, fewer))}; "
            f"it takes effect in: {listed(also)}."
        )
    if not leaf.modes:
        return f"{_given(leaf.path, value)} has no effect in mode={mode} nor in any other: {leaf.doc}."
    reason = f"{_given(leaf.path, value)} has no effect in mode={mode}; it takes effect in: {listed(leaf.modes)}."
    twin = twins().get(leaf.path)
    if twin is None or mode not in twin.modes or twin.set_by != "compiler":
        return reason
    inverted = leaf.twin_inverted or twin.twin_inverted
    return f"{reason} In mode={mode} write {_given(twin.path, (not value) if inverted else value)}."


_FROZEN = (
    "TorchAir reads parameters, and inputs marked static, where they lay at the first call: values written in place "
    "are followed, a parameter that is moved (.to, .data) or replaced later is not, and nobody checks."
)
IMPLIED: Mapping[str, str] = {"experimental_config.frozen_parameter": _FROZEN, "npugraph_ex.frozen_parameter": _FROZEN}
"""{switch: what it demands of the caller, where nobody checks it}."""


def implied_by(options: CompilerOptions, mode: str) -> tuple[str, ...]:
    """`compiler.….frozen_parameter=true: TorchAir reads parameters where …` for each that was switched on."""
    return tuple(
        f"{_given(path, True)}: {sentence}"
        for path, sentence in IMPLIED.items()
        if options[path] and mode in EVERY_LEAF[path].modes
    )


GE_STREAMS = "ge_config.multistream_parallel_mode"

BARE_STRATEGY = "LoadBalance"
"""The strategies with a number came in 2026-07; since 2026-08 one without its number is refused."""

_GE_DOES = {
    "cv": "puts vector kernels beside cube kernels, on two streams",
    "LoadBalance": "covers the graph with paths and gives each a stream, so that all have as many kernels",
    "MainStream": "keeps what nothing can run beside on one stream and lays what can overlap on others",
    "WeightedLoadBalance": "does as LoadBalance, with the blocks and microseconds of each kernel from a profile",
}
"""{strategy of ge.autoMultistreamParallelMode: what GE does with it}, by CANN 9.1's page of the option, GE's sample
`multi_stream_autotune` (2026-08-20) and its sources (hicann/ge, compiler/graph/build/dag)."""


def beside_ge(value: str | None, policy: str) -> str:
    """How far the plan of `streams.objective=ge` with `policy` is what GE does with its option; '' for the same."""
    if value == policy:
        return ""
    if value is None:
        does = f"compiler.{GE_STREAMS} is not set, so that GE uses no automatic streams"
    else:
        strategy, _, most = value.partition(":")
        streams = f", on at most {most} streams" if most else ""
        does = f"with compiler.{GE_STREAMS}={value} GE {_GE_DOES[strategy]}{streams}"
    return f"{does}: the plan is what {policy} would do"


# Ways in which TorchAir compiles nothing and runs a graph eagerly, read from `uncompiled.yaml`.


@frozen(kw_only=True)
class Uncompiled:
    """One way: which options lead there, what runs, and which options still act."""

    when: Mapping[str, str | bool | None]
    modes: tuple[str, ...]
    runs: str
    passes: bool
    acts: tuple[str, ...]
    acts_with: Mapping[str, tuple[str, ...]] = field(factory=dict[str, tuple[str, ...]])
    source: str

    def applies(self, options: CompilerOptions, mode: str) -> bool:
        return mode in self.modes and all(
            options[path] is not None if value is None else options[path] == value for path, value in self.when.items()
        )

    def leaves(self, path: str, options: CompilerOptions) -> bool:
        """Whether an option still acts."""
        more = (one for switch, others in self.acts_with.items() if options[switch] for one in others)
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in (*_table()["everywhere"], *self.acts, *more))

    def why(self, options: CompilerOptions) -> str:
        """`compiler.debug.run_eagerly=true: TorchAir compiles nothing and runs eagerly: the FX graph that …`."""
        beside = [
            f"compiler.{path}={shown(options[path])}" + ("" if path in options.values else " (its default)")
            for path in tuple(self.when)[1:]
        ]
        condition = f", as long as {' and '.join(beside)}" if beside else ""
        return f"{self.switch(options)}: TorchAir compiles nothing{condition}, and runs eagerly: {self.runs}"

    def switch(self, options: CompilerOptions) -> str:
        """`compiler.debug.run_eagerly=true`."""
        first = next(iter(self.when))
        return f"compiler.{first}={shown(options[first])}"


def uncompiled(options: CompilerOptions, mode: str) -> Uncompiled | None:
    """The way that the options lead to in a mode; None where TorchAir compiles."""
    return next((way for way in ways() if way.applies(options, mode)), None)


@cache
def ways() -> tuple[Uncompiled, ...]:
    return tuple(structure(Uncompiled, row, f"ways[{at}]") for at, row in enumerate(_table()["ways"]))


@cache
def _table() -> Mapping[str, Any]:
    file = Path(__file__).with_name("uncompiled.yaml")
    return yaml.load(file.read_text(encoding="utf-8"), yaml_loader())
