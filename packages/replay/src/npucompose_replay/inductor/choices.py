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

from torch._inductor import select_algorithm
from torch._inductor.select_algorithm import ExternKernelCaller
from torch._inductor.virtualized import V

from npucompose.results.graphs import ATTENDED, LEAST_GAIN, Winner
from npucompose_replay.products.cold import ColdProducts
from npucompose_replay.products.libraries import ATEN, MKL
from npucompose_replay.products.linears import form_of
from npucompose_replay.products.winners import Winners

TEMPLATE = "template"
"""A kernel that Inductor writes from a template, for this product and what follows it."""
DISTURBED = 10.0
"""Times as long as the other: so far apart are two ways to multiply because something came in between. Inductor's
figures, each measured once, are then good for this compilation and are not remembered; nor are those of a process that
had no processor for a part of the time."""
CONTESTS = {
    MKL: re.compile(r"mkl_linear_(?P<rows>\d+)x(?P<inner>\d+)_(?P<columns>\d+)x(?P=inner)_float32"),
    ATEN: re.compile(r"(?:addmm_\d+|mm)_(?P<rows>\d+)x(?P<inner>\d+)_(?P=inner)x(?P<columns>\d+)_float32"),
}
"""{who won a product with a frozen weight (linears.py): how the same product is called here}."""
ONE_CHAIN = "linear_pointwise"
"""oneDNN's operators: they add all terms of a sum to one register, where MKL and a template add up in parts
(inductor_sums.py), and so have to gain LEAST_GAIN over a template."""
PACKED = {"mkl_linear": 1}
"""{library: which operand is a packed weight}, whose size is the library's own affair."""
_at_work: list[tuple[Winners, ColdProducts]] = []
"""Of the compilation under way; it is one at a time, under Dynamo's lock."""
_listening = False


@contextmanager
def choosing(winners: Winners, graph: str, constants: int = 0) -> Iterator[None]:
    """Inductor compiles the graph of this key, with so many bytes of constants, inside. Where it finds it compiled in
    its cache, it asks nobody: the products that it asked for when the cache was written are said to be computed as they
    were then."""
    _listen()
    cold = ColdProducts(constants, winners.limit_ms)
    _at_work.append((winners, cold))
    known = set(winners.found)
    try:
        with cold.timing():
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
    winners, cold = _at_work[-1]
    cold.product(choices, V.graph.constants)
    key, names = product(choices), _names(choices)
    if key is None:
        return choices
    winners.asked.add(key)
    known = winners.known(key, names)
    if known is None or known.by == "default":
        winners.found.pop(key, None)  # Inductor's options say whether it measures
        return choices
    return [choice for choice in choices if _name(choice) == known.winner]


def _measured(timings: MutableMapping[Any, float], *_: Any) -> None:
    """Inductor has measured, in milliseconds; it takes the shortest of what is left in `timings`."""
    key = product(list(timings)) if _at_work else None
    if key is None:
        return
    times_us = {name: us for name, us in _shortest(timings).items() if us != float("inf")}
    winner = _winner(key, {name: min(us, _at_most(key, name)) for name, us in times_us.items()})
    if winner is None:
        return
    winners, cold = _at_work[-1]
    slowest, fastest = max(winner.times_us.values()), min(winner.times_us.values())
    winners.keep(winner, remembered=slowest < DISTURBED * fastest and cold.attended >= ATTENDED)
    for choice in [choice for choice in timings if _name(choice) != winner.winner]:
        del timings[choice]


def _at_most(key: str, name: str) -> float:
    """The microseconds that a library was found to take at most: by a contest of libraries, over many rounds and cold
    weights, where Inductor looks once and may be disturbed."""
    for library, form in CONTESTS.items():
        called = None if name == TEMPLATE else form.fullmatch(key)
        if called is not None:
            contest = _at_work[-1][0].found.get(form_of(**called.groupdict()))
            return contest.times_us.get(library, float("inf")) if contest is not None else float("inf")
    return float("inf")


def _winner(key: str, times_us: Mapping[str, float]) -> Winner | None:
    """Of libraries the first, unless another takes LEAST_GAIN less; but a template that is as fast, because it computes
    in passing what follows the product, which no contest sees. ONE_CHAIN has to be faster than that."""
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
