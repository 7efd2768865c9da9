"""The compilation on the null device during which passes are frozen: the graphs are those that TorchAir would make."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import torch
from attrs import frozen
from torch.fx.experimental.symbolic_shapes import guard_bool, guard_int

from npucompose.compose.check import Checked
from npucompose.compose.session import Session
from npucompose.passes.base import Stage
from npucompose.recipe.freeze import FrozenGraph, freeze
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.leaf import GE
from npucompose.targets.compilation import Backend, Compilation
from npucompose.targets.npu import NpuTarget
from npucompose.targets.null_device import NullDevice

if TYPE_CHECKING:
    from torch import fx

GEARS = "dim_gears"
"""The attribute in which TorchAir keeps the gears of a tensor."""


def freezing_session(checked: Checked) -> tuple[Session, list[dict[Stage, FrozenGraph]]]:
    """The experiment on the null device, with a backend that freezes every graph on its way into the list."""
    session = Session(attrs.evolve(checked, target=_LikeNpu()))
    made = session.materialised
    backend = _Freezing(
        target=made.backend.target,
        mode=made.backend.mode,
        options=made.backend.options,
        pre=made.backend.pre,
        post=made.backend.post,
    )
    session.materialised = attrs.evolve(made, backend=backend)
    return session, backend.found


@frozen(kw_only=True)
class _LikeNpu(NullDevice):
    """The null device with what an NPU can do, which decides plans and rules; gears leave the marks that
    torchair.inference.set_dim_gears leaves. The script itself chooses the namespace of the scopes.
    """

    def capabilities(self, mode: str) -> Capabilities:
        return attrs.evolve(NpuTarget().capabilities(mode), scope_namespace="air")

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        return _set_gears if mode == GE else None


def _set_gears(tensor: Any, gears: dict[int, list[int]]) -> None:
    for dim in gears:
        torch._dynamo.mark_dynamic(tensor, dim)
    setattr(tensor, GEARS, gears)


class _Freezing(Backend):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.found: list[dict[Stage, FrozenGraph]] = []
        self._gears: dict[int, Mapping[int, Sequence[int]]] = {}
        """{input, counted from the end (parameters come first): its gears} of the Dynamo graph under compilation."""

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Any:
        last = len(example_inputs)
        self._gears = {n - last: getattr(t, GEARS) for n, t in enumerate(example_inputs) if hasattr(t, GEARS)}
        return super().__call__(graph_module, example_inputs, **keywords)

    def rewrite(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compilation:
        _guard(example_inputs, self._gears)
        stages: dict[Stage, FrozenGraph] = {}
        module = copy.deepcopy(graph_module)
        for pipeline in (self.pre, self.post):
            if pipeline.passes:
                stages[pipeline.passes[0][1].stage] = freeze(module, pipeline.passes, pipeline.can)
        self.found.append(stages)
        return super().rewrite(graph_module, example_inputs)


def _guard(inputs: Sequence[Any], gears: Mapping[int, Mapping[int, Sequence[int]]]) -> None:
    """With gears, TorchAir makes every other size of every tensor a number before its first hook, and keeps each
    size that has gears between its neighbours (torch_npu 2.13.0, torchair/inference/_gear_utils.py,
    guard_gears_shape). So do the graphs that are frozen here, or their fingerprint would be another one.
    """
    if not gears:
        return
    for at, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            continue
        own = gears.get(at - len(inputs), {})
        for dim, size in enumerate(tensor.size()):
            if dim in own:
                _between(size, sorted(set(own[dim])))
            else:
                guard_int(size)


def _between(size: Any, sizes: Sequence[int]) -> None:
    guard_bool((size >= sizes[0]) & (size <= sizes[-1]))
    for left, right in pairwise(sizes):
        guard_bool((size <= left) | (size >= right))
