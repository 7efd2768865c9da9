"""One call in both worlds, eager and ours: do they agree, how long did ours take, what was compiled again for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from attrs import frozen

from npucompose.compose import shapes
from npucompose.compose.judgement import judged, left
from npucompose.compose.session import Session
from npucompose.compose.steadiness import unsteady_result
from npucompose.errors import SignatureError
from npucompose.results.measured import Numerics
from npucompose.results.record import Recompile
from npucompose.schema.experiment import Call, told
from npucompose.sinking.recompiles import Asked, explained, watched


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
    with watched() as again:
        begun = perf_counter()
        got = session.call(function, ours)
        took = (perf_counter() - begun) * 1e6
    # Before the judgement, which may compile a graph of its own.
    recompiles = tuple(explained(one, asked, call=call, name=name) for one in again())
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
        from npucompose.measure.numerics import combined

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
    return f"call {at} of model.sequence ({told(call)})"


def _asked(session: Session, inputs: Mapping[str, Any]) -> Asked:
    policy = session.experiment.shapes
    marked = [name for name in inputs if shapes.is_static(policy, name)]
    numbers = [name for name, value in inputs.items() if _is_numbers(value)]
    return Asked(
        shapes=policy,
        mode=session.experiment.mode.name,
        static=frozenset(marked),
        numbers=frozenset(numbers),
        arguments=tuple(inputs),
    )


def _is_numbers(value: Any) -> bool:
    """Ints and floats can become symbols, alone or in a list; a bool cannot."""
    values = value if isinstance(value, list | tuple) else (value,)
    return bool(values) and all(type(one) in (int, float) for one in values)
