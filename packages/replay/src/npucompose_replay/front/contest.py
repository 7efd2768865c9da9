"""Two recordings of one graph for the same inputs, called in turns: which of them is to stay?

# Note [A contest of recordings]
It takes place when a graph is recorded for the first time, on the inputs of that call. Nobody notices: in the place of
inputs that the graph writes there are copies, made anew before every turn, and results are the contest's own.
Both must give the same results within the tolerance of their types before anything is timed. A graph that draws random
numbers, has effects, or calls operators that are not torch's own is not called again: there the fused one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from attrs import evolve, frozen
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.machine import Attendance
from npucompose.results.graphs import FEWEST_ROUNDS, Winner, of_samples
from npucompose.results.measured import tolerance_of
from npucompose_replay import gate
from npucompose_replay.captured_graph import CapturedGraph, lie_at
from npucompose_replay.executor.trial import copies_of_written, why_untriable
from npucompose_replay.memory.arena import Arena
from npucompose_replay.operands import copy_of, sharing

FUSED, UNFUSED = "fused", "unfused"
MOST_ROUNDS = 100
CLEAR, CLEAR_ROUNDS = 1.5, 2
"""Where FEWEST_ROUNDS would take too long: what took so many times as long in each of so many rounds is out."""


@frozen(kw_only=True, eq=False)
class Contest:
    """Of a graph that a compiler fused, against the same graph as it was before, recorded kernel by kernel."""

    key: str
    unfused: fx.GraphModule
    """It takes the inputs of the fused one and gives its results."""
    limit_ms: float
    keep: Callable[[Winner], Any]
    """Told who has won."""

    def before(self, inputs: Sequence[Any]) -> Mapping[int, torch.Tensor]:
        """What of the inputs the call is going to change."""
        return copies_of_written(self.unfused, inputs)

    def won(
        self,
        fused: CapturedGraph,
        unfused: Callable[[Sequence[Any]], CapturedGraph],
        inputs: Sequence[Any],
        before: Mapping[int, torch.Tensor],
    ) -> CapturedGraph:
        """The recording that stays, after the call that recorded `fused`; `before` are its inputs before that.

        `unfused` records for the inputs that it is given; if that recording stays, its inputs lie there.
        """
        # AOTAutograd's mode around a first call has nothing to say about what is called again.
        with _disable_current_modes() if gate.why_not_here() else nullcontext():
            found, recording = self._race(fused, unfused, inputs, before)
        self.keep(found)
        return recording

    def _race(
        self,
        fused: CapturedGraph,
        unfused: Callable[[Sequence[Any]], CapturedGraph],
        inputs: Sequence[Any],
        before: Mapping[int, torch.Tensor],
    ) -> tuple[Winner, CapturedGraph]:
        by_default = Winner(key=self.key, winner=FUSED, by="default")
        shared = sharing(inputs)
        if why := why_untriable(fused.plan, before, shared):
            return evolve(by_default, why=why), fused
        try:
            copies = {index: copy_of(value) for index, value in before.items()}
            given = [copies.get(index, value) for index, value in enumerate(inputs)]
            again = partial(_made_anew, copies, before)
            with _lying(fused, given, inputs) if copies else nullcontext(fused) as copied:
                ways = {FUSED: copied, UNFUSED: unfused(given)}
                if why := why_untriable(ways[UNFUSED].plan, before, shared):
                    return evolve(by_default, why=why), fused
                error, wrong = _compared(ways, given, before, again)
                if wrong:
                    return evolve(by_default, max_abs_err=error, why=wrong), fused
                samples, attended = _in_turns(
                    {name: way.replay for name, way in ways.items()}, given, again, self.limit_ms
                )
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, it must not end a call that has succeeded
            return evolve(by_default, why=f"unfused it cannot be run: {str(error).partition(chr(10))[0]}"), fused
        if len(samples[FUSED]) < CLEAR_ROUNDS:
            why = f"{FEWEST_ROUNDS} rounds take longer than target.measure_ms={self.limit_ms:g}"
            return evolve(by_default, max_abs_err=error, why=why), fused
        found = evolve(of_samples(self.key, samples, attended), max_abs_err=error)
        return found, fused if found.winner == FUSED else ways[UNFUSED]


def _made_anew(copies: Mapping[int, torch.Tensor], before: Mapping[int, torch.Tensor]) -> None:
    """The copies of inputs as these were before the call."""
    with torch.no_grad():
        for index, value in before.items():
            copies[index].copy_(value)


@contextmanager
def _lying(recording: CapturedGraph, copies: Sequence[Any], inputs: Sequence[Any]) -> Iterator[CapturedGraph]:
    """The recording for inputs that lie elsewhere; at the end its plan has them where they were."""
    try:
        yield recording.moved(copies, Arena())
    finally:
        lie_at(recording.plan, inputs)


def _compared(
    ways: Mapping[str, CapturedGraph], inputs: Sequence[Any], written: Mapping[int, Any], again: Callable[[], None]
) -> tuple[float | None, str]:
    """(the largest difference, what is wrong or '') between the results of both, and what they leave of the inputs."""
    seen: list[list[Any]] = []
    for way in ways.values():
        again()
        results = [*way.replay(*inputs), *(inputs[index] for index in written)]
        seen.append([one.clone() if isinstance(one, torch.Tensor) else one for one in results])
    errors = [0.0]
    for number, (one, other) in enumerate(zip(*seen, strict=True)):
        error, wrong = difference(one, other)
        if wrong:
            return error, f"result {number} {wrong}"
        errors.append(error or 0.0)
    return max(errors), ""


def difference(one: Any, other: Any) -> tuple[float | None, str]:
    """(the largest absolute difference, '' or how two results differ by more than the tolerance of their type)."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return (
            (None, "") if type(one) is type(other) and one == other else (None, f"is {one} fused and {other} unfused")
        )
    if one.dtype != other.dtype or one.shape != other.shape:
        return None, f"is {one.dtype}{list(one.shape)} fused and {other.dtype}{list(other.shape)} unfused"
    allowed = tolerance_of(str(one.dtype))
    exact = not (one.is_floating_point() or one.is_complex())
    same = (
        torch.equal(one, other)
        if exact
        else torch.allclose(one, other, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    )
    finite = (one.to(torch.complex128 if one.is_complex() else torch.float64) - other).abs().nan_to_num(0, 0, 0)
    error = float(finite.max()) if finite.numel() else 0.0
    return error, "" if same else f"differs by {error:.3g} between fused and unfused"


def _in_turns(
    ways: Mapping[str, Callable[..., Any]], inputs: Sequence[Any], again: Callable[[], None], limit_ms: float
) -> tuple[dict[str, list[float]], float]:
    """({way: microseconds of each round}, share of the time with a processor): FEWEST_ROUNDS or more, begun within the
    limit, or few in a clear case."""
    attendance = Attendance()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    started = perf_counter_ns()
    deadline = started + limit_ms * 1e6
    too_long = started + limit_ms * 1e6 * CLEAR_ROUNDS / FEWEST_ROUNDS
    while len(taken[names[0]]) < MOST_ROUNDS and perf_counter_ns() < deadline:
        for name in names if len(taken[names[0]]) % 2 else names[::-1]:
            again()
            begun = perf_counter_ns()
            ways[name](*inputs)
            taken[name].append((perf_counter_ns() - begun) / 1e3)
        if len(taken[names[0]]) == CLEAR_ROUNDS and perf_counter_ns() > too_long and _is_clear(*taken.values()):
            break
    else:
        if len(taken[names[0]]) < FEWEST_ROUNDS:
            taken = {name: [] for name in ways}
    return taken, attendance.share()


def _is_clear(one: Sequence[float], other: Sequence[float]) -> bool:
    return min(one) > CLEAR * max(other) or min(other) > CLEAR * max(one)
