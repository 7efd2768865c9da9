"""One call in both worlds, eager and ours: do they agree, and if not, which part of the way made the difference.

Also how long ours took, and what was compiled again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn

from npucompose.compose.calls import is_static
from npucompose.compose.session import Session
from npucompose.compose.state import unsteady_result
from npucompose.errors import NpuComposeError, SignatureError
from npucompose.measure.numerics import combined, compare
from npucompose.npu.static_graph.recompiles import AdviceContext, explain_recompilation, recorded_recompilations
from npucompose.passes.base import STAGES
from npucompose.passes.pipeline import PassPipeline
from npucompose.results.measured import Cause, Numerics, Share
from npucompose.results.record import Recompile
from npucompose.schema.experiment import Call, call_text
from npucompose.targets import compilers
from npucompose.targets.backend import Backend


@frozen(kw_only=True)
class Compared:
    numerics: Numerics
    took_us: float
    recompiles: tuple[Recompile, ...]


def compared(session: Session, function: Callable[..., Any], step: int, call: Call, *, name: str) -> Compared:
    """`function` and the reference on the inputs of a step, changed as `call` says.

    Outputs, inputs and what else a call changes must agree afterwards; step 0 starts from the models' first state.
    `name` is what the call is called in the report.
    """
    unsteady = unsteady_result(session.steadiness)
    if step == 0:
        session.rewind()
        session.made.clear()
    session.made.append((step, call))
    ours, theirs = session.inputs(step, call), session.inputs(step, call)
    asked = _asked(session, ours)
    session.seed(step)
    expected = session.call(session.reference, theirs)
    session.seed(step)
    with recorded_recompilations() as again:
        begun = perf_counter()
        got = session.call(function, ours)
        took = (perf_counter() - begun) * 1e6
    # Before the judgement, which may compile a graph of its own.
    recompiles = tuple(explain_recompilation(one, asked, call=call, name=name) for one in again())
    sides = left(session, session.reference, expected, theirs), left(session, session.built.module, got, ours)
    return Compared(numerics=unsteady or judged(session, *sides), took_us=took, recompiles=recompiles)


@frozen(kw_only=True)
class Steps:
    """Every step of the model compared, through torch.compile and by the detached handle where there is one."""

    results: Mapping[str, Compared]
    first_us: float
    """The first replay."""
    ended: str | None
    """Why the handle was compared on fewer steps."""

    @property
    def numerics(self) -> Numerics:
        return combined({name: one.numerics for name, one in self.results.items()})


def every_step(session: Session, progress: Callable[[float], None]) -> Steps:
    """Eager and compiled side by side on fresh inputs of every step, from one state; then the detached handle."""
    ways: dict[str, Callable[..., Any]] = {"compiled": session.compiled}
    if session.detached is not None:
        ways["detached"] = session.detached
    results: dict[str, Compared] = {}
    first_us = ended = None
    steps = session.built.steps
    for at, (way, function) in enumerate(ways.items()):
        for step in range(steps):
            name = f"{way} step {step}"
            try:
                results[name] = compared(session, function, step, {}, name=f"step {step} of the comparison")
            except SignatureError as error:
                if way == "compiled" or step == 0:
                    raise
                # The model varies a number or a shape, and a recording is good for one signature.
                ended = f"at step {step} of {steps}: {error}"
                break
            first_us = results[name].took_us if way == "detached" or first_us is None else first_us
            progress((at * steps + step + 1) / (len(ways) * steps))
    return Steps(results=results, first_us=first_us or 0.0, ended=ended)


def named(at: int, call: Call) -> str:
    """`call 2 of model.sequence (x.0: 6)`; the first call, with the example inputs, is call 0."""
    return f"call {at} of model.sequence ({call_text(call)})"


def _asked(session: Session, inputs: Mapping[str, Any]) -> AdviceContext:
    policy = session.experiment.shapes
    return AdviceContext(
        shapes=policy,
        mode=session.experiment.mode.name,
        static=frozenset(name for name in inputs if is_static(policy, name)),
        numbers=frozenset(name for name, value in inputs.items() if _is_numbers(value)),
        arguments=tuple(inputs),
    )


def _is_numbers(value: Any) -> bool:
    """Ints and floats can become symbols, alone or in a list; a bool cannot."""
    values = value if isinstance(value, list | tuple) else (value,)
    return bool(values) and all(type(one) in (int, float) for one in values)


# The verdict on one call: is it eager's result, and if not, which part of the way made the difference.
#
# Note [Three parts of the way]
# From eager to a replay lie tracing (Dynamo and AOTAutograd with the target's decompositions), the passes, and what
# runs the graph. Tracing may change the last bits, and is allowed what the table of tolerances allows; a recording may
# change nothing of the graph that it records. So a result that is not eager's bit for bit is held against the traced
# graph too. A mode that makes kernels of its own (max-autotune) is held against eager; the traced graph is asked when
# that fails.

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


# The model as Dynamo and AOTAutograd trace it (torch's `aot_eager`): graphs interpreted, nothing recorded or fused.
# What lies between eager and a replay, so that one can say where a difference comes from.

Made = tuple[int, Call]
"""A call: the step whose inputs it has, and what it changes in them."""


class Traced:
    """A copy of the session's model, compiled with the decompositions of its target; with or without its passes."""

    def __init__(self, session: Session, *, passes: bool) -> None:
        self._session = session
        self.module = _apart(session.state.copy())
        checked = session.checked
        mode = checked.experiment.mode.name
        can = checked.target.capabilities(mode)
        pre, post = (PassPipeline.for_stage(checked.passes if passes else (), stage, can) for stage in STAGES)
        backend = Backend(
            target=checked.target,
            mode=mode,
            compiler=compilers.compiled,
            options=checked.experiment.compiler,
            pre=pre,
            post=post,
        )
        backend.reads_only = True
        backend.decompositions = compilers.decompositions(session.materialised.backend)
        self._function: Callable[..., Any] = torch.compile(
            self.module, backend=backend, **session.materialised.compile_keywords
        )
        self._made: list[Made] = []
        self._last: tuple[Any, Mapping[str, Any]] | None = None

    def after(self, calls: Sequence[Made]) -> tuple[Any, Mapping[str, Any]]:
        """The last call's result and what it left of its inputs, all `calls` made in turn from the first state."""
        if self._last is None or self._made != list(calls[: len(self._made)]):
            self._session.state.rewind(self.module)
            self._made.clear()
        for step, call in calls[len(self._made) :]:
            inputs = self._session.inputs(step, call)
            self._session.seed(step)
            with _account_kept():
                self._last = self._session.call(self._function, inputs), inputs
            self._made.append((step, call))
        assert self._last is not None
        return self._last


def _apart(module: nn.Module) -> nn.Module:
    """The module with a forward of its own, of the same text.

    # Note [A frame of its own]
    Dynamo keeps what it compiled with the code object of a function, whatever the backend: versions made here would be
    counted with those of the model under test, and be told of when that is compiled again.
    """
    kind = type(module)
    forward = getattr(kind, "forward", None)  # a class of TorchScript has none before its instances
    if not isinstance(forward, FunctionType):
        return module
    own = FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    own.__dict__.update(forward.__dict__)
    module.__class__ = type(kind.__name__, (kind,), {"forward": own, "__module__": kind.__module__})
    return module


@contextmanager
def _account_kept() -> Iterator[None]:
    """Graph breaks are counted for the whole process, and read as those of the model under test."""
    from torch._dynamo.utils import counters

    breaks = counters["graph_break"].copy()
    try:
        yield
    finally:
        counters["graph_break"].clear()
        counters["graph_break"].update(breaks)
