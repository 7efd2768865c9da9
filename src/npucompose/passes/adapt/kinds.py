"""What each kind of rule puts in an operator's place: the nodes of its results, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npucompose.errors import ConfigError, RejectedError
from npucompose.passes.adapt.build import Builder, rebuilt
from npucompose.passes.adapt.match import Bound, case_of
from npucompose.passes.dtypes import is_integer, loses_nothing
from npucompose.passes.metadata import value_of
from npucompose.schema.adapt import CastAround, Compose, Dispatch, FillArgs, LayoutAround, Rewriting


def replacement(builder: Builder, rule: Rewriting, arguments: Bound) -> list[fx.Node]:
    """`fill_args` of relu_grad gives one node, threshold_backward; `cast_around` of nll_loss two casts."""
    return _KINDS[type(rule)](builder, rule, arguments)


def _fill_args(builder: Builder, rule: FillArgs, arguments: Bound) -> list[fx.Node]:
    return _results(builder, builder.of(rule.call, arguments))


def _dispatch(builder: Builder, rule: Dispatch, arguments: Bound) -> list[fx.Node]:
    return _results(builder, builder.of(rule.cases[case_of(arguments[rule.by])], arguments))


def _compose(builder: Builder, rule: Compose, arguments: Bound) -> list[fx.Node]:
    names = dict(arguments)
    last: Any = None
    for step in rule.steps:
        last = builder.of(step, names)
        if step.let:
            names[step.let] = last
    return builder.resolved(list(rule.results), names) if rule.results else _results(builder, last)


def _cast_around(builder: Builder, rule: CastAround, arguments: Bound) -> list[fx.Node]:
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
    builder.unchecked += rule.contract.range_check
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
        "cannot check at run time that every value fits. Use a mode that records kernels."
    )


def _layout_around(builder: Builder, rule: LayoutAround, arguments: Bound) -> list[fx.Node]:
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
    return [builder.part(made, index) for index in range(len(found))] if isinstance(found, (list, tuple)) else [made]


_KINDS: dict[type[Rewriting], Callable[[Builder, Any, Bound], list[fx.Node]]] = {
    FillArgs: _fill_args,
    Dispatch: _dispatch,
    Compose: _compose,
    CastAround: _cast_around,
    LayoutAround: _layout_around,
}
