"""An experiment as a plain Python script: torch, torch_npu and torchair only, for people who will not install this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from npucompose.compose.check import Checked, check
from npucompose.compose.inputs import gears_of
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError, listed
from npucompose.passes.base import Stage
from npucompose.recipe import header
from npucompose.schema.experiment import CompileKeywords, Experiment, Shapes
from npucompose.table.modes import GE, NPUGRAPH_EX
from npucompose.vendor.compiler import EVERY_LEAF
from npucompose.vendor.versions import REFERENCE

if TYPE_CHECKING:
    from npucompose.recipe.freeze import FrozenGraph

CARRIED: Mapping[type[Any], frozenset[str]] = {
    Experiment: frozenset(header.SECTIONS)
    | {
        "pipeline",
        "benchmark",
        "expect",
        "sinking",
        "inductor",
        "trust",
        "debug",
        "check",
        "search",
        "executor",
        "tracker",
        "retry",
    },
    Shapes: frozenset({"name", "dynamic", "mark_static", "mark_dynamic", "gears"}),
    CompileKeywords: frozenset({"fullgraph", "partial", "cache"}),
}
"""Fields that a script says, or that have no place in one; any other field is refused when it is set."""


@frozen(kw_only=True)
class Mark:
    """`torch._dynamo.mark_static(inputs["x"])`: one argument, all its dimensions (None) or those given."""

    argument: str
    dims: tuple[int, ...] | None = None
    nested: bool = False
    """The argument is a list or dict that holds the tensors."""


@frozen(kw_only=True)
class Parts:
    """All that a script is written from."""

    experiment: Experiment
    recipe: Mapping[str, Any]
    torch_npu: str = REFERENCE
    """The version whose option names the script uses."""
    marks: tuple[Mark, ...] = ()
    gears: Mapping[str, Mapping[int, Sequence[int]]] = {}
    """{argument: {dimension: sizes}}."""
    graphs: Mapping[Stage, tuple[FrozenGraph, ...]] = {}


def eject(*overrides: str, config_dirs: Sequence[str] = (), config_name: str = "config") -> str:
    """The script for an experiment; ConfigError names whatever a script cannot say.

    `eject("mode=reduce-overhead", "model=mm_abs_sub", "passes=stream_plan")`. With passes, the model is built and
    compiled here (on the null device: nothing is executed), because the edits of a pass are those of one graph.
    """
    composed = compose(overrides, config_dirs=config_dirs, config_name=config_name)
    return script_of(composed, check(composed))


def script_of(composed: Composed, checked: Checked) -> str:
    """The script of an experiment that is composed and checked already."""
    from npucompose.recipe.script import text

    _refuse(checked.experiment)
    recipe = header.of_tree(composed.tree)
    parts = Parts(experiment=checked.experiment, recipe=recipe, torch_npu=checked.torch_npu.version)
    shapes = checked.experiment.shapes
    if not (checked.passes or shapes.mark_static or shapes.mark_dynamic or shapes.gears):
        return text(parts)
    from npucompose.recipe.freeze import freezing_session

    session, frozen_graphs = freezing_session(checked)
    inputs = session.built.inputs(0)
    marks = _marks(shapes, inputs)
    if checked.passes:
        session.compiled  # noqa: B018  compiling is what freezes
    return text(attrs.evolve(parts, marks=marks, gears=gears_of(shapes, inputs, []), graphs=_by_stage(frozen_graphs)))


def _refuse(experiment: Experiment) -> None:
    mode = experiment.mode.name
    if mode == "eager":
        raise ConfigError("mode=eager compiles nothing: there is nothing to eject. Choose the mode of the script.")
    problems = [
        f"compiler.{path} cannot be ejected for mode={mode}: the script sets "
        f"{'npugraph_ex' if mode == NPUGRAPH_EX else 'torchair'}'s own options only. Remove it."
        for path in experiment.compiler.changed()
        if path.startswith("npugraph_ex.") != (mode == NPUGRAPH_EX)
    ]
    if experiment.shapes.gears and mode != GE:
        problems.append(f"shapes.gears cannot be ejected for mode={mode}: only GE takes gears. Remove it.")
    if experiment.target.options.get("decompose"):
        problems.append("target.decompose cannot be ejected: no line of a script is known for it. Remove it.")
    for where, value in (("", experiment), ("shapes.", experiment.shapes), ("compile.", experiment.compile)):
        problems += [
            f"{where}{field.name} cannot be ejected: no line of a script is known for it. Remove it."
            for field in attrs.fields(type(value))
            if field.name not in CARRIED[type(value)] and getattr(value, field.name) != _default(field)
        ]
    if problems:
        raise ConfigError(*problems)


def _default(field: attrs.Attribute[Any]) -> Any:
    factory = getattr(field.default, "factory", None)
    return factory() if factory is not None else field.default


def _by_stage(graphs: Sequence[Mapping[Stage, FrozenGraph]]) -> dict[Stage, tuple[FrozenGraph, ...]]:
    """Each stage's graphs, equal ones once."""
    stages: dict[Stage, tuple[FrozenGraph, ...]] = {}
    for stage in ("pre", "post"):
        once = {g[stage].fingerprint: g[stage] for g in graphs if stage in g}
        if once:
            stages[stage] = tuple(once.values())
    return stages


def _marks(shapes: Shapes, inputs: Mapping[str, Any]) -> tuple[Mark, ...]:
    """The patterns of the shape policy as argument names of this model."""
    from npucompose.compose.inputs import apply_shapes, matches

    apply_shapes(shapes, inputs)  # tells what is wrong with a pattern, in the words of a run
    marks = [
        Mark(argument=name, nested=not _is_tensor(value))
        for name, value in inputs.items()
        if any(matches(pattern, name) for pattern in shapes.mark_static)
    ]
    for pattern, dims in shapes.mark_dynamic.items():
        for name, value in inputs.items():
            if matches(pattern, name):
                marks.append(Mark(argument=name, dims=_dims(name, value, dims), nested=not _is_tensor(value)))
    return tuple(marks)


def _dims(name: str, value: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions counted from 0."""
    from torch.utils._pytree import tree_leaves

    ranks = {leaf.dim() for leaf in tree_leaves(value) if _is_tensor(leaf)}
    if len(ranks) > 1 and any(dim < 0 for dim in dims):
        raise ConfigError(
            f"shapes.mark_dynamic.{name} cannot be ejected: its tensors have {listed(map(str, sorted(ranks)))} "
            "dimensions, and a dimension counted from the end is another one in each. Count from 0."
        )
    return tuple(dim % next(iter(ranks)) if dim < 0 else dim for dim in dims)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def options_of(experiment: Experiment) -> dict[str, Any]:
    """{genuine dotted path: value} of what differs from the defaults, in the order of the table."""
    return {EVERY_LEAF[path].genuine_path: value for path, value in experiment.compiler.changed().items()}
