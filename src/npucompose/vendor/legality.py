"""Which of TorchAir's options do nothing in a mode, on a target or without another one; what GE makes of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npucompose.errors import listed
from npucompose.table.modes import MODES
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES, CompilerOptions
from npucompose.vendor.leaf import Leaf, shown

_WHERE = "compiler"


def idle_options(
    options: CompilerOptions, mode: str, target: str, honoured: frozenset[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(path, why, which `strict` refuses it) of each changed option that takes no effect, in the table's order."""
    illegal, waits = illegal_in_mode(options, mode), waiting(options, mode)
    for path, value in options.changed().items():
        if not MODES[mode].compiles:
            yield path, f"{_given(path, value)} is not acting: {mode} compiles nothing.", ()
        elif path in illegal:
            yield path, illegal[path], ("mode", "all")
        elif path not in honoured:
            yield path, f"{_given(path, value)} has no meaning on target={target} in mode={mode}.", ("all",)
        elif path in waits:
            yield path, waits[path], ("all",)


def illegal_in_mode(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that `mode` cannot honour; nothing is illegal in eager.

    `{"ge_config.oo_level": "compiler.ge_config.oo_level=O1 does not act in mode=reduce-overhead; it acts in: …"}`
    """
    if not MODES[mode].compiles:
        return {}
    reasons = {path: _mode_reason(EVERY_LEAF[path], value, mode) for path, value in options.changed().items()}
    return {path: reason for path, reason in reasons.items() if reason}


def waiting(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that act only beside another one, which is off."""
    if not MODES[mode].compiles:
        return {}
    found: dict[str, str] = {}
    for path, value in options.changed().items():
        needs = EVERY_LEAF[path].needs
        if needs and not options[needs]:
            found[path] = f"{_given(path, value)} acts only together with {_WHERE}.{needs}, which is off."
    return found


def twins() -> dict[str, Leaf]:
    """{path: the leaf of the other tree that means the same}, both ways."""
    pairs = [(leaf, LEAVES[leaf.twin]) for leaf in LEAVES.values() if leaf.twin]
    return {a.path: b for a, b in pairs} | {b.path: a for a, b in pairs}


def _given(path: str, value: Any) -> str:
    return f"{_WHERE}.{path}={shown(value)}"


def _mode_reason(leaf: Leaf, value: Any, mode: str) -> str | None:
    if mode in leaf.modes:
        fewer = leaf.choices_in.get(mode)
        if fewer is None or value in fewer:
            return None
        also = [m for m in leaf.modes if value in leaf.choices_in.get(m, (value,))]
        return (
            f"{_given(leaf.path, value)} does not act in mode={mode}, which takes: {listed(map(shown, fewer))}; "
            f"it acts in: {listed(also)}."
        )
    if not leaf.modes:
        return f"{_given(leaf.path, value)} does not act in mode={mode} nor in any other: {leaf.doc}."
    reason = f"{_given(leaf.path, value)} does not act in mode={mode}; it acts in: {listed(leaf.modes)}."
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
    "LoadBalance": "covers the graph with paths and merges them, window by window with the times simulated anew",
    "MainStream": "keeps the longest path on one stream and lays what can run beside it on others",
    "WeightedLoadBalance": "does as LoadBalance, with the blocks and microseconds of each kernel from a profile",
}
"""{strategy of ge.autoMultistreamParallelMode: what GE does with it}, by GE's sample `multi_stream_autotune`
(2026-08-20) and CANN 9.1's page of the option."""


def beside_ge(value: str | None) -> str:
    """How far the plan of `streams.objective=ge` is what GE itself would do with this value of its option."""
    if value is None:
        return (
            f"compiler.{GE_STREAMS} is not set, so that GE uses no automatic streams: the plan is what its allocator "
            "of before 2026-07 would do"
        )
    strategy, _, most = value.partition(":")
    streams = f", on at most {most} streams" if most else ""
    return (
        f"with compiler.{GE_STREAMS}={value} GE {_GE_DOES[strategy]}{streams}: the plan is that of GE's allocator of "
        "before 2026-07, to compare with, and not this one's"
    )
