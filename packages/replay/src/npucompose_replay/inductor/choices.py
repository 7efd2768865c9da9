"""Which of Inductor's ways to compute a product is taken: its own choice is remembered and named, or it is told one.

All that is internal to Inductor's selection of algorithms stands here (torch/_inductor/select_algorithm.py): the two
lists of functions that it asks, before it measures and after that, and which of its choices calls a library. A torch
that has no list to be asked before it measures chooses by itself, and nothing is said of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define
from torch._inductor import select_algorithm
from torch._inductor.runtime.benchmarking import Benchmarker
from torch._inductor.select_algorithm import ExternKernelCaller

from npucompose.machine import Attendance
from npucompose.results.graphs import Winner
from npucompose_replay.inductor.cache import replaced
from npucompose_replay.products.winners import Winners

TEMPLATE = "template"
"""A kernel that Inductor writes from a template, for this product and what follows it."""
LEAST_GAIN = 0.05
"""What is faster by less changes nothing."""
ATTENDED = 0.8
"""Of the time in which a product is measured this process must have had a processor."""
DISTURBED = 10.0
"""Times as long as the other: so far apart are two ways to multiply because something came in between. Inductor's
figures, each measured once, are then good for this compilation and are not remembered; nor are those of a process that
had no processor for a part of the time."""
ONE_CHAIN = "linear_pointwise"
"""oneDNN's operators: they add all terms of a sum to one register, where MKL and a template add up in parts
(sums.py), and so have to gain LEAST_GAIN over a template."""
PACKED = {"mkl_linear": 1}
"""{library: which operand is a packed weight}, whose size is the library's own affair."""
_listening = False


@define(eq=False)
class _Compilation:
    """A graph that Inductor compiles."""

    winners: Winners
    attended: float = 1.0
    """Of the time in which the product at hand is measured this process had a processor for so much, in the worst of
    its ways."""

    @contextmanager
    def attending(self) -> Iterator[None]:
        inductors: Any = Benchmarker.__dict__["benchmark_cpu"]

        def benchmark_cpu(*given: Any, **named: Any) -> float:
            attendance = Attendance()
            ms = inductors(*given, **named)
            self.attended = min(self.attended, attendance.share())
            return ms

        with replaced(Benchmarker, "benchmark_cpu", benchmark_cpu):
            yield


_at_work: list[_Compilation] = []
"""The compilations under way, the inner one last: it is one at a time, under Dynamo's lock."""


@contextmanager
def choosing(winners: Winners, graph: str) -> Iterator[None]:
    """Inductor compiles the graph of this key inside. Where it finds it compiled in its cache, it asks nobody: the
    products that it asked for when the cache was written are said to be computed as they were then."""
    _listen()
    compilation = _Compilation(winners)
    _at_work.append(compilation)
    known = set(winners.found)
    try:
        with compilation.attending():
            yield
    finally:
        _at_work.pop()
    asked = {key: one.winner for key, one in winners.found.items() if key in winners.asked and key not in known}
    if asked:
        winners.keep_products(graph, asked)
    else:
        for key, winner in winners.products(graph).items():
            winners.compiled(key, winner)


def _listen() -> None:
    global _listening
    if not _listening and hasattr(select_algorithm, "add_preprocessing_fn"):
        select_algorithm.add_preprocessing_fn(_allowed)
        select_algorithm.add_feedback_saver(_measured)
        _listening = True


def _allowed(choices: list[Any]) -> list[Any]:
    """Of the choices for one product those that are known to win; all where nothing is known."""
    if not _at_work:
        return choices
    compilation = _at_work[-1]
    compilation.attended = 1.0
    winners = compilation.winners
    key, names = product(choices), _names(choices)
    if key is None:
        return choices
    winners.asked.add(key)
    known = winners.known(key, names)
    if known is None:
        return choices
    return [choice for choice in choices if _name(choice) == known.winner]


def _measured(timings: MutableMapping[Any, float], *_: Any) -> None:
    """Inductor has measured, in milliseconds; it takes the shortest of what is left in `timings`."""
    key = product(list(timings)) if _at_work else None
    if key is None:
        return
    winner = _winner(key, {name: us for name, us in _shortest(timings).items() if us != float("inf")})
    if winner is None:
        return
    compilation = _at_work[-1]
    slowest, fastest = max(winner.times_us.values()), min(winner.times_us.values())
    told = slowest < DISTURBED * fastest and compilation.attended >= ATTENDED
    compilation.winners.keep(winner, remembered=told)
    for choice in [choice for choice in timings if _name(choice) != winner.winner]:
        del timings[choice]


def _winner(key: str, times_us: Mapping[str, float]) -> Winner | None:
    """Of libraries the first, unless another takes LEAST_GAIN less; but a template that is as fast, because it computes
    in passing what follows the product. ONE_CHAIN has to be faster than that."""
    if len(times_us) < 2:
        return None
    libraries = [name for name in times_us if name != TEMPLATE]
    fastest = min(libraries, key=times_us.__getitem__)
    winner = fastest if times_us[fastest] <= (1 - LEAST_GAIN) * times_us[libraries[0]] else libraries[0]
    least_gain = LEAST_GAIN if winner.startswith(ONE_CHAIN) else 0.0
    if times_us.get(TEMPLATE, math.inf) * (1 - least_gain) <= times_us[winner]:
        winner = TEMPLATE
    return Winner(key=key, winner=winner, by="measured", times_us=times_us)


def _shortest(timings: Mapping[Any, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for choice, ms in timings.items():
        name = _name(choice)
        found[name] = min(ms * 1e3, found.get(name, float("inf")))
    return found


def product(choices: Sequence[Any]) -> str | None:
    """`mkl_linear_8x512_256x512_float32` of the library's name and of what is multiplied, between the two of what is
    computed in passing (`linear_pointwise_gelu_tanh_…`); None where there is nothing to choose, and for sizes that are
    symbols."""
    names = _names(choices)
    library = next((name for name in names if name != TEMPLATE), None)
    if library is None or len(names) < 2:
        return None
    called = next(choice for choice in choices if _name(choice) == library)  # a template's weight may be in blocks
    nodes = [node for place, node in enumerate(called.input_nodes) if place != PACKED.get(library)]
    operands = [(node.get_size(), node.get_dtype()) for node in nodes]
    try:
        sizes = ["x".join(str(int(size)) for size in sizes) for sizes, _ in operands]
    except TypeError:  # a symbol
        return None
    passing = [called.kwargs.get(name) for name in ("attr", "algorithm")]
    words = [word for word in passing if word and word != "none"]
    return "_".join([library, *words, *dict.fromkeys(sizes), str(operands[0][1]).removeprefix("torch.")])


def _names(choices: Sequence[Any]) -> list[str]:
    """Libraries first: what holds by default stands first."""
    return sorted(dict.fromkeys(map(_name, choices)), key=lambda name: name == TEMPLATE)


def _name(choice: Any) -> str:
    if not isinstance(choice, ExternKernelCaller):
        return TEMPLATE
    return re.sub(r"\W+", "_", str(choice.name).rpartition("::")[2]).strip("_")
