"""Why Dynamo compiled again, about which argument, and which option or change avoids it. Counts nothing itself.

Dynamo's words for a guard that failed are those of `torch._dynamo.utils.get_compilation_metrics()` and of
`TORCH_LOGS=recompiles`; older versions write the source expression `L['x']` where newer ones write `x`. The advice
follows the table of docs/calls.md (calls × dynamic); tests compare each sentence with torch's own count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from attrs import frozen

from npucompose.npu.static_graph.facts import Change, SinkingQuestion
from npucompose.results.record import Recompile
from npucompose.schema.experiment import WORDS, Call, Shapes, dimension_of
from npucompose.table.modes import modes_that

Kind = Literal["size", "stride", "dtype", "rank", "value", "length", "least", "equal_sizes", "size_value", "other"]

_LOCAL = re.compile(r"\bL\[(['\"])(\w+)\1\]")
_COMPILE_ID = re.compile(r"^-?\s*(\d+/\d+):\s*")
_SIZE = r"(?P<{0}>[^\s()]+)\.size\(\)\[(?P<{0}_at>\d+)\]"
_MISMATCH = r"tensor '(?P<name>.+?)' {0} mismatch"
_AT_INDEX = r" at index (?P<name_at>\d+)\. expected (?P<expected>-?\d+), actual (?P<actual>-?\d+)"
_WHOLE = r"\. expected (?P<expected>\S+), actual (?P<actual>\S+)"
_GUARDS: Mapping[Kind, re.Pattern[str]] = {
    "size": re.compile(_MISMATCH.format("size") + _AT_INDEX),
    "stride": re.compile(_MISMATCH.format("stride") + _AT_INDEX),
    "dtype": re.compile(_MISMATCH.format("dtype") + _WHOLE),
    "rank": re.compile(_MISMATCH.format("rank") + _WHOLE),
    "least": re.compile(rf"^(?P<expected>\d+) <= {_SIZE.format('name')}$"),
    "equal_sizes": re.compile(rf"^{_SIZE.format('name')} == {_SIZE.format('other')}$"),
    "size_value": re.compile(rf"^{_SIZE.format('name')} == (?P<expected>\d+)$"),
    "length": re.compile(r"^len\((?P<name>[^()]+)\) == (?P<expected>\d+)$"),
    "value": re.compile(r"^(?P<name>[^\s()=<>]+) == (?P<expected>\S+)$"),
    "other": re.compile(""),
}
"""What Dynamo writes for each kind; the first that fits counts."""
_TUTORIAL = " (user code shown is first use"
_WORD = re.compile(r"[A-Za-z_]\w*")
CONSTANT_SIZES = ("0", "1")
"""Sizes that torch never makes a symbol of."""


OF_A_SIZE: tuple[Kind, ...] = ("size", "least", "equal_sizes", "size_value")


@frozen(kw_only=True)
class Guard:
    """`Guard(kind="size", text="tensor 'x' size mismatch …", argument="x", dimension=0, expected="4", actual="6")`."""

    kind: Kind
    text: str
    """One line: the guard, without the id of the entry it belongs to and without code that only quotes the model."""
    source: str | None = None
    """Where Dynamo says the guard comes from: `return x * lens[0]  # model.py:3 in forward`."""
    argument: str | None = None
    """The argument of the model that the guard is about; None where it is about none (a parameter, a global)."""
    other: str | None = None
    """The second argument of `equal_sizes`."""
    dimension: int | None = None
    expected: str | None = None
    actual: str | None = None

    @property
    def at_source(self) -> str:
        return f" ({self.source})" if self.source else ""


def guard_of(reason: str, arguments: Collection[str] | None = None) -> Guard:
    """The guard in a recompile reason; `arguments` are the model's, None where nobody knows them.

    `guard_of("0/0: L['lens'][0] == 512  # return x * lens[0]")` is the value 512 of the argument `lens`.
    """
    first_line = reason.strip().splitlines()[0] if reason.strip() else ""
    code, _, comment = _LOCAL.sub(r"\2", _COMPILE_ID.sub("", first_line)).partition("  #")
    text, source = " ".join(code.split()), " ".join(comment.partition(_TUTORIAL)[0].split()) or None

    kind: Kind = next(kind for kind, form in _GUARDS.items() if form.search(text))
    found = _GUARDS[kind].search(text)
    groups = found.groupdict() if found is not None else {}
    return Guard(
        kind=kind,
        text=text,
        source=source,
        argument=_argument(groups.get("name") or text, arguments, named=kind != "other"),
        other=_argument(groups["other"], arguments, named=True) if "other" in groups else None,
        dimension=int(groups["name_at"]) if "name_at" in groups else None,
        expected=groups.get("expected"),
        actual=groups.get("actual"),
    )


def _argument(expression: str, arguments: Collection[str] | None, *, named: bool) -> str | None:
    """The argument an expression starts from: `lens[0]` is of `lens`, `self._buffers['k']` is of none."""
    words = _WORD.findall(expression)
    if arguments is None:
        return words[0] if named and words and words[0] not in ("self", "G") else None
    if named:
        return words[0] if words and words[0] in arguments else None
    return next((word for word in words if word in arguments), None)


@frozen(kw_only=True)
class AdviceContext:
    """What was asked for: the background of every advice."""

    shapes: Shapes
    mode: str
    static: frozenset[str] = frozenset()
    """Arguments whose tensors `shapes.mark_static` marks."""
    numbers: frozenset[str] = frozenset()
    """Arguments that are an int, a float or a list of ints, and not a bool."""
    arguments: Collection[str]


@frozen(kw_only=True)
class Recompilation:
    """One recompilation: Dynamo's id, and for each entry of its cache, the newest first, why that did not fit."""

    compile_id: str
    reasons: tuple[str, ...]


def explain_recompilation(recompilation: Recompilation, asked: AdviceContext, *, call: Call, name: str) -> Recompile:
    """The report's entry for a recompilation in a call; `name` is what the call is called there."""
    guard = _decisive([guard_of(reason, asked.arguments) for reason in recompilation.reasons], call)
    return Recompile(
        compile_id=recompilation.compile_id,
        reason=guard.text + (f"  # {guard.source}" if guard.source else ""),
        argument=guard.argument,
        call=name,
        avoid=_ADVICE[guard.kind](guard, asked),
    )


def _decisive(guards: Sequence[Guard], call: Call) -> Guard:
    """The guard that what the call changed has failed.

    A call does not fit *any* entry, and torch tells of the newest: after a call with another `x`, one with another
    `times` is told to have failed on `x`. The declared change says which entry is the telling one; where it says
    nothing, torch's own choice stands.
    """
    return next((guard for guard in guards if _is_about(guard, call)), guards[0])


def _is_about(guard: Guard, call: Call) -> bool:
    for key, change in call.items():
        name, dimension = dimension_of(key)
        about = (
            guard.dimension == dimension and guard.kind in OF_A_SIZE
            if dimension is not None
            else change not in WORDS and guard.kind in ("value", "length")
        )
        if name in (guard.argument, guard.other) and (about or (change == "transposed" and guard.kind == "stride")):
            return True
    return False


@contextmanager
def recorded_recompilations() -> Iterator[Callable[[], list[Recompilation]]]:
    """`with recorded_recompilations() as again: model(x)`; then `again()` lists what was compiled *again* inside.

    Reads Dynamo's own record, which holds the last 64 compilations of the process, and empties it first. The record
    keeps the newest entry's reason only; all of them pass through one function, which is listened to.
    """
    from torch._dynamo import convert_frame
    from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

    module: Any = convert_frame
    original = module.get_and_maybe_log_recompilation_reasons
    recorded: list[tuple[str, ...]] = []

    def record(*args: Any, **kwargs: Any) -> list[str]:
        reasons = original(*args, **kwargs)
        recorded.append(tuple(reasons))
        return reasons

    def again() -> list[Recompilation]:
        newest = [(str(m.compile_id), m.recompile_reason) for m in get_compilation_metrics() if m.recompile_reason]
        return [
            Recompilation(
                compile_id=compile_id, reasons=next((known for known in recorded if reason in known[:1]), (reason,))
            )
            for compile_id, reason in newest
        ]

    clear_compilation_metrics()
    module.get_and_maybe_log_recompilation_reasons = record
    try:
        yield again
    finally:
        module.get_and_maybe_log_recompilation_reasons = original


# Which option or change avoids it.


def _size(guard: Guard, asked: AdviceContext) -> str:
    if guard.argument is None:
        return "nothing in the shape policy: it is the size of no argument, but of a parameter, a buffer or a global"
    name, at = guard.argument, guard.dimension
    if guard.actual in CONSTANT_SIZES or guard.expected in CONSTANT_SIZES:
        return f"{_least(guard, asked)} under every policy"
    gear = f", or pad it to a gear (shapes.gears: {{{name}.{at}: […]}}, with shapes=dynamic, on an NPU)"
    gear = gear if asked.mode in modes_that("ge") else ""
    if name in asked.static:
        dynamic = "" if asked.shapes.dynamic else ", and write shapes=dynamic"
        return (
            f"leave '{name}' out of shapes.mark_static, which makes each of its shapes a constant{dynamic}; "
            f"or pad its dimension {at} to one size{gear}"
        )
    return f"shapes=dynamic, or shapes.mark_dynamic: {{{name}: [{at}]}}: a symbol from the first call on{gear}"


def _least(guard: Guard, asked: AdviceContext) -> str:
    name = guard.argument or "the tensor"
    return f"pad dimension {guard.dimension} of '{name}' to at least 2: torch keeps the sizes 0 and 1 as constants"


def _equal_sizes(guard: Guard, asked: AdviceContext) -> str:
    names = [name for name in (guard.argument, guard.other) if name]
    if "duck" not in (guard.source or "") or len(set(names)) < 2:
        return "nothing in the shape policy: the model itself needs these sizes to be equal"
    marks = ", ".join(f"{name}: [{guard.dimension}]" for name in names)
    return (
        f"shapes.mark_dynamic: {{{marks}}}, or a first call whose sizes differ: torch gave one symbol to sizes that "
        "were equal in the first call"
    )


def _size_value(guard: Guard, asked: AdviceContext) -> str:
    return (
        "nothing in the shape policy: the size is a symbol and the model's code turned it into a constant"
        f"{guard.at_source}; change the code, or pad the dimension to one size"
    )


def _value(guard: Guard, asked: AdviceContext) -> str:
    if guard.argument is None:
        return "nothing in the shape policy: it is the value of no argument"
    if guard.argument not in asked.numbers or asked.shapes.dynamic:
        return f"nothing in the shape policy: the value of '{guard.argument}' is part of the program{guard.at_source}"
    return f"shapes=dynamic: '{guard.argument}' is a symbol from the first call on"


def _length(guard: Guard, asked: AdviceContext) -> str:
    return f"pad '{guard.argument}' to one length ({guard.expected}): no policy makes the length of a list a symbol"


def _stride(guard: Guard, asked: AdviceContext) -> str:
    return f"pass tensors of one stride order: {guard.argument or 'it'}.contiguous() before the call"


def _same(what: str) -> Callable[[Guard, AdviceContext], str]:
    return lambda guard, asked: f"give '{guard.argument or 'the tensor'}' one {what} in every call"


_ADVICE: Mapping[Kind, Callable[[Guard, AdviceContext], str]] = {
    "size": _size,
    "stride": _stride,
    "dtype": _same("dtype"),
    "rank": _same("rank"),
    "value": _value,
    "length": _length,
    "least": _least,
    "equal_sizes": _equal_sizes,
    "size_value": _size_value,
    "other": lambda guard, asked: "nothing that is known here: the guard's text says what must stay as it was",
}


def mark_again(names: Sequence[str]) -> str:
    calls = "; ".join(f"torch._dynamo.mark_static({name})" for name in dict.fromkeys(names))
    return f"{calls}  # in Python, before every call, not only the first"


def foreseen_recompile(change: Change, question: SinkingQuestion) -> tuple[str, str | None]:
    """(the words, the line that mends it: None where nothing is compiled again)."""
    if change.what == "length":
        return "a list of another length is compiled again, whatever `dynamic` says", "pad it to one length"
    if change.what == "shape" and change.marked:
        fix = f"leave it unmarked and give it gears: shapes.gears={{{change.argument}.DIMENSION: [sizes]}}"
        return "it is marked static, so each shape is compiled again", fix
    if not question.dynamic:
        words = f"shapes.dynamic=false makes it a constant: one compilation for each {change.what}"
        if question.dynamic is None:
            words = f"shapes.dynamic=null: one more compilation, then the {change.what} is a symbol"
        marks = ",".join(question.arguments)
        return words, f"shapes=dynamic shapes.mark_static=[{marks}]  # tensors stay constants, numbers become symbols"
    if change.what == "shape" and change.argument in question.marked:
        words = "the first call's tensor was marked static and this one is not: the next graph has symbols (path 6)"
        return words, mark_again([change.argument])
    return f"the {change.what} is a symbol: nothing is compiled again", None
