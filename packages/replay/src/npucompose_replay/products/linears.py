"""Products with frozen float32 weights: by the fastest of three ways, by what is known of each shape or is measured.

# Note [Who multiplies by a frozen float32 weight]
Freezing hands every such product to MKL's packed product. On processors that are not Intel's MKL may leave half of the
vector unit idle, and oneDNN does not (more than twice as fast on a Zen 5). On Intel's, MKL multiplies a few dozen rows
by a matrix that is not packed in three quarters of the time, where that lies as a product without transposition wants
it (64 rows on a Xeon; from 100 rows on packed ones win): that is torch's own operator. Which it is is tried on the
weights themselves, as max-autotune tries its kernels. A product by oneDNN can also take in the pointwise operators
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.results.graphs import Winner, of_samples
from npucompose.schema.recording import LinearLibrary
from npucompose_replay.products.cold import Others, constants_of
from npucompose_replay.products.libraries import ATEN, MKL, ONEDNN
from npucompose_replay.products.timed_calls import in_turns
from npucompose_replay.products.winners import Winners

if TYPE_CHECKING:
    from torch import fx

MOST_BYTES = 256 << 20
"""Of the weights of one shape that a contest goes through, each packed for every library at once."""


@frozen(kw_only=True, eq=False)
class Linear:
    """`mkl::_mkl_linear(x, packed, weight, bias, rows)` of a frozen graph, with the tensors that it names."""

    node: fx.Node
    packed: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: int

    @property
    def form(self) -> str:
        """`linear_8x512x256`: rows, inner size, columns."""
        columns, inner = self.weight.shape
        return form_of(self.rows, inner, columns)


def form_of(rows: int | str, inner: int | str, columns: int | str) -> str:
    """The key of a contest: `linear_8x512x256`."""
    return f"linear_{rows}x{inner}x{columns}"


@frozen(kw_only=True, eq=False)
class Way:
    """How a library multiplies rows by a weight."""

    packed: Callable[[Linear], torch.Tensor]
    """The weight as the library wants it."""
    call: Callable[[torch.Tensor, torch.Tensor, Linear], torch.Tensor]
    """The product of rows and a weight that `packed` made."""
    move: Callable[[fx.GraphModule, Linear, torch.Tensor], None] | None = None
    """Let the graph call it, with a weight that `packed` made; None of who has the products from the beginning."""


def choose_linears(
    graph_module: fx.GraphModule, library: LinearLibrary = "auto", winners: Winners | None = None
) -> int:
    """Give the products of a frozen graph to the fastest library, shape by shape; how many left MKL's packed one.

    With `library=auto` the `winners` know, or what is measured is kept there.
    See Note [Who multiplies by a frozen float32 weight].
    """
    if library == MKL:
        return 0
    forms: dict[str, list[Linear]] = {}
    for linear in linears(graph_module):
        forms.setdefault(linear.form, []).append(linear)
    winners, others = winners or Winners(), Others(constants_of(graph_module))
    moved = 0
    for form, alike in forms.items():
        winner = library if library != "auto" else _winner(form, alike, winners, others)
        move = WAYS[winner].move
        if move is not None:
            for linear, weight in zip(alike, _packed(winner, alike), strict=True):
                move(graph_module, linear, weight)
            moved += len(alike)
    if moved:
        graph_module.graph.eliminate_dead_code()
        _forget_unused(graph_module)
        graph_module.recompile()
    return moved


def _winner(form: str, alike: Sequence[Linear], winners: Winners, others: Others) -> str:
    libraries = (MKL, ONEDNN, ATEN) if torch.backends.mkldnn.is_available() else (MKL, ATEN)
    measured = partial(_measured, form, alike, libraries, winners.limit_ms, others)
    return winners.chosen(form, libraries, measured).winner


def _measured(form: str, alike: Sequence[Linear], libraries: Sequence[str], limit_ms: float, others: Others) -> Winner:
    weight = alike[0].weight
    some = alike[: max(1, MOST_BYTES // weight.nbytes)]
    are_cold = len(libraries) * len(some) * weight.nbytes >= others.nbytes
    weights = {name: _packed(name, some) for name in libraries}
    return of_samples(form, *timed(some, weights, limit_ms, None if are_cold else others.read))


def _packed(library: str, alike: Sequence[Linear]) -> list[torch.Tensor]:
    with unset_fake_temporarily(), torch.no_grad():
        return [WAYS[library].packed(linear) for linear in alike]


def linears(graph_module: fx.GraphModule) -> list[Linear]:
    """The products with MKL's packed weights whose operands are constants of the graph."""
    found: list[Linear] = []
    mkl = getattr(torch.ops.mkl, "_mkl_linear", None)
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or mkl is None or node.target not in (mkl, mkl.default):
            continue
        _, packed, weight, bias, rows = node.args
        if all(n is None or n.op == "get_attr" for n in (packed, weight, bias)):
            tensors: list[Any] = [
                None if n is None else getattr(graph_module, n.target) for n in (packed, weight, bias)
            ]
            found.append(Linear(node=node, packed=tensors[0], weight=tensors[1], bias=tensors[2], rows=rows))
    return found


def timed(
    alike: Sequence[Linear],
    weights: Mapping[str, Sequence[torch.Tensor]],
    limit_ms: float,
    before: Callable[[], Any] | None = None,
) -> tuple[dict[str, list[float]], float]:
    """({library: microseconds of each round}, share of the time with a processor), in turns over all these weights.

    All of them, because a weight that lies in the cache is not what a model meets; where they are few, what is done
    `before` each call has to make it cold.
    """
    with unset_fake_temporarily(), torch.no_grad():
        x = torch.rand(alike[0].rows, alike[0].weight.shape[1])
        calls: Mapping[str, Sequence[Callable[[], Any]]] = {
            name: [partial(WAYS[name].call, x, weight, linear) for linear, weight in zip(alike, packed, strict=True)]
            for name, packed in weights.items()
        }
        return in_turns(calls, limit_ms, before)


def _by_mkl(x: torch.Tensor, weight: torch.Tensor, linear: Linear) -> torch.Tensor:
    return torch.ops.mkl._mkl_linear(x, weight, linear.weight, linear.bias, linear.rows)


def _by_onednn(x: torch.Tensor, weight: torch.Tensor, linear: Linear) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, linear.bias, "none", [], "")


def _by_aten(x: torch.Tensor, weight: torch.Tensor, linear: Linear) -> torch.Tensor:
    return torch.mm(x, weight) if linear.bias is None else torch.addmm(linear.bias, x, weight)


def _move_to_onednn(graph_module: fx.GraphModule, linear: Linear, weight: torch.Tensor) -> None:
    node = linear.node
    x, _, _, bias, _ = node.args
    rows = _reshaped(node)
    with graph_module.graph.inserting_before(node):
        constant = _constant(graph_module, f"_onednn_{node.name}", weight)
        replacement = graph_module.graph.call_function(
            torch.ops.mkldnn._linear_pointwise.default, (x if rows is None else rows, constant, bias, "none", [], "")
        )
    for replaced in [node] if rows is None else list(node.users):
        replacement.meta.update(replaced.meta)
        replaced.replace_all_uses_with(replacement)  # and so it is dead code


def _move_to_aten(graph_module: fx.GraphModule, linear: Linear, weight: torch.Tensor) -> None:
    node = linear.node
    x, _, _, bias, _ = node.args
    with graph_module.graph.inserting_before(node):
        constant = _constant(graph_module, f"_aten_{node.name}", weight)
        operator, operands = (
            (torch.ops.aten.mm.default, (x, constant))
            if bias is None
            else (torch.ops.aten.addmm.default, (bias, x, constant))
        )
        replacement = graph_module.graph.call_function(operator, operands)
    replacement.meta.update(node.meta)
    node.replace_all_uses_with(replacement)


WAYS: Mapping[str, Way] = {
    MKL: Way(packed=lambda linear: linear.packed, call=_by_mkl),
    ONEDNN: Way(
        packed=lambda linear: torch.ops.mkldnn._reorder_linear_weight(linear.weight, linear.rows),
        call=_by_onednn,
        move=_move_to_onednn,
    ),
    ATEN: Way(packed=lambda linear: linear.weight.t().contiguous(), call=_by_aten, move=_move_to_aten),
}


def _constant(graph_module: fx.GraphModule, name: str, value: torch.Tensor) -> fx.Node:
    graph_module.register_buffer(name, value, persistent=False)
    constant = graph_module.graph.get_attr(name)
    constant.meta["is_frozen_param"] = True
    return constant


def _reshaped(node: fx.Node) -> fx.Node | None:
    """What a product's rows are a reshape of, where each of its results is reshaped back: oneDNN takes it as it is, and
    Inductor sees the pointwise operators behind the product, which it lets oneDNN compute in passing."""
    x: Any = node.args[0]
    if not _is_reshape(x):
        return None
    sizes = (*x.args[0].meta["val"].shape[:-1], node.meta["val"].shape[-1])
    back = all(_is_reshape(user) and tuple(user.meta["val"].shape) == sizes for user in node.users)
    inner = x.args[0].meta["val"].shape[-1] == x.meta["val"].shape[-1]
    return x.args[0] if back and inner else None


def _is_reshape(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (torch.ops.aten.reshape.default, torch.ops.aten.view.default)


def _forget_unused(graph_module: fx.GraphModule) -> None:
    """Let go of constants that no node names any more: MKL's packed weights are as large as the model."""
    named = {node.target for node in graph_module.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in graph_module.named_buffers(recurse=False) if name not in named]:
        delattr(graph_module, name)
