"""An FX graph -> FxFacts: plain values, so that nothing of torch has to be kept. Judges nothing."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from npucompose.errors import traced_line
from npucompose.graphs.describe import op_name, places
from npucompose.graphs.effects import AUTO_FUNCTIONALIZED, control, nodes_in, tensors_in
from npucompose.graphs.matching import arguments_of
from npucompose.npu.static_graph.facts import FxFacts, Input, Op, OpArgument
from npucompose.vendor.converter_conditions import GIVEN, META_OUTPUTS, OPEN, RESULTS, TENSOR

VIEWS = frozenset(
    f"aten::{name}"
    for name in ("view", "_unsafe_view", "reshape", "t", "unsqueeze", "squeeze", "expand", "alias", "detach", "flatten")
)
"""Operators that GE folds away or turns into a note on the next one; `t` goes into the matmul."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CONSTANTS = (type(None), bool, int, float, str, torch.memory_format, torch.layout, torch.dtype)
_SOME_TENSOR = object()
_LOCAL = re.compile(r"L\['(\w+)'\]")


def argument_of(source: str) -> str | None:
    """`key.size()[2]` of torch's `L['key'].size()[2]`; None for what is no argument (a parameter)."""
    if not _LOCAL.match(source) or "._parameters" in source or "._buffers" in source or "._modules" in source:
        return None
    return _LOCAL.sub(r"\1", source, count=1).replace("._base", "")


def read(graph: fx.Graph, graph_id: str, sources: Sequence[str | None] = ()) -> FxFacts:
    """The facts of an AOT graph. `sources`: torch's names of the Dynamo graph's placeholders, in order (`L['x']`)."""
    inputs = tuple(_inputs(graph, sources))
    known: dict[str, str | None] = {
        symbol: f"{one.argument}.size()[{at}]" for one in inputs if one.argument for at, symbol in one.sizes.items()
    }
    for node in graph.nodes:
        for number in _numbers(node.meta.get("val")):
            known.update({str(s): _origin(number, s) for s in number.node.expr.free_symbols if str(s) not in known})
    return FxFacts(
        id=graph_id,
        inputs=inputs,
        ops=tuple(_ops(graph, graph_id)),
        symbols=known,
        without_tensors=tuple(_without_tensors(graph)),
    )


def _inputs(graph: fx.Graph, sources: Sequence[str | None]) -> Iterator[Input]:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, place in zip(placeholders, places(placeholders, len(sources)), strict=True):
        value = node.meta.get("val")
        source = None if place is None else sources[place]
        argument = argument_of(source) if source else None
        if isinstance(value, torch.Tensor):
            sizes = {at: str(size) for at, size in enumerate(value.shape) if _free(size)}
            shape = tuple(str(size) for size in value.shape)
            yield Input(name=node.name, argument=argument, shape=shape, sizes=sizes)
        else:
            symbol = str(value) if _free(value) else None
            yield Input(name=node.name, argument=argument, symbol=symbol)


def _ops(graph: fx.Graph, graph_id: str) -> Iterator[Op]:
    """Calls that give tensors. Arithmetic on sizes and picking one of several results are part of what reads them."""
    for at, node in enumerate(graph.nodes):
        if node.op != "call_function" or control(node) is not None or not _computes(node):
            continue
        unknown = _symbols(_sizes(node.meta.get("val")))
        inside = _symbols(size for n in node.all_input_nodes for size in _sizes(n.meta.get("val")))
        target = _converted(node)
        yield Op(
            name=node.name,
            overload=_named(node),
            schema=target._schema.name if isinstance(target, torch._ops.OpOverload) else _named(node),
            source=traced_line(node.meta.get("stack_trace") or ""),
            arguments=_arguments(node),
            constants=_constants(node),
            parameters=_parameters(node),
            reads=tuple(dict.fromkeys(_computed(node))),
            unknown_in=inside,
            unknown_out=unknown,
            unbacked=tuple(symbol for symbol in _unbacked(node) if symbol not in inside),
            view=isinstance(target, torch._ops.OpOverload) and target._schema.name in VIEWS,
            subgraphs=tuple(_subgraphs(node, graph, graph_id)),
            empty=_empty(node.meta.get("val")),
            scalar=_scalar(target),
            unwritable=_unwritable(node),
            higher_order=isinstance(target, torch._ops.HigherOrderOperator),
            at=at,
        )


def _converted(node: fx.Node) -> Any:
    """What a converter is looked up for: of a call that writes to copies, the operator that it would write with."""
    wrapped = isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in AUTO_FUNCTIONALIZED
    return node.args[0] if wrapped else node.target


def _named(node: fx.Node) -> str:
    """`aten.mm.default`; the bare name of a higher-order operator."""
    target = _converted(node)
    if target is not node.target:
        return str(target)
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else op_name(node)


def _scalar(target: Any) -> str | None:
    arguments = target._schema.arguments if isinstance(target, torch._ops.OpOverload) else ()
    return next((one.name for one in arguments if isinstance(one.type, torch.NumberType)), None)


def _without_tensors(graph: fx.Graph) -> Iterator[Op]:
    for at, node in enumerate(graph.nodes):
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and control(node) is None and not _computes(node):
            line = traced_line(node.meta.get("stack_trace") or "")
            yield Op(
                name=node.name,
                overload=op_name(node),
                schema=target._schema.name,
                source=line,
                constants=_constants(node),
                parameters=_parameters(node),
                scalar=_scalar(target),
                at=at,
            )


def _computes(node: fx.Node) -> bool:
    return node.target is not operator.getitem and any(True for _ in tensors_in(node.meta.get("val")))


def _computed(node: fx.Node) -> Iterator[str]:
    """The operators behind a node's inputs, seen through what `_ops` leaves out."""
    for before in node.all_input_nodes:
        if before.op == "call_function":
            yield from (before.name,) if control(before) is None and _computes(before) else _computed(before)


def _arguments(node: fx.Node) -> dict[str, OpArgument]:
    if _converted(node) is not node.target:  # what it writes lies in `_all_bases`
        return {name: _argument(value) for name, value in node.kwargs.items() if not name.startswith("_")}
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    return {name: _argument(value) for name, value in arguments_of(node, defaults=False).items()}


def _constants(node: fx.Node) -> dict[str, str]:
    """What a converter is given, as Python writes it; of a call that writes to copies, those of the operator in it."""
    operator = _converted(node)
    if not isinstance(operator, torch._ops.OpOverload):
        return {}
    given = arguments_of(node) if operator is node.target else _written_to_copies(node, operator)
    results = node.meta.get("val")
    made = {RESULTS: str(len(operator._schema.returns))}
    made |= {META_OUTPUTS: _fact(results)} if isinstance(results, torch.Tensor) else {}
    return made | {name: said for name, value in given.items() if (said := _written(value)) is not None}


def _parameters(node: fx.Node) -> tuple[str, ...]:
    """None of a call that writes to copies, which gives everything by name."""
    arguments = node.target._schema.arguments if isinstance(node.target, torch._ops.OpOverload) else ()
    return tuple(one.name for one in arguments if not one.kwarg_only)


def _written_to_copies(node: fx.Node, operator: torch._ops.OpOverload) -> dict[str, Any]:
    """What the call does not name it leaves at its default; what it writes it names by its place among the bases."""
    bases = node.kwargs.get("_all_bases", ())
    given: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        at = node.kwargs.get(f"_{argument.name}_base_index")
        if argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif isinstance(at, int) and isinstance(bases, (list, tuple)):
            given[argument.name] = bases[at] if node.kwargs.get(f"_{argument.name}_alias") else _SOME_TENSOR
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    return given


def _unwritable(node: fx.Node) -> str:
    operator, bases = _converted(node), node.kwargs.get("_all_bases")
    if (
        operator is node.target
        or not isinstance(operator, torch._ops.OpOverload)
        or not isinstance(bases, (list, tuple))
    ):
        return ""
    written = [one for one in operator._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    for one in written:
        if node.kwargs.get(f"_{one.name}_base_index", ...) is None:
            return f"it writes {one.name}, which is not given"
        if f"_{one.name}_length" in node.kwargs:
            return f"it writes {one.name}, which is a list of tensors"
    names = " and ".join(one.name for one in written)
    return (
        f"{names} are {len(written)} arguments that it writes, and {len(bases)} tensors"
        if len(bases) < len(written)
        else ""
    )


def _written(value: Any) -> str | None:
    """None where it is not known. A symbol is a tensor to a converter, and so is a list with one in it."""
    if value is _SOME_TENSOR:
        return GIVEN
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, fx.Node):
        known = value.meta.get("val")
        if isinstance(known, _SYMBOLIC):
            return f"{TENSOR}({torch.int64}, [])"
        return _fact(known) if isinstance(known, torch.Tensor) else None
    if not isinstance(value, (list, tuple)):
        return None
    if any(isinstance(one, fx.Node) and isinstance(one.meta.get("val"), _SYMBOLIC) for one in value):
        return f"{TENSOR}({torch.int64}, [{len(value)}])"
    parts = [_written(one) for one in value]
    return None if None in parts else f"[{', '.join(part for part in parts if part)}]"


def _fact(tensor: torch.Tensor) -> str:
    sizes = (OPEN if isinstance(size, torch.SymInt) else str(size) for size in tensor.shape)
    return f"{TENSOR}({tensor.dtype}, [{', '.join(sizes)}])"


def _argument(value: Any) -> OpArgument:
    nodes = list(nodes_in(value))
    if value is None:
        return OpArgument(kind="nothing")
    numbers = [found for node in nodes if isinstance(found := node.meta.get("val"), _SYMBOLIC)]
    if any(_symbols([number]) for number in numbers):
        return OpArgument(kind="symbols", symbols=_symbols(numbers), packed=_packed(value))
    constant = bool(numbers) or all(node.op == "get_attr" for node in nodes)
    return OpArgument(kind="constant" if constant else "tensor")


def _packed(value: Any) -> bool:
    """TorchAir hands a list over as one Data node where every number in it is an input, and as a Pack elsewhere."""
    return isinstance(value, (list, tuple)) and not all(
        isinstance(number, fx.Node) and number.op == "placeholder" for number in value
    )


def _empty(value: Any) -> bool:
    """Every result is a tensor without an element, and no symbol says otherwise: None is no such result."""
    results = tree_leaves(value)
    return bool(results) and all(
        isinstance(one, torch.Tensor) and not any(map(_free, one.shape)) and 0 in one.shape for one in results
    )


def _sizes(value: Any) -> Iterator[torch.SymInt]:
    """Sizes of tensors that are symbols."""
    return (size for tensor in tensors_in(value) for size in tensor.shape if isinstance(size, torch.SymInt))


def _numbers(value: Any) -> Iterator[Any]:
    yield from (value,) if isinstance(value, _SYMBOLIC) else _sizes(value)


def _free(number: Any) -> bool:
    """A symbol may have been found to be a constant since it was made."""
    return isinstance(number, torch.SymInt) and bool(number.node.expr.free_symbols)


def _symbols(numbers: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(s) for n in numbers for s in sorted(n.node.expr.free_symbols, key=str)))


def _unbacked(node: fx.Node) -> Iterator[str]:
    """Symbols of the node's sizes that no caller knows: the data decide."""
    sizes = [size.node for size in _sizes(node.meta.get("val"))]
    return (str(s) for size in sizes for s in size.expr.free_symbols if size.shape_env.is_unbacked_symint(s))


def _origin(number: Any, symbol: Any) -> str | None:
    """What torch wrote down as the symbol's first source, in the model's words."""
    sources = number.node.shape_env.var_to_sources.get(symbol)
    name = sources[0].name if sources else ""
    return argument_of(name if isinstance(name, str) else name())


def _subgraphs(node: fx.Node, graph: fx.Graph, graph_id: str) -> Iterator[FxFacts]:
    """Branches and bodies of cond, while_loop and their like."""
    for inner in nodes_in(node.args):
        module = getattr(graph.owning_module, str(inner.target), None) if inner.op == "get_attr" else None
        if isinstance(module, fx.GraphModule):
            yield read(module.graph, f"{graph_id}.{inner.target}")
