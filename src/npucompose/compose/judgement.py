"""The verdict on one call: is it eager's result, and if not, which part of the way made the difference.

# Note [Three parts of the way]
From eager to a replay lie tracing (Dynamo and AOTAutograd with the target's decompositions), the passes, and what runs
the graph. Tracing may change the last bits, and is allowed what the table of tolerances allows; a recording may change
nothing of the graph that it records. So a result that is not eager's bit for bit is held against the traced graph too.
A mode that makes kernels of its own (max-autotune) is held against eager; the traced graph is asked when that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve
from torch import nn

from npucompose.compose.traced import Traced
from npucompose.errors import NpuComposeError
from npucompose.measure.numerics import compare
from npucompose.results.measured import Cause, Numerics, Share

if TYPE_CHECKING:
    from npucompose.compose.session import Session

Left = list[Any]
"""What a call leaves behind: its result, its inputs, the buffers, and other state that the model depends on."""


def left(session: Session, module: nn.Module, result: Any, inputs: Mapping[str, Any]) -> Left:
    return [result, dict(inputs), list(module.buffers()), session.state.outside_of(module)]


def judged(session: Session, expected: Left, got: Left) -> Numerics:
    """The verdict on the last of `session.made`."""
    exact, declared = session.promises_bits, session.declared
    whole = evolve(compare(expected, got, exact=exact, declared=declared), model=session.steadiness.words)
    compiles = session.experiment.mode.spec.compiles
    if whole.bitwise or not compiles or (whole.passed and not session.records):
        return whole
    try:
        traced = _as_traced(session, passes=False)
        if not session.records:
            return _of_kernels(whole, compare(expected, traced), compare(traced, got, declared=declared))
        tracing = compare(expected, traced)
        chain = compare(traced, got, name="the traced graph", exact=exact, declared=declared)
        passed_on = None if chain.bitwise or not _has_passes(session) else _as_traced(session, passes=True)
    except NpuComposeError as error:
        problem = f"the graph could not be run as it was traced: {error}"
        return evolve(whole, cause=None if whole.passed else "replay", problems=(*whole.problems, problem))
    if passed_on is None:
        return _verdict(whole, tracing, None, chain)
    passes = compare(traced, passed_on, name="the traced graph", exact=exact, declared=declared)
    replay = compare(passed_on, got, name="the graph after the passes", exact=session.steadiness.repeats)
    return _verdict(whole, tracing, passes, replay)


def _as_traced(session: Session, *, passes: bool) -> Left:
    mode = session.experiment.mode.name
    key = mode, tuple(label for label, _ in session.checked.passes) if passes else None
    if key not in session.traced:
        session.traced[key] = Traced(session, passes=passes)
    traced = session.traced[key]
    return left(session, traced.module, *traced.after(session.made))


def _has_passes(session: Session) -> bool:
    """Passes that ran in a compiler of the vendor's own cannot be parted from it."""
    return bool(session.checked.passes) and session.materialised.genuine is None


def _verdict(whole: Numerics, tracing: Numerics, passes: Numerics | None, replay: Numerics) -> Numerics:
    parts: Sequence[tuple[Cause, Numerics | None]] = (("replay", replay), ("passes", passes), ("tracing", tracing))
    failed = [(cause, found) for cause, found in parts if found is not None and not found.passed]
    return evolve(
        whole,
        passed=not failed,
        cause=failed[0][0] if failed else None,
        problems=tuple(f"{cause}: {problem}" for cause, found in failed for problem in found.problems),
        tolerance={**whole.tolerance, **tracing.tolerance},
        tracing=_share(tracing),
        passes=None if passes is None else _share(passes),
        replay=_share(replay),
    )


def _of_kernels(whole: Numerics, tracing: Numerics, kernels: Numerics) -> Numerics:
    """A failure of a mode that makes its own kernels: it stands, and the traced graph tells whose it is."""
    cause: Cause = "tracing" if kernels.passed and not tracing.passed else "replay"
    return evolve(whole, cause=cause, tracing=_share(tracing), replay=_share(kernels))


def _share(found: Numerics) -> Share:
    return Share(max_abs_err=found.max_abs_err, bitwise=found.bitwise, passed=found.passed)
