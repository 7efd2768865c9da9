"""What the table of docs/performance.md has to show, judged from its results. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from attrs import frozen
from candidates import AOT_INDUCTOR, CPP_WRAPPER, DETACHED, FROZEN, INDUCTOR, OTHERS, RECOMMENDED, WRAPPED
from rivals import ONNX_RUNTIME

Result = dict[str, Any]
OVER_EAGER = {
    "tiny_ops": 4.9,
    "gpt_decode": 2.15,
    "gpt_prefill": 2.3,
    "moe_shared_expert": 1.35,
    "minilm": 2.25,
    "transformers": 3.9,
    "resnet18": 1.6,
    "unet": 1.6,
}
"""{model: speed-up of the recommended way over eager, at one thread}."""
NOT_SLOWER, THAN_A_RIVAL, IN_THE_MEAN = 0.98, 0.97, 1.15
"""As fast as another way of npucompose, and as any rival, in every cell; over all cells as the best rival of each."""


@frozen(kw_only=True)
class Goal:
    words: str
    figure: str
    met: bool | None
    """None where one of the two has no figure."""


def goals(results: Sequence[Result]) -> list[Goal]:
    at_one = {r["model"]: r["candidates"] for r in results if r["threads"] == 1}
    return [
        *(_over_eager(at_one.get(model, {}), model, limit) for model, limit in OVER_EAGER.items()),
        _in_every_cell(results, "the better of Inductor's own wrappers", WRAPPED, NOT_SLOWER),
        _in_every_cell(results, DETACHED, (DETACHED,), NOT_SLOWER),
        _in_every_cell(results, "the best rival", OTHERS, THAN_A_RIVAL),
        _in_the_mean(results),
        _errors(results, INDUCTOR),
        _errors(results, FROZEN),
        *(_against(at_one.get("tiny_ops", {}), "tiny_ops", other, 1.0) for other in (INDUCTOR, CPP_WRAPPER)),
        *(_against(at_one.get("tiny_ops", {}), "tiny_ops", other, 1.0) for other in (AOT_INDUCTOR, ONNX_RUNTIME)),
        _against(at_one.get("gpt_decode", {}), "gpt_decode", AOT_INDUCTOR, 1.05),
    ]


def _speed(rows: Mapping[str, Any], name: str) -> float | None:
    return rows.get(name, {}).get("as_fast_as_eager")


def _over_eager(rows: Mapping[str, Any], model: str, limit: float) -> Goal:
    words, speed = f"{model}: speed-up of {RECOMMENDED} at least {limit:g}", _speed(rows, RECOMMENDED)
    return Goal(words=words, figure=_shown(speed), met=None if speed is None else speed >= limit)


def _against(rows: Mapping[str, Any], model: str, other: str, limit: float) -> Goal:
    words = f"{model}: {DETACHED} at most {limit:g} of the time of {other}"
    fast, slow = _speed(rows, DETACHED), _speed(rows, other)
    if not fast or not slow:
        return Goal(words=words, figure="-", met=None)
    return Goal(words=words, figure=f"{slow / fast:.2f}", met=slow / fast <= limit)


def _in_every_cell(results: Iterable[Result], whom: str, names: Iterable[str], limit: float) -> Goal:
    words = f"every cell: {RECOMMENDED} at least {limit:g} × {whom}"
    return _worst(words, _ratios(results, tuple(names)), min, lambda ratio: ratio >= limit)


def _in_the_mean(results: Iterable[Result]) -> Goal:
    words = f"mean of all cells: {RECOMMENDED} at least {IN_THE_MEAN:g} × the best rival of each"
    found = [ratio for ratio, _ in _ratios(results, OTHERS)]
    mean = geometric_mean(found) if found else None
    return Goal(words=words, figure=_shown(mean), met=None if mean is None else mean >= IN_THE_MEAN)


def _ratios(results: Iterable[Result], names: Sequence[str]) -> Iterator[tuple[float, str]]:
    """(speed of the recommended way over the fastest of `names`, the cell)."""
    for result in results:
        rows = result["candidates"]
        speeds = [speed for name in names if (speed := _speed(rows, name))]
        ours = _speed(rows, RECOMMENDED)
        if ours and speeds:
            yield ours / max(speeds), _cell(result)


def _errors(results: Iterable[Result], whose: str) -> Goal:
    words = f"every cell: error in double precision of {RECOMMENDED} at most that of {whose}"
    found: list[tuple[float, str]] = []
    for result in results:
        ours, theirs = (result["candidates"].get(name, {}).get("fp64_error") for name in (RECOMMENDED, whose))
        if ours is not None and theirs:
            found.append((ours / theirs, _cell(result)))
    return _worst(words, found, max, lambda ratio: ratio <= 1.0)


def _worst(
    words: str,
    found: Iterable[tuple[float, str]],
    worst: Callable[..., tuple[float, str]],
    met: Callable[[float], bool],
) -> Goal:
    cells = list(found)
    if not cells:
        return Goal(words=words, figure="-", met=None)
    ratio, cell = worst(cells)
    return Goal(words=words, figure=f"{ratio:.2f} ({cell})", met=met(ratio))


def _cell(result: Result) -> str:
    return f"{result['model']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}"


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"
