"""Does a pass keep what it promises: the graph before and after it, run on the same inputs.

Inputs are made from the fake values of the graph: random ones, edge values (infinities, NaN, both zeros, values beyond
float32 where the dtype has them), other strides, and other sizes where sizes are symbols, an empty one among them.
Inputs that the graph itself refuses, as it was before the pass, prove nothing and are left out. Where a range check is
part of the promise (`range_check: true` of an adaptation rule), edge values may end the run with its words; then the
edge values that fit float32 are what is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.errors import PassError
from npucompose.graphs import fingerprint
from npucompose.graphs.effects import leaves_in
from npucompose.passes.base import Promise
from npucompose.results.measured import EXACT, NumericTolerance, tolerance_of

EDGES = (float("inf"), float("-inf"), float("nan"), -0.0, 0.0, 3e38, 1e300, 1e-40)
NARROW_EDGES = tuple(edge for edge in EDGES if not 3.5e38 < abs(edge) < float("inf"))
"""Those that float32 holds."""
EDGE, NARROW_EDGE, STRIDES = "edge values", "edge values that fit float32", "inputs with other strides"
DOES_NOT_FIT = "a value does not fit"
"""What a range check says when it ends a run."""
OTHER_SIZES = 3
"""What a symbol's hint is raised by, where the graph takes other sizes."""


@frozen(kw_only=True)
class Proof:
    """What the comparison found; `broken` is a sentence where the promise was not kept."""

    inputs: int
    """Kinds of inputs that the graph took."""
    max_abs_err: float
    """The largest difference, edge values apart."""
    broken: str | None = None


def copied(graph: fx.Graph) -> fx.GraphModule:
    """The graph as it is now, with the module that holds its constants."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    owner = graph.owning_module if graph.owning_module is not None else torch.nn.Module()
    return fx.GraphModule(owner, copy)


def prove(
    before: fx.GraphModule, after: fx.GraphModule, promise: Promise, given: Mapping[str, torch.Tensor] | None = None
) -> Proof:
    """Compare on every kind of inputs; the first difference that the promise does not allow ends it.

    `given` are inputs whose values are settled, by placeholder.

    Passes run while torch traces, where every new tensor would be a fake one: that is put away meanwhile.
    """
    worst, taken = 0.0, 0
    settled = [(given or {}).get(str(node.target)) for node in before.graph.nodes if node.op == "placeholder"]
    with _disable_current_modes():
        for kind, made in _kinds(before):
            inputs = [value if known is None else known for value, known in zip(made, settled, strict=True)]
            old = _run(before, inputs)
            if isinstance(old, Exception):
                continue
            taken += 1
            new = _run(after, inputs)
            if isinstance(new, Exception):
                if promise.checks_ranges and kind == EDGE and DOES_NOT_FIT in str(new):
                    continue
                raised = f"the graph raises, which it did not before: {type(new).__name__}: {new}"
                error, broken = 0.0, raised.partition("\n")[0]
            else:
                # Compiled code is guarded on its inputs' strides: what comes out for others is asked for its values.
                error, broken = _differences(old, new, promise, strides=kind != STRIDES)
            if kind not in (EDGE, NARROW_EDGE):  # a last bit of 3e38 says nothing
                worst = max(worst, error)
            if broken is not None:
                return Proof(inputs=taken, max_abs_err=worst, broken=f"on {kind} {broken}")
    return Proof(inputs=taken, max_abs_err=worst)


Ran = tuple[list[Any], list[Any]]
"""The outputs of a run, and its inputs as it left them."""


def _run(module: fx.GraphModule, inputs: Sequence[Any]) -> Ran | Exception:
    """The exception where the graph does not take these inputs."""
    given = [_fresh(value) for value in inputs]
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(0)
        with torch.no_grad():
            return list(leaves_in(fx.Interpreter(module).run(*given))), given
    except Exception as error:  # noqa: BLE001  an operator may refuse an input with any exception
        return error
    finally:
        torch.set_rng_state(state)


def _fresh(value: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _kinds(module: fx.GraphModule) -> Iterator[tuple[str, list[Any]]]:
    fakes = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    if any(fake is None for fake in fakes):
        return
    symbols = _symbols(fakes)
    yield "random inputs", _made(fakes, symbols, _random(0))
    yield "other random inputs", _made(fakes, symbols, _random(1))
    yield EDGE, _made(fakes, symbols, _edged(EDGES))
    if any(isinstance(fake, torch.Tensor) and fake.dtype == torch.float64 for fake in fakes):
        yield NARROW_EDGE, _made(fakes, symbols, _edged(NARROW_EDGES))
    yield STRIDES, [_turned(value) for value in _made(fakes, symbols, _random(2))]
    if symbols:
        larger = {symbol: size + OTHER_SIZES for symbol, size in symbols.items()}
        yield "other sizes", _made(fakes, larger, _random(3))
        yield "empty inputs", _made(fakes, dict.fromkeys(symbols, 0), _random(4))


def _symbols(fakes: Sequence[Any]) -> dict[Any, int]:
    """{symbol: its hint} of all sizes and numbers that come in."""
    found: dict[Any, int] = {}
    for fake in fakes:
        sizes = (*fake.shape, *fake.stride()) if isinstance(fake, torch.Tensor) else (fake,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                env: Any = size.node.shape_env
                known = getattr(env, "backed_var_to_val", None) or env.var_to_val  # the older name
                found.update({symbol: int(known.get(symbol, 2)) for symbol in size.node.expr.free_symbols})
    return found


def _made(fakes: Sequence[Any], symbols: Mapping[Any, int], fill: Callable[[Any], Any]) -> list[Any]:
    def number(size: Any) -> Any:
        return int(size.node.expr.subs(symbols)) if isinstance(size, torch.SymInt) else size

    made: list[Any] = []
    for fake in fakes:
        if not isinstance(fake, torch.Tensor):
            made.append(number(fake))
            continue
        shape, strides = [number(size) for size in fake.shape], [number(size) for size in fake.stride()]
        empty = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
        made.append(empty.copy_(fill(empty)))
    return made


def _random(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Normal floats; integers 0 and 1, which are places of anything that is indexed."""
    generator = torch.Generator().manual_seed(seed)

    def fill(like: torch.Tensor) -> torch.Tensor:
        if like.dtype.is_floating_point or like.dtype.is_complex:
            return torch.randn(like.shape, generator=generator)
        return torch.randint(0, 2, like.shape, generator=generator)

    return fill


def _edged(edges: Sequence[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    def fill(like: torch.Tensor) -> torch.Tensor:
        filled = _random(5)(like)
        if like.dtype.is_floating_point:
            filled = filled.double()
            count = min(len(edges), filled.numel())
            filled.view(-1)[:count] = torch.tensor(edges[:count], dtype=torch.float64)
        return filled

    return fill


def _turned(value: Any) -> Any:
    """The same values in the opposite order of dimensions in memory."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return value
    order = list(reversed(range(value.dim())))
    return value.permute(order).contiguous().permute(order)


def _differences(old: Ran, new: Ran, promise: Promise, *, strides: bool) -> tuple[float, str | None]:
    """(largest absolute difference, what is not allowed about it)."""
    if len(old[0]) != len(new[0]):
        return 0.0, f"{len(new[0])} outputs instead of {len(old[0])}"
    pairs = [(f"output {n}", a, b) for n, (a, b) in enumerate(zip(old[0], new[0], strict=True))]
    pairs += [(f"input {n} afterwards", a, b) for n, (a, b) in enumerate(zip(old[1], new[1], strict=True))]
    worst = 0.0
    for where, a, b in pairs:
        error, broken = _difference(a, b, promise, strides)
        worst = max(worst, error)
        if broken is not None:
            return worst, f"{where} {broken}"
    shared = sorted(_shared(new) - _shared(old))
    return worst, f"{' and '.join(shared[0])} share memory, which they did not" if shared else None


def _difference(a: Any, b: Any, promise: Promise, strides: bool) -> tuple[float, str | None]:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0, None if type(a) is type(b) and a == b else f"is {b!r} instead of {a!r}"
    for what, mine, other in (
        ("dtype", a.dtype, b.dtype),
        ("shape", tuple(a.shape), tuple(b.shape)),
        ("strides", *((_strides(a), _strides(b)) if strides else ((), ()))),
    ):
        if mine != other:
            return 0.0, f"has {what} {other} instead of {mine}"
    same = (a == b) | ((a != a) & (b != b))
    if a.is_floating_point():
        same &= (torch.signbit(a) == torch.signbit(b)) | (a != a)
    if bool(same.all()):
        return 0.0, None
    x, y = a.double() if not a.is_complex() else a, b.double() if not b.is_complex() else b
    error = float(torch.where(same, 0.0, (x - y).abs()).max())
    declared = NumericTolerance(promise.rtol, promise.atol)
    allowed = EXACT if promise.exact else tolerance_of(str(a.dtype)).widened(declared)
    within = ((x - y).abs() <= allowed.atol + allowed.rtol * x.abs()) & torch.isfinite(y.abs())
    if not promise.exact and bool((within | same).all()):
        return error, None
    words = "every bit is promised" if promise.exact else f"allowed is {allowed.atol:g} + {allowed.rtol:g} * |value|"
    by = "in the sign of a zero" if error == 0.0 else f"by up to {error:.3g}"
    return error, f"differs {by}; {words}"


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides that mean something: a dimension of one element has none."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def _shared(ran: Ran) -> set[tuple[str, str]]:
    """Pairs of inputs and outputs that are one memory."""
    outputs, inputs = ran
    named = [(f"input {n}", value) for n, value in enumerate(inputs)]
    named += [(f"output {n}", value) for n, value in enumerate(outputs)]
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.numel()]
    places = [(name, value.untyped_storage().data_ptr()) for name, value in tensors]
    return {(a, b) for n, (a, at) in enumerate(places) for b, other in places[n + 1 :] if at == other}


def part(inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.GraphModule:
    """Some nodes of a graph as a module of their own: `inputs` come in, `results` come out."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        known[node] = graph.placeholder(node.name)
        known[node].meta["val"] = node.meta.get("val")
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[result] for result in results))
    return fx.GraphModule(torch.nn.Module(), graph)


@define
class PartProofs:
    """`hold` for every rewritten place of a pass; equal places are compared once."""

    errors: dict[str, float] = field(factory=dict)
    """{rule or pattern: its largest difference on random inputs}."""
    _known: set[tuple[str, str]] = field(factory=set)

    def hold(self, name: str, where: str, before: fx.GraphModule, after: fx.GraphModule, promise: Promise) -> None:
        """PassError with `where` in it where `after` is further from `before` than the promise allows."""
        form = (name, fingerprint(before.graph))
        if form in self._known:
            return
        self._known.add(form)
        proof = prove(before, after, promise)
        if proof.broken is not None:
            raise PassError(f"{where}: {proof.broken}")
        self.errors[name] = max(self.errors.get(name, 0.0), proof.max_abs_err)
