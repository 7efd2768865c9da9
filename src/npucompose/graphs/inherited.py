"""What torch itself computes otherwise than eager (`inherited.yaml`), and the rows of it that a graph shows.

A pattern goes by operators, dtypes and shapes and yields the nodes to name. Those of `IN_DYNAMO` read the graph as the
model wrote it, which still has what AOTAutograd drops; all others the functional graph that a compiler is given. Values
are not known: a row whose error depends on them alone has no pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import fx

from npucompose.errors import traced_line
from npucompose.input_safety import load_yaml
from npucompose.table.options import option
from npucompose.table.structure import structure

FILE = Path(__file__).with_name("inherited.yaml")
aten = torch.ops.aten


@frozen(kw_only=True)
class InheritedError:
    """One row: `InheritedError(differs="…", traced=False, fused=True, issue=198094, pattern="swap")`."""

    differs: str
    traced: bool
    """Torch's tracing alone is wrong."""
    fused: bool
    """Inductor is wrong."""
    issue: int | None = None
    """Of PyTorch."""
    pattern: str | None = None

    def holds(self, *, fuses: bool) -> bool:
        """Whether it holds where Inductor makes the kernels, or where what was traced is replayed."""
        return self.fused if fuses else self.traced


@frozen(kw_only=True)
class InheritedErrors:
    """The table: `inherited_errors().rows["in_place.a_swap_in_place"].fused` is True."""

    version: int
    torch: str
    """The release with which each row was seen."""
    rows: Mapping[str, InheritedError] = option(factory=dict)


@cache
def inherited_errors() -> InheritedErrors:
    """The table of this version."""
    return structure(InheritedErrors, load_yaml(FILE), "graphs/inherited.yaml")


@frozen
class Inherited:
    """A row that a graph shows."""

    row: str
    line: str | None
    """`m.py:3 in forward: x.zero_()`; None where the node has no line of the model."""

    def words(self, graph: str, mode: str, *, fuses: bool) -> str:
        """`graph_0: torch itself computes this differently from eager in mode=…: …, …`, one sentence."""
        table = inherited_errors()
        error = table.rows[self.row]
        issue = f" (PyTorch's issue {error.issue})" if error.issue else ""
        maker = f"Inductor of torch {table.torch}" if fuses else f"the tracing of torch {table.torch}"
        right = not error.holds(fuses=not fuses)
        other = f"mode={'reduce-overhead' if fuses else 'max-autotune'} computes it as eager does"
        return (
            f"{graph}: torch itself computes this differently from eager in mode={mode}: {error.differs}{issue}, at "
            f"{self.line or 'a node without a line'} · derived: row {self.row} of docs/semantics.md, seen with {maker}"
            f"{f'; {other}' if right else ''}."
        )


def seen_in(graph: fx.Graph, patterns: Mapping[str, Pattern]) -> Iterator[Inherited]:
    """The rows that a graph shows, each once, at the first of its nodes."""
    nodes = {name: node for name, found in patterns.items() if (node := next(found(graph), None)) is not None}
    rows = inherited_errors().rows if nodes else {}  # every graph that is compiled comes here: few show anything
    for name, error in rows.items():
        if error.pattern in nodes:
            yield Inherited(name, traced_line(nodes[error.pattern].meta.get("stack_trace") or ""))


Pattern = Callable[[fx.Graph], Iterator[fx.Node]]


# Dynamo's graph.

_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson",
})  # fmt: skip
_DRAWS_IN_PLACE = frozenset({
    "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
})  # fmt: skip


def unread_draw(graph: fx.Graph) -> Iterator[fx.Node]:
    """`torch.rand(3)` that no result needs."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        written = node.args[0] if _name(node) in _DRAWS_IN_PLACE and node.args else None
        own = isinstance(written, fx.Node) and written.op != "placeholder" and len(written.users) == 1
        needed = node.op == "output" or (_name(node).endswith(("_", "setitem")) and not own)
        if needed or not live.isdisjoint(node.users):
            live.add(node)
    drawn = _DRAWS | _DRAWS_IN_PLACE
    return (node for node in graph.nodes if node not in live and _name(node) in drawn)


def _name(node: fx.Node) -> str:
    """`rand` of torch.rand and of a method of that name."""
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def python_random(graph: fx.Graph) -> Iterator[fx.Node]:
    """`x * random.uniform(0, 1)`: the number is an input of Dynamo's own."""
    numbers = (n for n in graph.nodes if n.op == "placeholder" and str(n.target).startswith("random_value_"))
    return (user for number in numbers for user in number.users)


IN_DYNAMO: Mapping[str, Pattern] = {"unread_draw": unread_draw, "python_random": python_random}


# AOTAutograd's graph: functional, with a copy_ into each input that is written at its end.

_COPIES = frozenset({aten.clone.default, aten.detach.default, aten.alias.default})
_SCATTERS = frozenset({
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
    aten.as_strided_scatter.default, aten.index_put.default, aten.index_copy.default,
})  # fmt: skip
"""Operators that Inductor lets write into their first operand (torch/_inductor/fx_passes/reinplace.py)."""
_WITHOUT_VALUES = frozenset({
    aten.zero.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default,
    aten.fill.Scalar, aten.fill.Tensor,
})  # fmt: skip
"""Operators that read no value of their first operand."""


def swap(graph: fx.Graph) -> Iterator[fx.Node]:
    """`t = a.clone(); a.copy_(b); b.copy_(t)`."""
    written = _written(graph)
    for one, other in combinations(written, 2):
        if _without_copies(_copied(written[one])) is other and _without_copies(_copied(written[other])) is one:
            yield _copied(written[one])


def copied_and_returned(graph: fx.Graph) -> Iterator[fx.Node]:
    """`new = torch.slice_scatter(x, …); x.copy_(new); return new`, as `x[1:3] = s; return x.clone()` is one."""
    returned = {_without_copies(node, views=True) for node in _results(graph)}
    for given, source in _written(graph).items():
        made = _copied(source)
        if made in returned and _scatters_into(made, given):
            yield made


def scattered_and_overwritten(graph: fx.Graph) -> Iterator[fx.Node]:
    """`y = torch.slice_scatter(x, …); x.zero_(); return y`: y is written into x, which no node needs any more."""
    order = {node: k for k, node in enumerate(graph.nodes)}
    returned = {_without_copies(node) for node in _results(graph)}
    for given, source in _written(graph).items():
        last = max((order[user] for user in given.users if _reads(user, given)), default=-1)
        for node in graph.nodes:
            written_back = node is _copied(source)
            if node in returned and _scatters_into(node, given) and not written_back and last <= order[node]:
                yield node


def view_of_another_dtype(graph: fx.Graph) -> Iterator[fx.Node]:
    """`y = x.view(torch.int32) * 2; x[1:] = 0; return y.view(torch.int64)` of an x of int64."""
    ends = [node for node in map(_without_copies, _results(graph)) if _changes_width(node)]
    for given, source in _written(graph).items():
        if not ends or not _scatters_into(_copied(source), given):
            continue
        for view in filter(_changes_width, given.users):
            if any(view in _ancestors(end) for end in ends):
                yield view


def times_zero(graph: fx.Graph) -> Iterator[fx.Node]:
    """`x * 0` of floating-point numbers."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and _is_number(node.args[1], 0):
            yield node


def neutral_element(graph: fx.Graph) -> Iterator[fx.Node]:
    """`return x + torch.zeros(3)`."""
    for result in _results(graph):
        node, changed = _without_copies(result, views=True), None
        while (operand := _unchanged(node)) is not None:
            node, changed = _without_copies(operand, views=True), changed or node
        written = any(user.target is aten.copy_.default and user.args[0] is node for user in node.users)
        if changed is not None and node.op == "placeholder" and not written:
            yield changed


PATTERNS: Mapping[str, Pattern] = {
    "swap": swap,
    "copied_and_returned": copied_and_returned,
    "scattered_and_overwritten": scattered_and_overwritten,
    "view_of_another_dtype": view_of_another_dtype,
    "times_zero": times_zero,
    "neutral_element": neutral_element,
}
_NEUTRAL: Mapping[Any, Mapping[int, tuple[int, ...]]] = {
    aten.add.Tensor: {0: (0, 1)},
    aten.sub.Tensor: {0: (1,)},
    aten.mul.Tensor: {1: (0, 1)},
    aten.div.Tensor: {1: (1,)},
}
"""{operator: {number: the operands that change nothing where they are full of it}}."""
_FULL: Mapping[Any, int | None] = {
    aten.zeros.default: 0, aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.ones.default: 1,
    aten.ones_like.default: 1, aten.new_ones.default: 1, aten.full.default: None, aten.full_like.default: None,
}  # fmt: skip
"""{operator: what it fills memory with; None: its second argument}."""


def _written(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """{an input: what is copied into it in the end}."""
    copies = (node.args for node in graph.find_nodes(op="call_function", target=aten.copy_.default))
    return {a: b for a, b, *_ in copies if isinstance(a, fx.Node) and a.op == "placeholder" and isinstance(b, fx.Node)}


def _copied(node: fx.Node) -> fx.Node:
    """Of `copy(x, value)` the value, where it has x's dtype and size."""
    source = node.args[1] if node.target is aten.copy.default else node
    return source if isinstance(source, fx.Node) and _form(source) == _form(node) else node


def _without_copies(node: fx.Node, *, views: bool = False) -> fx.Node:
    """What a copy, or with `views` a view, was made of."""
    made_of = node.args[0] if node.target in _COPIES or (views and _is_view(node)) else None
    return _without_copies(made_of, views=views) if isinstance(made_of, fx.Node) else node


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    alias = schema.returns[0].alias_info if schema is not None and schema.returns else None
    return alias is not None and not alias.is_write


def _scatters_into(node: fx.Node, given: fx.Node) -> bool:
    base = node.args[0] if node.target in _SCATTERS else None
    return isinstance(base, fx.Node) and _without_copies(base) is given


def _reads(user: fx.Node, given: fx.Node) -> bool:
    overwrites = user.target in (aten.copy_.default, aten.copy.default) and user.args[1] is not given
    return not overwrites and user.target not in _WITHOUT_VALUES


def _changes_width(node: fx.Node) -> bool:
    before = node.args[0] if node.target is aten.view.dtype else None
    return isinstance(before, fx.Node) and before.meta["val"].itemsize != node.meta["val"].itemsize


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, left = {node}, [node]
    while left:
        new = set(left.pop().all_input_nodes) - found
        found |= new
        left += new
    return found


def _unchanged(node: fx.Node) -> fx.Node | None:
    """The operand that `node` is equal to, dtype and size included, since the other one is neutral."""
    for number, places in _NEUTRAL.get(node.target, {}).items():
        for place in () if node.kwargs else places:
            other = node.args[1 - place]
            if isinstance(other, fx.Node) and _filled(node.args[place], number) and _form(other) == _form(node):
                return other
    return None


def _filled(node: Any, number: int) -> bool:
    if not isinstance(node, fx.Node) or node.target not in _FULL:
        return False
    filled = _FULL[node.target]
    return _is_number(node.args[1], number) if filled is None else filled == number


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def _form(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta.get("val")
    return (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else (node,)


def _results(graph: fx.Graph) -> list[fx.Node]:
    found: Any = graph.output_node().args[0]
    return [one for one in (found if isinstance(found, (list, tuple)) else (found,)) if isinstance(one, fx.Node)]
