"""Puts a pattern's replacement in the place of what was found; the built-in patterns: root-mean-square norms with and
without the sum before them, SwiGLU, rotary embedding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from attrs import define
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs import Aliases
from npucompose.graphs.effects import written_by
from npucompose.graphs.matching import Occurrence, Subgraph
from npucompose.passes.base import Outcome, Pattern, Promise
from npucompose.passes.metadata import fake_like, fake_mode_of, fake_result, inherited, same_form
from npucompose.passes.proof import PartProofs, part
from npucompose.results.graphs import RuleFacts


def replace_all(graph: fx.Graph, patterns: Sequence[Pattern], *, check: bool = False) -> Outcome:
    """Every place of every pattern, the first pattern that fits a place winning; one entry of facts for each.

    With `check` each place is held to its pattern's tolerance by itself (PassError names the pattern).
    """
    proofs = PartProofs() if check else None
    whole = _OrderedGraph.from_graph(graph)
    counts = {pattern.name: _replaced(whole, pattern, proofs) for pattern in patterns}
    return facts_of(counts, patterns, errors=proofs.errors if proofs is not None else {})


def facts_of(
    counts: Mapping[str, int], patterns: Sequence[Pattern], *, errors: Mapping[str, float] | None = None, way: str = ""
) -> Outcome:
    """What so many places of each pattern make of a graph; `errors` of those whose places were compared."""
    facts = [
        RuleFacts(
            rule=pattern.name,
            kind="replace",
            op=pattern.name,
            matches=counts[pattern.name],
            rtol=pattern.rtol,
            atol=pattern.atol,
            max_abs_err=(errors or {}).get(pattern.name),
            way=way,
        )
        for pattern in patterns
        if counts.get(pattern.name)
    ]
    return Outcome.from_rules(facts, exact=not facts)


@define(eq=False)
class _OrderedGraph:
    """The graph, read once for all places: a walk over it for each of them would make the cost grow with its square."""

    graph: fx.Graph
    order: dict[fx.Node, float]
    """Places in the list; what is put in stands between those that were there."""
    written: frozenset[fx.Node]
    """Nodes that name memory which somebody writes."""

    @classmethod
    def from_graph(cls, graph: fx.Graph) -> _OrderedGraph:
        order = {node: float(at) for at, node in enumerate(graph.nodes)}
        if not any(written_by(node) for node in graph.nodes):
            return cls(graph, order, frozenset())
        aliases = Aliases.from_graph(graph)
        return cls(graph, order, frozenset(n for n in order if not aliases.is_quiet(n)))

    def put_in(self, nodes: Sequence[fx.Node], before: fx.Node) -> None:
        """`nodes` were put in front of `before`, one behind the other."""
        high = self.order[before]
        low = self.order.get(nodes[0].prev, high - 1) if nodes else high
        for at, node in enumerate(nodes):
            self.order[node] = low + (high - low) * (at + 1) / (len(nodes) + 1)


def _replaced(whole: _OrderedGraph, pattern: Pattern, proofs: PartProofs | None) -> int:
    """How many places of one pattern were replaced."""
    count = 0
    for search in searches(type(pattern)):
        anchors = [node for node in whole.graph.nodes if node.target == search.anchor.target]
        for anchor in anchors:
            found = None if anchor._erased else search.at(anchor)
            if (
                found is not None
                and _fits(pattern, search, found)
                and _rewritten(whole, pattern, search, found, proofs)
            ):
                count += 1
    return count


@functools.cache
def searches(pattern: type[Pattern]) -> tuple[Subgraph, ...]:
    """Every way in which a pattern may be written, traced once in a process."""
    made = pattern()
    return tuple(_search(made, find, dtype) for find, dtype in made.finds())


def _search(pattern: Pattern, find: Callable[..., Any], dtype: torch.dtype) -> Subgraph:
    inputs = [tensor.to("meta", dtype) for tensor in pattern.inputs()]
    return Subgraph.from_graph(traced(lambda *given: find(*given, *pattern.scalars.values()), inputs), pattern.scalars)


def traced(function: Callable[..., Any], inputs: Sequence[Any], mode: Literal["real", "fake"] = "real") -> fx.Graph:
    """The graph of `function`; passes run while torch traces itself, and that is put away meanwhile.

    In mode "real" torch notes each value without its storage offset.
    """
    with _disable_current_modes(), torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*inputs).graph


def _fits(pattern: Pattern, search: Subgraph, found: Occurrence) -> bool:
    values: list[Any] = [found.nodes[tensor].meta.get("val") for tensor in search.tensors]
    return all(isinstance(value, torch.Tensor) for value in values) and pattern.fits(values, found.numbers)


def _rewritten(
    whole: _OrderedGraph, pattern: Pattern, search: Subgraph, found: Occurrence, proofs: PartProofs | None
) -> bool:
    """The new calls stand where the first result stood, so that everybody who reads one comes after them."""
    graph, order = whole.graph, whole.order
    outputs = [found.nodes[output] for output in search.outputs]
    tensors = [found.nodes[tensor] for tensor in search.tensors]
    first = min(outputs, key=order.__getitem__)
    if any(order[tensor] >= order[first] for tensor in tensors):
        return False
    if not whole.written.isdisjoint(found.nodes.values()):
        return False  # somebody writes memory that the pattern reads or makes: its place in the order counts
    new_nodes, made = _traced(graph, first, pattern, tensors, found)
    forms = zip(made, outputs, strict=True)
    if not all(same_form(new.meta["val"], old.meta["val"]) for new, old in forms):
        for node in reversed(new_nodes):
            graph.erase_node(node)
        return False
    whole.put_in(new_nodes, first)
    old_nodes = sorted(set(found.nodes.values()) - set(tensors), key=order.__getitem__)
    if proofs is not None:
        name, promise = pattern.name, Promise(exact=False, rtol=pattern.rtol, atol=pattern.atol)
        where = f"pattern '{name}' (node {outputs[0].name})"
        proofs.hold(name, where, part(tensors, old_nodes, outputs), part(tensors, new_nodes, made), promise)
    for new, old in zip(made, outputs, strict=True):
        old.replace_all_uses_with(new)
    for node in reversed(old_nodes):
        if not node.users:
            graph.erase_node(node)
    return True


def _traced(
    graph: fx.Graph, before: fx.Node, pattern: Pattern, tensors: Sequence[fx.Node], found: Occurrence
) -> tuple[list[fx.Node], list[fx.Node]]:
    """(the replacement's calls in front of `before`, those of them that are its results)."""
    numbers = tuple(found.numbers[name] for name in pattern.scalars)
    fakes = [tensor.meta["val"] for tensor in tensors]
    forms = tuple((tuple(f.shape), tuple(f.stride()), f.dtype) for f in fakes)
    static = all(isinstance(size, int) for shape, strides, _ in forms for size in (*shape, *strides))
    small = (
        _replacement(type(pattern), numbers, forms) if static else _traced_replacement(pattern, numbers, fakes, "real")
    )
    mode = fake_mode_of(before)
    known: dict[fx.Node, fx.Node] = dict(zip((n for n in small.nodes if n.op == "placeholder"), tensors, strict=True))
    new_nodes: list[fx.Node] = []
    results: Any = ()
    for node in small.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node.op == "call_function":
            with graph.inserting_before(before):
                new = graph.node_copy(node, known.__getitem__)
            new.meta = inherited(before)
            new.meta["val"] = (
                _like(node.meta["val"], fakes[0]) if static else fake_result(new.target, new.args, new.kwargs, mode)
            )
            known[node] = new
            new_nodes.append(new)
    given = results if isinstance(results, (list, tuple)) else (results,)
    return new_nodes, [known[result] for result in given]


def _traced_replacement(
    pattern: Pattern, numbers: Sequence[float], inputs: Sequence[Any], mode: Literal["real", "fake"]
) -> fx.Graph:
    return traced(lambda *given: pattern.replace(*given, *numbers), inputs, mode)


@functools.lru_cache(maxsize=256)
def _replacement(pattern: type[Pattern], numbers: tuple[float, ...], forms: tuple[Any, ...]) -> fx.Graph:
    """What a pattern becomes for tensors of those forms: the same for every layer of a model."""
    metas = [torch.empty_strided(shape, strides, dtype=dtype, device="meta") for shape, strides, dtype in forms]
    return _traced_replacement(pattern(), numbers, metas, "fake")


def _like(value: Any, model: Any) -> Any:
    """A fake value of the graph's own kind with the form of one that was traced apart."""
    if isinstance(value, (list, tuple)):
        return type(value)(_like(item, model) for item in value)
    return fake_like(model, value.shape, value.dtype, strides=value.stride(), offset=value.storage_offset())


# The built-in patterns.

EPSILON = 1.234567e-6
HALF_TYPES = (torch.float16, torch.bfloat16)
HALF = 613
"""Stands for any half of a last dimension."""


def _plain(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def _in_float(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """As transformers writes it for half types: the norm in float32, the product with the weight in x's dtype."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * normed.to(x.dtype)


class RmsNormPattern(Pattern):
    name: ClassVar[str] = "rms_norm"
    scalars: ClassVar[Mapping[str, float]] = {"epsilon": EPSILON}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_plain, torch.float32), *((_in_float, dtype) for dtype in HALF_TYPES)]

    def replace(self, *arguments: Any) -> Any:
        x, weight, epsilon = arguments
        return torch.ops.npu.npu_rms_norm(x, weight, epsilon)[0]

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, weight = values
        return weight.dim() == 1 and x.dim() > 1 and x.dtype == weight.dtype and x.shape[-1] == weight.shape[0]


class AddRmsNormPattern(Pattern):
    """The sum is a result too: the next residual reads it."""

    name: ClassVar[str] = "add_rms_norm"
    scalars: ClassVar[Mapping[str, float]] = {"epsilon": EPSILON}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_added(find), dtype) for find, dtype in RmsNormPattern().finds()]

    def replace(self, *arguments: Any) -> Any:
        x, y, weight, epsilon = arguments
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, y, weight, epsilon)
        return normed, total

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, y, weight = values
        return x.shape == y.shape and x.dtype == y.dtype and RmsNormPattern().fits((x, weight), numbers)


def _added(norm: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def find(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, epsilon: float) -> Any:
        total = x + y
        return norm(total, weight, epsilon), total

    return find


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


class SwiGluPattern(Pattern):
    """The fused operator takes both halves in one tensor, so they are put side by side first."""

    name: ClassVar[str] = "swiglu"

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(2, 3, 8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_gated, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        gate, up = arguments
        return torch.ops.npu.npu_swiglu(torch.cat([gate, up], -1), -1)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        gate, up = values
        return gate.shape == up.shape and gate.dtype == up.dtype and gate.dim() > 1


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, half: int) -> torch.Tensor:
    """transformers' rotate_half."""
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class RotaryMulPattern(Pattern):
    """Over [batch, heads, tokens, size] or with heads and tokens swapped; cos and sin broadcast over two of them."""

    name: ClassVar[str] = "rotary_mul"
    scalars: ClassVar[Mapping[str, float]] = {"half": HALF}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.empty(2, 3, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_rotated, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        x, cos, sin, _ = arguments
        return torch.ops.npu.npu_rotary_mul(x, cos, sin)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, cos, sin = values
        same = x.dim() == cos.dim() == sin.dim() == 4 and x.dtype == cos.dtype == sin.dtype
        sizes = x.shape[-1] == cos.shape[-1] == sin.shape[-1] == 2 * numbers["half"]
        return bool(same and sizes and cos.shape == sin.shape)
