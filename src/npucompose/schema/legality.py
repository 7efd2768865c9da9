"""Which options a mode and a target can honour, and what `strict` makes of those that they cannot.

- strict=off: everything runs; what has no effect is listed.
- strict=mode: what the *mode* cannot honour is an error; what has no meaning on the *target*, or waits for a switch
  that is off, is listed, so that one YAML serves the laptop and the NPU.
- strict=all: what would only be listed is an error too.
In mode eager nothing is compiled: every option is listed, none refused, whatever `strict` says, because eager is the
baseline of experiments that do set options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from npucompose.errors import ConfigError, listed
from npucompose.schema.compiler import EVERY_LEAF, LEAVES, CompilerOptions
from npucompose.schema.effective import Effective
from npucompose.schema.leaf import Leaf, shown

EAGER = "eager"
_WHERE = "compiler"


def illegal_in_mode(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that `mode` cannot honour; nothing is illegal in eager.

    `{"ge_config.oo_level": "compiler.ge_config.oo_level=O1 does not act in mode=reduce-overhead; it acts in: …"}`
    """
    if mode == EAGER:
        return {}
    reasons = {path: _mode_reason(EVERY_LEAF[path], value, mode) for path, value in options.changed().items()}
    return {path: reason for path, reason in reasons.items() if reason}


def not_on_target(options: CompilerOptions, mode: str, target: str, honoured: frozenset[str]) -> dict[str, str]:
    """{path: reason} of the changed options that are legal in `mode` and that `target` does not honour there."""
    if mode == EAGER:
        return {}
    illegal = illegal_in_mode(options, mode)
    return {
        path: f"{_given(path, value)} has no meaning on target={target} in mode={mode}."
        for path, value in options.changed().items()
        if path not in illegal and path not in honoured
    }


def waiting(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of the changed options that act only beside another one, which is off."""
    if mode == EAGER:
        return {}
    found: dict[str, str] = {}
    for path, value in options.changed().items():
        needs = EVERY_LEAF[path].needs
        if needs and not options[needs]:
            found[path] = f"{_given(path, value)} acts only together with {_WHERE}.{needs}, which is off."
    return found


def in_eager(options: CompilerOptions, mode: str) -> dict[str, str]:
    """{path: reason} of every changed option when `mode` is eager, else nothing."""
    if mode != EAGER:
        return {}
    changed = options.changed().items()
    return {path: f"{_given(path, value)} is not acting: eager compiles nothing." for path, value in changed}


def judge(
    options: CompilerOptions,
    strict: Literal["off", "mode", "all"],
    illegal: Mapping[str, str],
    not_acting: Mapping[str, str],
    baseline: Mapping[str, str] | None = None,
) -> list[Effective]:
    """What to report, in the order of the table; ConfigError with every refused option at once.

    `illegal` is refused by `mode` and `all`, `not_acting` by `all`, `baseline` (what is idle in eager) by nothing.
    """
    refused = dict(illegal) if strict != "off" else {}
    if strict == "all":
        refused.update({path: f"{reason} (strict=all)" for path, reason in not_acting.items() if path not in refused})
    if refused:
        raise ConfigError(*(refused[path] for path in EVERY_LEAF if path in refused))
    reasons = {**(baseline or {}), **not_acting, **illegal}
    return [
        Effective(option=f"{_WHERE}.{path}", requested=options[path], effective=leaf.default, why=reasons[path])
        for path, leaf in EVERY_LEAF.items()
        if path in reasons
    ]


def legality(
    options: CompilerOptions,
    *,
    mode: str,
    target: str,
    honoured: frozenset[str],
    strict: Literal["off", "mode", "all"] = "mode",
) -> list[Effective]:
    """All of the above in one call: the compiler options that will not take effect, or ConfigError."""
    not_acting = {**waiting(options, mode), **not_on_target(options, mode, target, honoured)}
    return judge(options, strict, illegal_in_mode(options, mode), not_acting, in_eager(options, mode))


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
