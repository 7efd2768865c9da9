"""New nodes in the place of an old one, as each kind of rule puts them there: with its meta data, fake values computed
for the new nodes only."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from npucompose.errors import ConfigError, RejectedError
from npucompose.graphs.matching import Arguments, operator_of, part_of, value_of, with_arguments
from npucompose.passes.metadata import call_before, is_integer, loses_nothing
from npucompose.passes.proof import DOES_NOT_FIT
from npucompose.schema.adapt import (
    REFERENCE,
    CastAround,
    Compose,
    Dispatch,
    LayoutAround,
    OperatorCall,
    Rewriting,
)

TRAIL = "adapted_by"
"""node.meta: the names of the rules that made a node, so that none of them matches it."""
aten = torch.ops.aten


def case_of(found: Any) -> str:
    """How YAML's keys say a value: max, true, 3."""
    return str(found).lower() if isinstance(found, bool) else str(found)


class Builder:
    """Makes nodes before `node`. `made` lists them in order; `counts` says what was put in."""

    def __init__(self, graph: fx.Graph, node: fx.Node, trail: frozenset[str], asserts: bool) -> None:
        self.graph, self.node, self.trail, self.asserts = graph, node, trail, asserts
        self.made: list[fx.Node] = []
        self.counts: Counter[str] = Counter()

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call with its fake value."""
        made = call_before(self.node, target, args, kwargs)
        made.meta[TRAIL] = self.trail
        self.made.append(made)
        return made

    def cast(self, tensor: fx.Node, dtype: torch.dtype) -> fx.Node:
        self.counts["casts"] += 1
        return self.call(aten._to_copy.default, tensor, dtype=dtype)

    def permute(self, tensor: fx.Node, perm: Sequence[int]) -> fx.Node:
        """Permuted, and laid down in the new order: what a device's Transpose does."""
        self.counts["permutes"] += 1
        return self.call(
            aten.clone.default,
            self.call(aten.permute.default, tensor, list(perm)),
            memory_format=torch.contiguous_format,
        )

    def check_range(self, tensor: fx.Node, cast: fx.Node, rule: str) -> None:
        """The run ends where a value that was finite, or any integer, does not survive the cast."""
        narrow = cast.meta["val"].dtype
        self.counts["checked"] += 1
        message = f"adapt rule '{rule}': {DOES_NOT_FIT} {str(narrow).removeprefix('torch.')}"
        if narrow.is_floating_point or narrow.is_complex:
            same = self.call(aten.eq.Tensor, self.call(aten.isinf.default, tensor), self.call(aten.isinf.default, cast))
        else:
            back = self.call(aten._to_copy.default, cast, dtype=tensor.meta["val"].dtype)
            same = self.call(aten.eq.Tensor, back, tensor)
        self.call(aten._assert_async.msg, self.call(aten.all.default, same), message)

    def called(self, call: OperatorCall, names: Mapping[str, Any]) -> Any:
        """`call` with its references looked up in `names`; the chosen result where several come out."""
        target = operator_of(call.op)
        assert target is not None  # by_operator has looked
        made = self.call(target, *self.resolved(list(call.args), names), **self.resolved(dict(call.kwargs), names))
        return made if call.result is None else self.call(operator.getitem, made, call.result)

    def resolved(self, given: Any, names: Mapping[str, Any]) -> Any:
        """Nested arguments with every `$…` replaced by what it stands for."""
        if isinstance(given, str) and given.startswith(("$", "*$")):
            return self._reference(given.removeprefix("*"), names)
        if isinstance(given, (list, tuple)):
            parts = [(self.resolved(item, names), isinstance(item, str) and item.startswith("*$")) for item in given]
            return [one for found, several in parts for one in (found if several else [found])]
        if isinstance(given, Mapping):
            return {str(key): self.resolved(item, names) for key, item in given.items()}
        return given

    def _reference(self, text: str, names: Mapping[str, Any]) -> Any:
        match = REFERENCE.fullmatch(text)
        assert match is not None  # OperatorCall has looked
        found = part_of(names, match["name"])
        tensor, fact = value_of(found), match["fact"]
        if match["dim"]:
            return self._size(found, int(match["dim"]))
        if match["sizes"]:
            dims = range(int(match["first"] or 0), tensor.dim())
            return [1 if match["sizes"] == "ones" else self._size(found, dim) for dim in dims]
        if fact == "numel":
            count = tensor.numel()
            return count if isinstance(count, int) else self.call(aten.sym_numel.default, found)
        return found if fact is None else {"dtype": tensor.dtype, "device": tensor.device, "rank": tensor.dim()}[fact]

    def _size(self, tensor: fx.Node, dim: int) -> Any:
        """A number, or where the size is a symbol a node that reads it."""
        dim %= tensor.meta["val"].dim()
        size = tensor.meta["val"].shape[dim]
        return size if isinstance(size, int) else self.call(aten.sym_size.int, tensor, dim)


def rebuilt(builder: Builder, arguments: Arguments, changed: Mapping[str, Any]) -> fx.Node:
    """The old call once more, with other values for the arguments in `changed`."""
    target = builder.node.target
    assert isinstance(target, torch._ops.OpOverload)
    args, kwargs = with_arguments(target, builder.node.args, builder.node.kwargs, changed)
    return builder.call(target, *args, **kwargs)


def replacement(builder: Builder, rule: Rewriting, arguments: Arguments) -> list[fx.Node]:
    """`fill_args` of relu_grad gives one node, threshold_backward; `cast_around` of nll_loss two casts."""
    if isinstance(rule, Compose):
        return _compose(builder, rule, arguments)
    if isinstance(rule, CastAround):
        return _cast_around(builder, rule, arguments)
    if isinstance(rule, LayoutAround):
        return _layout_around(builder, rule, arguments)
    call = rule.cases[case_of(arguments[rule.by])] if isinstance(rule, Dispatch) else rule.calls[0]
    return _results(builder, builder.called(call, arguments))


def _compose(builder: Builder, rule: Compose, arguments: Arguments) -> list[fx.Node]:
    names = dict(arguments)
    last: Any = None
    for step in rule.steps:
        last = builder.called(step, names)
        if step.let:
            names[step.let] = last
    return builder.resolved(list(rule.results), names) if rule.results else _results(builder, last)


def _cast_around(builder: Builder, rule: CastAround, arguments: Arguments) -> list[fx.Node]:
    compute = getattr(torch, rule.compute)
    changed: dict[str, fx.Node] = {}
    for name in rule.inputs:
        tensor = arguments.get(name)
        fake = value_of(tensor)
        if not isinstance(fake, torch.Tensor) or fake.dtype == compute:
            continue
        assert isinstance(tensor, fx.Node)
        changed[name] = builder.cast(tensor, compute)
        if not loses_nothing(fake.dtype, compute):
            _guard_range(builder, rule, tensor, changed[name])
    results = _results(builder, rebuilt(builder, arguments, changed))
    old = builder.node.meta["val"]
    dtypes = [found.dtype for found in (old if isinstance(old, (list, tuple)) else [old])]
    return [
        made if made.meta["val"].dtype == dtype else builder.cast(made, dtype)
        for made, dtype in zip(results, dtypes, strict=True)
    ]


def _guard_range(builder: Builder, rule: CastAround, tensor: fx.Node, cast: fx.Node) -> None:
    """A float that does not fit becomes inf, which shows; an integer becomes another one, which must never pass."""
    if rule.contract.range_check and builder.asserts:
        builder.check_range(tensor, cast, rule.name)
        return
    builder.counts["unchecked"] += rule.contract.range_check
    if not is_integer(cast.meta["val"].dtype):
        return
    narrow = f"{str(value_of(tensor).dtype).removeprefix('torch.')} to {rule.compute}"
    if not rule.contract.range_check:
        raise ConfigError(
            f"adapt rule '{rule.name}' casts {narrow}, which gives other numbers where a value does not fit: say "
            "contract: {range_check: true}."
        )
    raise RejectedError(
        f"{builder.node.target} (node {builder.node.name}): adapt rule '{rule.name}' casts {narrow}, and this mode "
        "cannot check at run time that every value fits: an NPU has no kernel for aten._assert_async. Check it with "
        "target=cpu mode=reduce-overhead, and give the operator values of the narrower type on an NPU."
    )


def _layout_around(builder: Builder, rule: LayoutAround, arguments: Arguments) -> list[fx.Node]:
    rank = len(rule.perm)
    back = sorted(range(rank), key=lambda dim: rule.perm[dim])
    changed: dict[str, Any] = dict(rule.set)
    for name in rule.inputs:
        tensor = arguments.get(name)
        fake = value_of(tensor)
        if isinstance(fake, torch.Tensor) and fake.dim() == rank:
            assert isinstance(tensor, fx.Node)
            changed[name] = builder.permute(tensor, rule.perm)
    results = _results(builder, rebuilt(builder, arguments, changed))
    return [builder.permute(made, back) if made.meta["val"].dim() == rank else made for made in results]


def _results(builder: Builder, made: fx.Node) -> list[fx.Node]:
    """The node, or one for each of its results."""
    found = made.meta["val"]
    if not isinstance(found, (list, tuple)):
        return [made]
    return [builder.call(operator.getitem, made, index) for index in range(len(found))]
