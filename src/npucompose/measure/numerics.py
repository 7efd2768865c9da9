"""Does a result equal the reference, and if not bit for bit, by how much. Knows no target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from npucompose.models.inputs import opened
from npucompose.results.measured import EXACT, Cause, Numerics, NumericTolerance, Share, tolerance_of

if TYPE_CHECKING:
    import torch

PROBLEMS_KEPT = 10
CAUSES: tuple[Cause, ...] = ("model", "replay", "passes", "tracing")
"""The first of them is what a failure of several calls is put down to."""


@frozen(kw_only=True)
class _Leaf:
    """What was found at one place of the two trees."""

    bitwise: bool
    passed: bool
    error: float | None
    """None where there is no finite difference."""
    dtype: str | None = None
    tolerance: NumericTolerance = EXACT
    strides_differ: bool = False
    problem: str | None = None


def compare(
    reference: Any, got: Any, *, name: str = "eager", exact: bool = False, declared: NumericTolerance = EXACT
) -> Numerics:
    """Compare two trees (tuples, lists, dicts, registered classes, objects) of tensors, numbers, text and None.

    Bit for bit means the same dtype, shape and bits: NaN equals the same NaN, 0.0 is not -0.0. Strides are listed
    apart and fail nothing. With `exact`, nothing but the same bits passes; `declared` is what a rewrite says it may be
    off by, where that is more than the table says.

        compare(torch.tensor([1.0]), torch.tensor([1.0 + 1e-7])): max_abs_err 1.19e-07, bitwise False, passed True
    """
    import torch.utils._pytree as pytree

    wanted, spec = pytree.tree_flatten_with_path(opened(reference))
    found, found_spec = pytree.tree_flatten_with_path(opened(got))
    if spec != found_spec:
        words = f"another structure: {name} gave {_shown(spec)}, the other gave {_shown(found_spec)}"
        return Numerics(reference=name, max_abs_err=None, bitwise=False, passed=False, problems=(words,))
    leaves = {
        pytree.keystr(path) or "result": _compare_leaf(a, b, exact, declared)
        for (path, a), (_, b) in zip(wanted, found, strict=True)
    }
    problems = [
        f"result{where.removeprefix('result')}: {leaf.problem}" for where, leaf in leaves.items() if leaf.problem
    ]
    return Numerics(
        reference=name,
        max_abs_err=_largest(leaf.error for leaf in leaves.values()),
        bitwise=all(leaf.bitwise for leaf in leaves.values()),
        tolerance={leaf.dtype: asdict(leaf.tolerance) for leaf in leaves.values() if leaf.dtype is not None},
        passed=all(leaf.passed for leaf in leaves.values()),
        compared=len(leaves),
        stride_mismatches=tuple(where for where, leaf in leaves.items() if leaf.strides_differ),
        problems=_shortened(problems),
    )


def combined(results: Mapping[str, Numerics]) -> Numerics:
    """One verdict of several comparisons with the same reference: {"step 0": …, "step 1": …}."""
    if not results:
        raise ValueError("nothing was compared")
    all_of = list(results.values())
    cause: Cause | None = next((cause for cause in CAUSES if any(one.cause == cause for one in all_of)), None)
    problems = [f"{label}, {words}" for label, one in results.items() for words in one.problems]
    return Numerics(
        reference=all_of[0].reference,
        max_abs_err=_largest(one.max_abs_err for one in all_of),
        bitwise=all(one.bitwise for one in all_of),
        tolerance={dtype: allowed for one in all_of for dtype, allowed in one.tolerance.items()},
        passed=all(one.passed for one in all_of),
        compared=sum(one.compared for one in all_of),
        stride_mismatches=tuple(dict.fromkeys(where for one in all_of for where in one.stride_mismatches)),
        problems=all_of[0].problems if cause == "model" else _shortened(problems),
        tracing=_combined_share([one.tracing for one in all_of]),
        passes=_combined_share([one.passes for one in all_of]),
        replay=_combined_share([one.replay for one in all_of]),
        cause=cause,
        model=next((one.model for one in all_of if one.model), None),
    )


def _combined_share(shares: Iterable[Share | None]) -> Share | None:
    """Of the calls that were looked at so closely."""
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return Share(
        max_abs_err=_largest(one.max_abs_err for one in known),
        bitwise=all(one.bitwise for one in known),
        passed=all(one.passed for one in known),
    )


def _largest(errors: Iterable[float | None]) -> float | None:
    known = list(errors)
    finite = [error for error in known if error is not None]
    return max(finite, default=0.0) if len(finite) == len(known) else None


def _shortened(problems: list[str]) -> tuple[str, ...]:
    more = len(problems) - PROBLEMS_KEPT
    return tuple(problems[:PROBLEMS_KEPT]) + ((f"and {more} more",) if more > 0 else ())


def _shown(spec: Any) -> str:
    text = " ".join(str(spec).split())
    return text if len(text) <= 200 else f"{text[:200]}… ({spec.num_leaves} leaves)"


def _failed(problem: str) -> _Leaf:
    return _Leaf(bitwise=False, passed=False, error=None, problem=problem)


def _compare_leaf(a: Any, b: Any, exact: bool, declared: NumericTolerance) -> _Leaf:
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _compare_tensors(a, b, exact, declared)
    if type(a) is not type(b):
        return _failed(f"a {_kind(a)} against a {_kind(b)}")
    if isinstance(a, float | complex):
        number = torch.complex128 if isinstance(a, complex) else torch.float64
        return _compare_tensors(torch.tensor(a, dtype=number), torch.tensor(b, dtype=number), exact, declared)
    same = bool(a == b)
    if same:
        return _Leaf(bitwise=True, passed=True, error=0.0)
    error = float(abs(a - b)) if isinstance(a, int) else None
    return _Leaf(bitwise=False, passed=False, error=error, problem=f"{a!r} against {b!r}")


def _kind(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype}{list(value.shape)}".replace("torch.", "")
    return type(value).__name__


def _compare_tensors(a: torch.Tensor, b: torch.Tensor, exact: bool, declared: NumericTolerance) -> _Leaf:
    from npucompose.bits import same_bytes

    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return _failed(f"a {_kind(a)} against a {_kind(b)}" + (", another layout" if a.layout != b.layout else ""))
    if a.is_quantized or str(a.layout) != "torch.strided":
        return _failed(f"a {_kind(a)} of layout {a.layout} cannot be compared; return a dense tensor")
    strides_differ = _strides(a) != _strides(b)
    a, b = (tensor.detach().cpu().resolve_conj().resolve_neg() for tensor in (a, b))
    dtype = str(a.dtype).removeprefix("torch.")
    allowed = EXACT if exact else tolerance_of(str(a.dtype)).widened(declared)
    if same_bytes(a, b):
        return _Leaf(
            bitwise=True, passed=True, error=0.0, dtype=dtype, tolerance=allowed, strides_differ=strides_differ
        )
    error, within = _difference(a, b, allowed)
    passed = within and allowed != EXACT
    if passed:
        problem = None
    elif error is None:
        problem = f"{_kind(a)} is NaN or infinite where the other is not"
    elif within:
        problem = f"{_kind(a)} has equal values with other bits (the sign of zero or a NaN's payload)"
    else:
        problem = f"{_kind(a)} differs by up to {error:.3g}, tolerance {_tolerance_words(allowed)}"
    return _Leaf(
        bitwise=False,
        passed=passed,
        error=error,
        dtype=dtype,
        tolerance=allowed,
        strides_differ=strides_differ,
        problem=problem,
    )


def _tolerance_words(tolerance: NumericTolerance) -> str:
    return "0" if tolerance == EXACT else f"{tolerance.atol:g} + {tolerance.rtol:g} * |reference|"


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides that mean something: a dimension of one element has none."""
    if tensor.numel() == 0:
        return ()
    return tuple(tensor.stride(at) for at, size in enumerate(tensor.shape) if size > 1)


def _difference(a: torch.Tensor, b: torch.Tensor, allowed: NumericTolerance) -> tuple[float | None, bool]:
    """(the largest absolute difference, or None when there is no finite one; whether all is within `allowed`).

    Equal infinities and NaN against NaN differ by nothing.
    """
    import torch

    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = (a == b) | (torch.isnan(x) & torch.isnan(y))
    distance = torch.where(same, 0.0, (x - y).abs())
    error = float(distance.max())
    if not math.isfinite(error):
        return None, False
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        # float64 cannot tell 2**60 from 2**60 + 1
        return max(error, 1.0), False
    bound = allowed.atol + allowed.rtol * torch.where(torch.isfinite(x), x.abs(), 0.0)
    return error, bool((distance <= bound).all())
