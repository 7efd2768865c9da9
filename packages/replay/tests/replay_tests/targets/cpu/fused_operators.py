"""One operator of torch's own samples through mode=max-autotune: who calls its kernels, and how far it is from eager.

Used by test_fused_operators.py and `python -m benchmarks.op_db`. Each sample is compiled once and called three times
with other values: the first call is recorded, the others are replayed. Results are compared with eager's, with those of
the same operator in double precision, and, bit for bit, with what Inductor's own wrapper makes of the same kernels.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from unittest import mock

import torch
from attrs import frozen
from torch._dynamo.exc import Unsupported, UserError
from torch.utils._pytree import tree_flatten

import npucompose
from npucompose.errors import NpuComposeError
from npucompose_replay.interface import watching
from replay_tests.op_samples import BY_NAME, Call, common_methods_invocations, equal, families, line_of
from replay_tests.semantics.harness import TOLERANCE

CHOICES = ("mode=max-autotune", "inductor.fallback_random=true", "target.when_new=at_once")
"""Random numbers are eager's, and every signature is recorded when it first comes."""
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16, torch.float16)
"""The first of these that an operator supports."""
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
LOOKED_AT = 8
WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
ROUNDING = 2.0
"""So many times eager's own error may ours be, where that is more than the tolerance."""
DATA_DEPENDENT = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
"""Settings of torch without which Dynamo does not take what depends on data into a graph."""

OF_DYNAMO = (Unsupported, UserError)
EXPLAINED = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)

Kind = Literal["native", "wrapper", "no graph", "no sample", "refused", "as inductor", "wrong"]
"""`native`: recorded and replayed. `wrapper`: Inductor's wrapper calls its kernels. `no graph`: nothing is left to
compile once Dynamo has traced it. `refused`: torch does not compile it. `as inductor`: not eager's results, but what
torch.compile with Inductor gives."""
ORDER: tuple[Kind, ...] = ("wrong", "as inductor", "refused", "wrapper", "native", "no graph", "no sample")
"""The kind of an operator is the first of these that any of its samples is."""


@frozen(kw_only=True)
class Verdict:
    kind: Kind
    words: str = ""
    """Why it is that."""
    error: float = 0.0
    """The largest difference from the results in double precision, as a share of the largest number and at least 1."""
    eager_error: float = 0.0
    """The same of eager's."""


def verdicts(name: str, most: int) -> list[Verdict]:
    """One for each of up to `most` samples of an operator."""
    op = BY_NAME[name]
    dtype = next((dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return [Verdict(kind="no sample", words="no usual dtype is supported on the CPU")]
    try:
        found = samples(op, dtype, most)
    except Exception as error:  # noqa: BLE001 - a sample that torch itself cannot make is a reason to write down
        return [Verdict(kind="no sample", words=line_of(error))]
    if not found:
        return [Verdict(kind="no sample", words="torch has none")]
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _plainly):
        return [verdict(calls, values=name not in UNINITIALISED) for calls in found]


def _plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What torch's samples call with a seed of their own, which Dynamo does not trace: here every call has one."""
    return op(*args, **kwargs)


def dtype_of(name: str) -> str:
    supported = BY_NAME[name].supported_dtypes("cpu")
    return next((str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype in supported), "none")


def samples(op: Any, dtype: torch.dtype, most: int) -> list[list[Call]]:
    """Some, from the first to the last of those looked at; those with numbers in them come first."""
    found = list(families(op, dtype, LOOKED_AT)) or _the_same(op, dtype)
    full = [calls for calls in found if any(tensor.numel() for tensor in calls[0][0])] or found
    chosen = full if len(full) <= most else [full[round(k * (len(full) - 1) / max(most - 1, 1))] for k in range(most)]
    return [_with_other_values(calls) for calls in chosen]


def _the_same(op: Any, dtype: torch.dtype) -> list[list[Call]]:
    """Where no two seeds give the same form: the samples of one seed, three times."""
    return [[calls] * 3 for (calls, *_) in families(op, dtype, LOOKED_AT, seeds=1)]


def _with_other_values(calls: list[Call]) -> list[Call]:
    """Where seeds make no difference the numbers become smaller from call to call, if the operator takes them so."""
    first, function = calls[0]
    if not all(torch.equal(a, b) for tensors, _ in calls[1:] for a, b in zip(first, tensors, strict=True)):
        return calls
    smaller = [([_times(tensor, 1 - k / 8) for tensor in tensors], function) for k, (tensors, _) in enumerate(calls)]
    try:
        for tensors, _ in smaller:
            function(*copy.deepcopy(tensors))
    except Exception:  # noqa: BLE001 - not every number is one that it takes
        return calls
    return smaller


def _times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return copy.deepcopy(tensor).mul_(factor)


def overall(found: Sequence[Verdict]) -> Verdict:
    """The verdict of an operator: the worst of its samples, with the largest error of all."""
    worst = min(found, key=lambda one: ORDER.index(one.kind))
    largest = max(found, key=lambda one: one.error)
    return Verdict(kind=worst.kind, words=worst.words, error=largest.error, eager_error=largest.eager_error)


def verdict(calls: Sequence[Call], *, values: bool = True, choices: Sequence[str] = CHOICES) -> Verdict:
    """Of one sample, whose `calls` have the same form; without `values` only forms are compared."""
    function = calls[0][1]
    with torch.no_grad():
        try:
            wanted = [_called(function, tensors, seed) for seed, (tensors, _) in enumerate(calls)]
        except Exception as error:  # noqa: BLE001 - see above
            return Verdict(kind="no sample", words=f"eager fails: {line_of(error)}")
        try:
            found = _compared(calls, wanted, values, choices)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the table
            if not any(isinstance(cause, OF_DYNAMO) for cause in _causes(error)):
                return Verdict(kind="refused", words=_words(error))
        else:
            return found
        try:
            with torch._dynamo.config.patch(DATA_DEPENDENT):
                return _compared(calls, wanted, values, choices)
        except Exception as error:  # noqa: BLE001 - see above
            return Verdict(kind="refused", words=_words(error))


def _compared(calls: Sequence[Call], wanted: Sequence[list[Any]], values: bool, choices: Sequence[str]) -> Verdict:
    function = calls[0][1]
    torch._dynamo.reset()
    fast = npucompose.compile(function, *choices)
    got = [_called(fast, tensors, seed) for seed, (tensors, _) in enumerate(calls)]
    worst = Verdict(kind="native")
    for seed, ((tensors, _), mine, theirs) in enumerate(zip(calls, got, wanted, strict=True)):
        error, eager_error, why = _errors(function, tensors, seed, mine, theirs, values)
        if why:
            return _ours_or_inductors(function, calls, got, why, error, eager_error)
        if error >= worst.error:
            worst = Verdict(kind="native", error=error, eager_error=eager_error)
    kind, words = _who_calls(fast, len(calls))
    if kind == "native" and values and (why := _unlike_the_wrapper(fast, function, calls[-1][0])):
        kind, words = "wrong", why
    return Verdict(kind=kind, words=words, error=worst.error, eager_error=worst.eager_error)


def _called(function: Callable[..., Any], tensors: Sequence[torch.Tensor], seed: int) -> list[Any]:
    """Its results, and its arguments, which it may have written to."""
    given = copy.deepcopy(list(tensors))  # with their strides, and views of one memory as such
    torch.default_generator.manual_seed(seed)
    return [*tree_flatten(function(*given))[0], *given]


def _errors(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    seed: int,
    mine: Sequence[Any],
    theirs: Sequence[Any],
    values: bool,
) -> tuple[float, float, str]:
    """(our error, eager's, what is wrong with our results or '')."""
    if why := _other_forms(mine, theirs):
        return math.inf, 0.0, why
    if not values or equal(mine, theirs):
        return 0.0, 0.0, ""
    apart, tolerance = distance(mine, theirs), max(map(_tolerance, theirs), default=0.0)
    wide = _in_double(function, tensors, seed, theirs)
    if wide is None:
        return apart, 0.0, "" if apart <= tolerance else f"differs from eager by {apart:.3g}"
    error, eager_error = distance(mine, wide), distance(theirs, wide)
    allowed = max(tolerance, ROUNDING * eager_error) if math.isfinite(eager_error) else 0.0
    if apart <= tolerance or error <= allowed:
        return min(error, apart) if math.isinf(error) else error, eager_error, ""
    return (
        error,
        eager_error,
        f"differs from eager by {apart:.3g}, from float64 by {error:.3g}, eager {eager_error:.3g}",
    )


def _other_forms(mine: Sequence[Any], theirs: Sequence[Any]) -> str:
    forms = [[_form(value) for value in values] for values in (mine, theirs)]
    return "" if forms[0] == forms[1] else f"results are {forms[0]} where eager has {forms[1]}"


def _form(value: Any) -> Any:
    return (value.dtype, tuple(value.shape), value.layout) if isinstance(value, torch.Tensor) else type(value).__name__


def _tolerance(value: Any) -> float:
    return TOLERANCE.get(value.dtype, 0.0) if isinstance(value, torch.Tensor) else 1e-5


def _in_double(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], seed: int, theirs: Sequence[Any]
) -> list[Any] | None:
    """The results in double precision; None where the operator does not have them, or draws other random numbers."""
    try:
        wide = _called(function, [tensor.to(WIDE.get(tensor.dtype, tensor.dtype)) for tensor in tensors], seed)
    except Exception:  # noqa: BLE001 - not every operator takes every dtype
        return None
    sizes = [[getattr(value, "shape", None) for value in values] for values in (wide, theirs)]
    return wide if sizes[0] == sizes[1] else None


def distance(values: Sequence[Any], references: Sequence[Any]) -> float:
    """The largest difference of two rows of results, as a share of the largest number of its tensor and at least 1;
    infinite where whole numbers or what is not finite differ."""
    return max((_apart(a, b) for a, b in zip(values, references, strict=True)), default=0.0)


def _apart(a: Any, b: Any) -> float:
    if not isinstance(a, torch.Tensor):
        both = isinstance(a, float) and isinstance(b, float)
        return 0.0 if a == b or (a != a and b != b) else abs(a - b) / max(1.0, abs(b)) if both else math.inf
    a, b = (value.to_dense() if value.layout != torch.strided else value for value in (a, b))
    if not a.numel():
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if torch.equal(a, b.to(a.dtype)) else math.inf
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    special = ~(torch.isfinite(x) & torch.isfinite(y))
    if bool((special & ~((x == y) | (torch.isnan(x) & torch.isnan(y)))).any()):
        return math.inf
    largest = y.abs().masked_fill(special, 0).max().item()
    return (x - y).abs().masked_fill(special, 0).max().item() / max(1.0, largest)


def _who_calls(fast: Any, calls: int) -> tuple[Kind, str]:
    made = fast.materialised.backend.compilations
    if not made:
        return "no graph", "Dynamo computes it while it traces"
    outside = [one for compilation in made if compilation.partition for one in compilation.partition.outside]
    if outside:
        return "wrapper", "; ".join(dict.fromkeys(f"{one.operator}: {one.reason}" for one in outside))
    counted = fast.statistics
    if (counted.captures, counted.hits, counted.eager) != (len(made), (calls - 1) * len(made), 0):
        return "wrong", f"{calls} calls of {len(made)} graphs were {counted}"
    return "native", ""


def _unlike_the_wrapper(fast: Any, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> str:
    """How a replay differs from what Inductor's wrapper makes of the same inputs, where it differs from eager too: what
    has eager's bits is right, however the wrapper's memory lies."""
    with watching() as seen:
        replayed = _called(fast, tensors, 0)
    if equal(replayed, _called(function, tensors, 0)):
        return ""
    for call, made in zip(seen, fast.materialised.backend.compilations, strict=True):
        runs = (made.lowered, made.lowered.compiled, made.lowered.compiled)
        replayed, wrapped, again = (_results(run, call.inputs) for run in runs)
        if not equal(replayed, wrapped) and equal(wrapped, again):
            return f"replay differs from the wrapper by {distance(replayed, wrapped):.3g}"
    return ""


def _results(run: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]) -> list[Any]:
    given = copy.deepcopy(inputs)
    torch.default_generator.manual_seed(0)
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in run(given)]


def _ours_or_inductors(
    function: Callable[..., Any],
    calls: Sequence[Call],
    got: Sequence[list[Any]],
    why: str,
    error: float,
    eager_error: float,
) -> Verdict:
    """Whether torch's own compiler gives the same results."""
    torch._dynamo.reset()
    inductor = torch.compile(function, backend="inductor", dynamic=False, options={"fallback_random": True})
    try:
        theirs = [_called(inductor, tensors, seed) for seed, (tensors, _) in enumerate(calls)]
    except Exception as failed:  # noqa: BLE001 - see above
        return Verdict(kind="wrong", words=f"{why}; Inductor fails: {line_of(failed)}", error=error)
    alike = all(
        not _other_forms(a, b) and distance(a, b) <= max(map(_tolerance, b), default=0.0)
        for a, b in zip(got, theirs, strict=True)
    )
    return Verdict(kind="as inductor" if alike else "wrong", words=why, error=error, eager_error=eager_error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised for, down to the first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "inner_exception", None) or cause.__cause__


def _words(error: BaseException) -> str:
    """Dynamo's reason, or else ours, or else the error's own."""
    causes = list(_causes(error))
    of_dynamo = [cause for cause in causes if isinstance(cause, OF_DYNAMO)]
    ours = [cause for cause in causes if isinstance(cause, NpuComposeError)]
    said = (*of_dynamo, *ours, causes[-1])[0]
    explained = EXPLAINED.search(str(said))
    return line_of(said) if explained is None else explained.group(1)
