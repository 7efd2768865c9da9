"""A program run in one way, and the differences between two runs: results, inputs, state, printed text, random numbers.

Of six calls the results of some are held until the last one is over, those of the others are dropped at once: both what
is held and what is free again must be right.
"""

from __future__ import annotations

import contextlib
import gc
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from attrs import define, field, frozen

from npucompose.errors import NpuComposeError
from replay_tests.semantics.parts import Tensor, snapshot, without_strides
from replay_tests.semantics.rows import Row
from replay_tests.semantics.ways import Way, as_traced, by_inductor, eagerly

CALLS = 6
HELD = (1, 2, 4)
"""Calls whose results are looked at once more when all calls are over."""
KEPT = "['operators']['kept']"
"""What operators of programs keep of their operands, in the names of leaves."""
TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
"""Relative to the largest number of a tensor, and absolute, where bits may differ."""


@define
class Run:
    """What a program did: one mapping of leaves for each call, and one for what was held to the end."""

    calls: list[dict[str, Any]] = field(factory=list)
    held: dict[str, Any] = field(factory=dict)
    refusal: BaseException | None = None
    """What the compiler raised; the run ends there."""


@frozen
class Verdict:
    """`as traced`: not what eager does, but bit for bit what torch's tracing alone makes of the program; `as inductor`:
    the same of torch's Inductor, within the tolerance."""

    kind: Literal["right", "as traced", "as inductor", "refused", "wrong"]
    words: str = ""


def run(row: Row, compiled: Callable[[Any], Any]) -> Run:
    """Build the program and call it; everything is seeded, so that two runs differ only in `compiled`."""
    done = Run()
    held: dict[int, Any] = {}
    with _settled(row.threads):
        torch.default_generator.manual_seed(0)
        made = row.make(compiled)
        call, state = made if isinstance(made, tuple) else (made, None)
        for k in range(CALLS):
            arguments = row.arguments(call, k)
            versions = _versions(arguments)
            torch.default_generator.manual_seed(k)
            printed = io.StringIO()
            result, raised = None, "nothing"
            try:
                with contextlib.redirect_stdout(printed):
                    result = call(*arguments)
            except Exception as error:  # noqa: BLE001 - a program may raise what it likes; that is compared too
                if _is_the_compilers(error):
                    done.refusal = error
                    return done
                raised = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            done.calls.append(
                {
                    "raised": raised,
                    "printed": printed.getvalue(),
                    "written": [a != b for a, b in zip(versions, _versions(arguments), strict=True)],
                    **snapshot({"result": result, "input": arguments, "state": state}),
                    "random state": int(torch.get_rng_state().long().sum()),
                }
            )
            if k in HELD:
                held[k] = result, arguments
            del result, arguments
            gc.collect(0)
        done.held = snapshot(held)
    return done


def verdict(row: Row, way: Way) -> Verdict:
    """Right, refused with a sentence, or wrong, and where."""
    got = run(row, way(row))
    if got.refusal is not None:
        return Verdict("refused", refusal_of(got.refusal))
    expected = run(row, eagerly)
    found = differences(expected, got, exact=way.exact)
    if not found:
        return Verdict("right")
    # Tracing itself may change bits, strides or which outputs are views: the replay answers for the traced graph.
    traced = run(row, as_traced)
    close = not [d for d in differences(expected, got, exact=False) if d.of_value]
    if not differences(traced, got, exact=way.exact):
        return Verdict("right" if close else "as traced", _listed(found))
    if way.fuses and not differences(run(row, by_inductor), got, exact=False):
        return Verdict("as inductor", _listed(found))
    return Verdict("wrong", _listed(found))


def traced_alone(row: Row) -> Verdict:
    """What torch's tracing does with the program without us."""
    return alone(row, "aot_eager", of_value=True)


def alone(row: Row, backend: Literal["aot_eager", "inductor"], *, of_value: bool = False) -> Verdict:
    """What a backend of torch's does with the program without us; with `of_value` values alone are compared."""
    got = run(row, as_traced if backend == "aot_eager" else by_inductor)
    if got.refusal is not None:
        return Verdict("refused", refusal_of(got.refusal))
    found = [d for d in differences(run(row, eagerly), got, exact=False) if d.of_value or not of_value]
    return Verdict("wrong", _listed(found)) if found else Verdict("right")


def _listed(found: list[Difference]) -> str:
    return "; ".join(d.words for d in found[:4])


@frozen
class Difference:
    words: str
    of_value: bool = True
    """Not only of strides, flags or sharing."""


def differences(expected: Run, got: Run, *, exact: bool) -> list[Difference]:
    if expected.refusal is not None or got.refusal is not None:
        return [Difference("one of the two was refused")]
    found: list[Difference] = []
    for k, (a, b) in enumerate(zip(expected.calls, got.calls, strict=True)):
        found += _between(f"call {k}: ", a, b, exact)
    return found + list(_between("held to the end: call ", expected.held, got.held, exact))


def _between(where: str, expected: dict[str, Any], got: dict[str, Any], exact: bool) -> Iterator[Difference]:
    if expected.keys() != got.keys():
        yield Difference(f"{where}there is {sorted(set(got) ^ set(expected))} in one and not in the other")
        return
    for path, a in expected.items():
        yield from _of_leaf(f"{where}{path}", a, got[path], exact)


def _of_leaf(where: str, a: Any, b: Any, exact: bool) -> Iterator[Difference]:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        same = type(a) is type(b) and (a == b or a != a)
        if not same and not (not exact and isinstance(a, float) and abs(a - b) <= 1e-5 * (1 + abs(a))):
            yield Difference(f"{where}: {b!r} where eager has {a!r}")
        return
    if a.value.shape != b.value.shape or a.value.dtype != b.value.dtype:
        yield Difference(f"{where}: {b.form} where eager has {a.form}")
        return
    if (far := _far(a.value, b.value, exact)) is not None:
        yield Difference(f"{where}: differs by {far:.3g}")
    if not exact:
        a, b = without_strides(a), without_strides(b)
    if a.form != b.form:
        yield Difference(f"{where}: {b.form} where eager has {a.form}", of_value=False)
    # Which object a tensor is counts where a program can see it: an operator that keeps `x[:]` may be given `x` itself,
    # which lies in the same memory with the same layout.
    if (a.place, () if KEPT in where else a.same) != (b.place, () if KEPT in where else b.same):
        yield Difference(f"{where}: shares memory with {b.place} where eager has {a.place}", of_value=False)


def _far(a: torch.Tensor, b: torch.Tensor, exact: bool) -> float | None:
    """How far apart, or None where that is near enough; not a number where one of the two is none."""
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.numel() or (_same_bytes(a, b) if exact else torch.equal(a, b)):
        return None
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).sum())
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    special = ~(torch.isfinite(x) & torch.isfinite(y))
    alike = (x == y) | (torch.isnan(x) & torch.isnan(y))
    if bool((special & ~alike).any()):
        return float("nan")
    apart: float = (x - y).abs().masked_fill(special, 0).max().item()
    largest: float = x.abs().masked_fill(special, 0).max().item()
    allowed = 0.0 if exact else TOLERANCE.get(a.dtype, 0.0) * (1 + largest)
    return None if apart <= allowed and not exact else apart


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _is_the_compilers(error: BaseException) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException) or _ours(error) is not None


def _ours(error: BaseException | None) -> NpuComposeError | None:
    while error is not None:
        if isinstance(error, NpuComposeError):
            return error
        error = getattr(error, "inner_exception", None) or error.__cause__
    return None


def refusal_of(error: BaseException) -> str:
    """What a person reads; ours where there is something of ours."""
    found = _ours(error)
    if found is not None:
        return f"{type(found).__name__}: {found}"
    return f"{type(error).__name__}: {error}"


def _versions(arguments: tuple[Any, ...]) -> list[int]:
    return [x._version for x in arguments if isinstance(x, torch.Tensor) and not x.is_inference()]


@contextlib.contextmanager
def _settled(threads: int) -> Iterator[None]:
    """Every run begins with no compiled code, one thread, gradients on, and without warnings on the screen."""
    before, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._dynamo.reset()
        torch.set_num_threads(before)
        torch.set_default_dtype(dtype)
