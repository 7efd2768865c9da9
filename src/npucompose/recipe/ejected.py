"""An experiment as a plain Python script: torch, torch_npu and torchair only, for people who will not install this.

What stands in the script is worked out here; the script itself is templates/script.py.jinja.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from npucompose.compose.calls import gears_of
from npucompose.compose.check import Checked, check
from npucompose.compose.references import CLOSED, Environment
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError, listed, raise_for
from npucompose.passes.base import Stage
from npucompose.recipe import header
from npucompose.recipe.python_text import Code, call, item, one_line, written
from npucompose.recipe.vendor_options import filter_source
from npucompose.schema.experiment import CompileKeywords, Experiment, Shapes
from npucompose.table.modes import GE, NPUGRAPH_EX
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES
from npucompose.vendor.option_specs import PREFIX
from npucompose.vendor.versions import REFERENCE, tree_of
from npucompose.version import VERIFIED_TORCH_NPU, __version__

if TYPE_CHECKING:
    from npucompose.recipe.freeze import FrozenGraph

STAGES: Mapping[Stage, str] = {"pre": "before TorchAir's own FX passes", "post": "after TorchAir's own FX passes"}
HOOKS: Mapping[Stage, str] = {"pre": "post_grad_custom_pre_pass", "post": "post_grad_custom_post_pass"}
CARRIED: Mapping[type[Any], frozenset[str]] = {
    Experiment: frozenset(header.SECTIONS)
    | {
        "pipeline",
        "benchmark",
        "padding",
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
class InputMark:
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
    marks: tuple[InputMark, ...] = ()
    gears: Mapping[str, Mapping[int, Sequence[int]]] = {}
    """{argument: {dimension: sizes}}."""
    graphs: Mapping[Stage, tuple[FrozenGraph, ...]] = {}


def eject(
    *overrides: str,
    config_dirs: Sequence[str] = (),
    config_name: str = "config",
    environment: Environment = CLOSED,
) -> str:
    """The script for an experiment; ConfigError names whatever a script cannot say.

    `eject("mode=reduce-overhead", "model=mm_abs_sub", "passes=stream_plan")`. With passes, the model is built and
    compiled here (on the null device: nothing is executed), because the edits of a pass are those of one graph.
    """
    composed = compose(overrides, config_dirs=config_dirs, config_name=config_name, environment=environment)
    return script_of(composed, check(composed))


def script_of(composed: Composed, checked: Checked) -> str:
    """The script of an experiment that is composed and checked already."""
    _refuse(checked.experiment)
    recipe = header.from_tree(composed.tree)
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
    defaults = Experiment(mode=experiment.mode)
    for where, value, default in (
        ("", experiment, defaults),
        ("shapes.", experiment.shapes, defaults.shapes),
        ("compile.", experiment.compile, defaults.compile),
    ):
        problems += [
            f"{where}{field.name} cannot be ejected: no line of a script is known for it. Remove it."
            for field in attrs.fields(type(value))
            if field.name not in CARRIED[type(value)] and getattr(value, field.name) != getattr(default, field.name)
        ]
    raise_for(problems)


def _by_stage(graphs: Sequence[Mapping[Stage, FrozenGraph]]) -> dict[Stage, tuple[FrozenGraph, ...]]:
    """Each stage's graphs, equal ones once."""
    stages: dict[Stage, tuple[FrozenGraph, ...]] = {}
    for stage in ("pre", "post"):
        once = {g[stage].fingerprint: g[stage] for g in graphs if stage in g}
        if once:
            stages[stage] = tuple(once.values())
    return stages


def _marks(shapes: Shapes, inputs: Mapping[str, Any]) -> tuple[InputMark, ...]:
    """The patterns of the shape policy as argument names of this model."""
    import torch

    from npucompose.compose.calls import apply_shapes
    from npucompose.schema.streams import matches

    apply_shapes(shapes, inputs)  # says what is wrong with a pattern, in the words of a run
    marks = [
        InputMark(argument=name, nested=not isinstance(value, torch.Tensor))
        for name, value in inputs.items()
        if any(matches(pattern, name) for pattern in shapes.mark_static)
    ]
    for pattern, dims in shapes.mark_dynamic.items():
        for name, value in inputs.items():
            if matches(pattern, name):
                marks.append(
                    InputMark(argument=name, dims=_dims(name, value, dims), nested=not isinstance(value, torch.Tensor))
                )
    return tuple(marks)


def _dims(name: str, value: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions counted from 0."""
    from torch.utils._pytree import tree_leaves

    ranks = {leaf.dim() for leaf in tree_leaves(value) if hasattr(leaf, "dim")}
    if len(ranks) > 1 and any(dim < 0 for dim in dims):
        raise ConfigError(
            f"shapes.mark_dynamic.{name} cannot be ejected: its tensors have {listed(map(str, sorted(ranks)))} "
            "dimensions, and a dimension counted from the end is another one in each. Count from 0."
        )
    return tuple(dim % next(iter(ranks)) if dim < 0 else dim for dim in dims)


def text(parts: Parts) -> str:
    """The whole script."""
    flat, experiment = is_flat(parts), parts.experiment
    graphs = {stage: [_graph(graph, flat) for graph in found] for stage, found in parts.graphs.items()}
    edits = (edit for found in graphs.values() for graph in found for made in graph["edits"].values() for edit in made)
    orders_streams = flat and any("torch.ops.air.record" in edit for edit in edits)
    return written(
        "script.py.jinja",
        about=_about(parts, flat),
        header=map(Code, header.written(parts.recipe)),
        logs=experiment.logs,
        package=_package(experiment),
        flat=flat,
        graphs=graphs,
        passes={stage: _pass(stage, found) for stage, found in parts.graphs.items()},
        orders_streams=orders_streams,
        carried=_carried(),
        filter_source=Code(filter_source()),
        marks=parts.marks,
        gears={name: {dim: list(sizes) for dim, sizes in found.items()} for name, found in parts.gears.items()},
        patches_collectives=experiment.target.options.get("patch_for_hcom"),
        **_configured(parts, flat),
    )


def _package(experiment: Experiment) -> str:
    return NPUGRAPH_EX if experiment.mode.name == NPUGRAPH_EX else "torchair"


def is_flat(parts: Parts) -> bool:
    """npugraph_ex takes a flat dict of options and has operators of its own; torchair, and npugraph_ex up to torch_npu
    2.8.0, take a tree of attributes, and their operators are air's.
    """
    own = (path.removeprefix(PREFIX) for path in tree_of(parts.torch_npu) if path.startswith(PREFIX))
    return parts.experiment.mode.name == NPUGRAPH_EX and not any("." in path for path in own)


def _about(parts: Parts, flat: bool) -> str:
    words = "torch and torch_npu" if flat else f"torch, torch_npu and {_package(parts.experiment)}"
    unproven = f"The options are named as in torch_npu {one_line(parts.torch_npu)}, on which this was not run."
    doc = [
        f"What an npucompose experiment does, with {words} alone (npucompose {__version__}).",
        "",
        *([unproven, ""] if parts.torch_npu not in VERIFIED_TORCH_NPU else []),
        "    fast = compiled(model, inputs)      # inputs: {argument of forward: value}, as for the first call",
        "    with torch.no_grad():",
        "        y = fast(**inputs)",
        "",
    ]
    return "\n".join(doc)


def _carried() -> Code:
    """The functions that scripts carry, as they are tested."""
    source = files("npucompose.recipe").joinpath("carried.py").read_text("utf-8")
    return Code(source[source.index("def graph_fingerprint") :].rstrip())


def _graph(graph: FrozenGraph, flat: bool) -> dict[str, Any]:
    return {
        "doc": f"The graph {one_line(graph.fingerprint[:12])} of {graph.nodes} nodes.",
        "fingerprint": graph.fingerprint,
        "edits": {label: [_renamed(e) if flat else Code(e) for e in edits] for label, edits in graph.edits.items()},
    }


def _renamed(edit: str) -> Code:
    """Scopes are npugraph_ex's own; its other operators of streams are air's."""
    for node in ast.walk(ast.parse(edit, mode="eval")):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.ops.air.scope_"):
            operator = ast.get_source_segment(edit, node) or ""
            return Code(edit.replace(operator, operator.replace("air", NPUGRAPH_EX, 1), 1))
    return Code(edit)


def _pass(stage: Stage, graphs: Sequence[FrozenGraph]) -> dict[str, Any]:
    labels = one_line(", ".join(dict.fromkeys(label for graph in graphs for label in graph.edits)))
    apply = call("apply_frozen", Code("graph_module"), Code(stage.upper()), labels)
    return {"doc": f"{labels}, frozen; {STAGES[stage]}.", "apply": apply}


def _configured(parts: Parts, flat: bool) -> dict[str, Any]:
    """The options, the pools and filters among them, and the call that compiles with them."""
    experiment, package = parts.experiment, _package(parts.experiment)
    mode, changed = experiment.mode.name, experiment.compiler.changed()
    kinds = {path: EVERY_LEAF[path].kind for path in changed}
    options: dict[str, Any] = {} if flat or mode == LEAVES["mode"].default else {"mode": mode}
    options |= {EVERY_LEAF[path].genuine_path: _value(kinds[path], value) for path, value in changed.items()}
    options |= {HOOKS[stage]: Code(f"{stage}_pass") for stage in parts.graphs}
    config = Code("compiler_config()")
    given = {"options": Code("options()")} if flat and options else {}
    backend = None if flat or experiment.compile.cache else call(f"{package}.get_npu_backend", compiler_config=config)
    keywords: dict[str, Any] = {"dynamic": experiment.shapes.dynamic, "fullgraph": experiment.compile.fullgraph}
    made = call("torch.compile", Code("model"), backend=Code("backend") if backend else package, **keywords, **given)
    if experiment.compile.cache:  # its graphs lie in .torchair_cache or TORCHAIR_CACHE_HOME (torch_npu 2.13.0)
        function = f"{'torch.npu.npugraph_ex' if flat else package}.inference.cache_compile"
        given = given if flat else {"config": config}
        made = call(function, Code("model.forward"), dynamic=bool(experiment.shapes.dynamic), **given)
    return {
        "options": options,
        "pools": {v: call("torch.npu.graph_pool_handle") for path, v in changed.items() if kinds[path] == "pool"},
        "filters": "names" in kinds.values(),
        "backend": backend,
        "made": made,
    }


def _value(kind: str, value: Any) -> Any:
    if kind in ("pool", "names"):
        return item("pools", value) if kind == "pool" else call("node_filter", value)
    return list(value) if isinstance(value, tuple) else value
