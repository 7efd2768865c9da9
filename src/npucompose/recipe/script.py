"""An ejected script, section by section, as a tree; `python_text` writes it. Knows nothing of graphs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npucompose.passes.base import Stage
from npucompose.recipe import header
from npucompose.recipe.ejected import Mark, Parts, options_of
from npucompose.recipe.genuine import filter_source
from npucompose.recipe.python_text import (
    Blank,
    Block,
    Comment,
    Function,
    Part,
    Pasted,
    Remarked,
    assigned,
    call,
    dotted,
    item,
    literal,
    name,
    ours,
    said,
    said_alone,
    written,
)
from npucompose.table.modes import NPUGRAPH_EX
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES
from npucompose.vendor.option_specs import PREFIX
from npucompose.vendor.versions import tree_of
from npucompose.version import VERIFIED_TORCH_NPU, __version__

if TYPE_CHECKING:
    from npucompose.recipe.freeze import FrozenGraph
    from npucompose.recipe.genuine import Package
    from npucompose.vendor.option_specs import Kind

STAGES: Mapping[Stage, str] = {"pre": "before TorchAir's own FX passes", "post": "after TorchAir's own FX passes"}
HOOKS: Mapping[Stage, str] = {"pre": "post_grad_custom_pre_pass", "post": "post_grad_custom_post_pass"}


def text(parts: Parts) -> str:
    """The whole script."""
    sections = [_top(parts), _imports(parts), *_logs(parts), *_carried(parts), *_passes(parts), *_filter(parts)]
    return written([*sections, *_configuration(parts), *_marking(parts), [_compiled(parts)]])


def _top(parts: Parts) -> list[Part]:
    words = "torch and torch_npu" if _flat(parts) else f"torch, torch_npu and {_package(parts)}"
    version = said(parts.torch_npu)
    unproven = parts.torch_npu not in VERIFIED_TORCH_NPU
    doc = [
        f"What an npucompose experiment does, with {words} alone (npucompose {__version__}).",
        "",
        *([f"The options are named as in torch_npu {version}, on which this was not run.", ""] * unproven),
        "    fast = compiled(model, inputs)      # inputs: {argument of forward: value}, as for the first call",
        "    with torch.no_grad():",
        "        y = fast(**inputs)",
        "",
    ]
    return [
        said_alone(ast.Constant("\n".join(doc))),
        Blank(),
        Block(tuple(header.written(parts.recipe))),
    ]


def _package(parts: Parts) -> Package:
    return "npugraph_ex" if parts.experiment.mode.name == NPUGRAPH_EX else "torchair"


def _flat(parts: Parts) -> bool:
    """npugraph_ex takes a flat dict of options and has operators of its own; torchair, and npugraph_ex up to torch_npu
    2.8.0, take a tree of attributes, and their operators are air's.
    """
    own = (path.removeprefix(PREFIX) for path in tree_of(parts.torch_npu) if path.startswith(PREFIX))
    return _package(parts) == NPUGRAPH_EX and not any("." in path for path in own)


def _imports(parts: Parts) -> list[Part]:
    whole: list[str] = []
    names = ["from typing import Any"]
    if parts.graphs:
        whole += ["import hashlib", "import operator", "import re"]
        names.append("from contextlib import nullcontext")
    if parts.experiment.logs.levels:
        whole.append("import logging")
    if _filters(parts):
        whole.append("import fnmatch")
        names.append("from collections.abc import Callable")
    torch = ["import torch", *(["from torch.fx.node import has_side_effect"] if _orders_streams(parts) else [])]
    brought = [] if _flat(parts) else [f"import {_package(parts)}"]
    brought.insert(_package(parts) == NPUGRAPH_EX, "import torch_npu")
    return [
        *_imported("from __future__ import annotations"),
        Blank(),
        *_imported(*sorted(whole), *sorted(names)),
        Blank(),
        *_imported(*torch, *brought),
    ]


REMARKS = {
    "import operator": "noqa: F401  edits may name its functions",
    "import torch_npu": "noqa: F401  brings the device",
}


def _imported(*lines: str) -> Iterator[Part]:
    for line in lines:
        statement = ours(line)
        yield Remarked(statement, REMARKS[line]) if line in REMARKS else statement


def _logs(parts: Parts) -> Iterator[list[Part]]:
    logs = parts.experiment.logs
    lines: list[Part] = []
    for logger, level in logs.levels.items():
        made = call("logging.getLogger", logger)
        set_level = ast.Attribute(made, "setLevel", ast.Load())
        lines.append(said_alone(ast.Call(set_level, [dotted(f"logging.{name(level)}")], [])))
    if logs.artifacts:
        lines.append(said_alone(call("torch._logging.set_logs", **dict.fromkeys(logs.artifacts, True))))
    if lines:
        yield lines


def _carried(parts: Parts) -> Iterator[list[Part]]:
    """The fingerprint and the edits, pasted as they are tested."""
    if not parts.graphs:
        return
    from npucompose.recipe import carried

    source = inspect.getsource(carried)
    yield [
        Comment("How a graph is recognised and edited."),
        Pasted(source[source.index("def graph_fingerprint") :]),
    ]
    if _orders_streams(parts):
        from npucompose.recipe import carried_events

        source = inspect.getsource(carried_events)
        yield [Pasted(source[source.index("AIR = ") :])]


def _orders_streams(parts: Parts) -> bool:
    """The script is for npugraph_ex, which brings the operators of scopes and not the events that it looks for."""
    edits = (
        edit for graphs in parts.graphs.values() for graph in graphs for made in graph.edits.values() for edit in made
    )
    return _flat(parts) and any("torch.ops.air.record" in edit for edit in edits)


def _passes(parts: Parts) -> Iterator[list[Part]]:
    for stage, graphs in parts.graphs.items():
        for index, graph in enumerate(graphs):
            yield [_edits(parts, stage, index, graph)]
        labels = said(", ".join(dict.fromkeys(label for graph in graphs for label in graph.edits)))
        table = stage.upper()
        yield [
            Function(
                f"{stage}_pass",
                "graph_module: Any, example_inputs: Any, config: Any",
                "None",
                f"{labels}, frozen; {STAGES[stage]}.",
                [
                    *([said_alone(call("define_events"))] if _orders_streams(parts) else []),
                    said_alone(call("apply_frozen", dotted("graph_module"), dotted(table), labels)),
                ],
            ),
            Blank(),
            Blank(),
            assigned(table, {g.fingerprint: dotted(f"{stage}_edits_{index}") for index, g in enumerate(graphs)}),
        ]


def _edits(parts: Parts, stage: Stage, index: int, graph: FrozenGraph) -> Function:
    body: list[Part] = []
    for label, edits in graph.edits.items():
        body.append(Comment(label if edits else f"{label}: nothing to do"))
        body += [said_alone(_renamed(_edit(edit)) if _flat(parts) else _edit(edit)) for edit in edits]
    doc = f"The graph {said(graph.fingerprint[:12])} of {graph.nodes} nodes."
    return Function(f"{stage}_edits_{index}", "edit: GraphEdit", "None", doc, body)


def _edit(line: str) -> ast.expr:
    """The call that `freeze` wrote, of a method of `edit`."""
    made = ast.parse(line, mode="eval").body
    assert isinstance(made, ast.Call)
    assert isinstance(made.func, ast.Attribute)
    assert isinstance(made.func.value, ast.Name)
    assert made.func.value.id == "edit"
    return made


def _renamed(edit: ast.expr) -> ast.expr:
    """Scopes are npugraph_ex's own; its other operators of streams are air's."""
    for node in ast.walk(edit):
        if isinstance(node, ast.Attribute) and node.attr == "air" and ast.unparse(node) == "torch.ops.air":
            scope = next(n for n in ast.walk(edit) if isinstance(n, ast.Attribute) and n.value is node)
            if scope.attr.startswith("scope"):
                node.attr = NPUGRAPH_EX
    return edit


def _configuration(parts: Parts) -> Iterator[list[Part]]:
    options = options_of(parts.experiment)
    pools = _paths_of("pool")
    handles = {value: call("torch.npu.graph_pool_handle") for path, value in options.items() if path in pools}
    lines: list[Part] = [assigned("pools", {value: handle}) for value, handle in handles.items()]
    values: dict[str, Any] = {path: _plain(value) for path, value in options.items()}
    values |= {path: item("pools", value) for path, value in options.items() if path in pools}
    values |= {path: call("node_filter", options[path]) for path in _filters(parts)}
    values |= {HOOKS[stage]: dotted(f"{stage}_pass") for stage in parts.graphs}
    if _flat(parts):
        if values:
            doc = 'What torch.compile(backend="npugraph_ex") is told; all else stays at its default.'
            yield [Function("options", "", "dict[str, Any]", doc, [*lines, ast.Return(literal(values))])]
        return
    mode, package = parts.experiment.mode.name, _package(parts)
    values = {**({} if mode == LEAVES["mode"].default else {"mode": mode}), **values}
    lines.append(assigned("config", call(f"{package}.CompilerConfig")))
    lines += [assigned(f"config.{path}", value) for path, value in values.items()]
    lines.append(ours("return config"))
    doc = "What TorchAir is told; all else stays at its default."
    yield [Function("compiler_config", "", f"{package}.CompilerConfig", doc, lines)]


def _paths_of(kind: Kind) -> frozenset[str]:
    """Genuine paths of all options of a kind."""
    return frozenset(leaf.genuine_path for leaf in EVERY_LEAF.values() if leaf.kind == kind)


def _filters(parts: Parts) -> list[str]:
    """Genuine paths of the options that are set and that are functions of nodes."""
    return [path for path in options_of(parts.experiment) if path in _paths_of("names")]


def _filter(parts: Parts) -> Iterator[list[Part]]:
    """The function that makes a filter of patterns, pasted."""
    if _filters(parts):
        yield [Pasted(filter_source())]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _marking(parts: Parts) -> Iterator[list[Part]]:
    if not _marks_inputs(parts):
        return
    lines: list[Part] = [line for mark in parts.marks for line in _mark(mark)]
    for argument, gears in parts.gears.items():
        sizes = {dim: list(sizes) for dim, sizes in gears.items()}
        lines.append(said_alone(call("torchair.inference.set_dim_gears", item("inputs", argument), sizes)))
    doc = "Which sizes may change from call to call; to be said of the very tensors of the first call."
    yield [Function("mark", "inputs: dict[str, Any]", "None", doc, lines)]


def _marks_inputs(parts: Parts) -> bool:
    return bool(parts.marks or parts.gears)


def _mark(mark: Mark) -> list[ast.stmt]:
    argument = item("inputs", mark.argument)
    subject = dotted("tensor") if mark.nested else argument
    calls = [said_alone(call("torch._dynamo.mark_static", subject))]
    if mark.dims is not None:
        calls = [said_alone(call("torch._dynamo.mark_dynamic", subject, dim)) for dim in mark.dims]
    if not mark.nested:
        return calls
    tensors = call("torch.utils._pytree.tree_leaves", argument)
    within = ast.If(call("isinstance", dotted("tensor"), dotted("torch.Tensor")), calls, [])
    return [ast.For(ast.Name("tensor", ast.Store()), tensors, [within], [])]


def _compiled(parts: Parts) -> Function:
    experiment = parts.experiment
    lines: list[Part] = [said_alone(call("mark", dotted("inputs")))] if _marks_inputs(parts) else []
    if experiment.target.options.get("patch_for_hcom"):
        lines.insert(0, said_alone(call("torchair.patch_for_hcom")))
    lines += _cached(parts) if experiment.compile.cache else _not_cached(parts)
    return Function(
        "compiled",
        "model: Any, inputs: dict[str, Any]",
        "Any",
        "Your model goes here, in eval mode and on the device, with the inputs of the first call.",
        lines,
    )


def _not_cached(parts: Parts) -> list[Part]:
    made = call(f"{_package(parts)}.get_npu_backend", compiler_config=call("compiler_config"))
    keywords: dict[str, Any] = {
        "backend": NPUGRAPH_EX if _flat(parts) else dotted("backend"),
        "dynamic": parts.experiment.shapes.dynamic,
        "fullgraph": parts.experiment.compile.fullgraph,
        **_flat_options(parts),
    }
    compiled = ast.Return(call("torch.compile", dotted("model"), **keywords))
    return [compiled] if _flat(parts) else [assigned("backend", made), compiled]


def _cached(parts: Parts) -> list[Part]:
    """cache_compile, which keeps graphs in .torchair_cache or where TORCHAIR_CACHE_HOME says (torch_npu 2.13.0)."""
    given: dict[str, Any] = _flat_options(parts) if _flat(parts) else {"config": call("compiler_config")}
    package = "torch.npu.npugraph_ex" if _flat(parts) else _package(parts)
    dynamic = bool(parts.experiment.shapes.dynamic)
    return [ast.Return(call(f"{package}.inference.cache_compile", dotted("model.forward"), dynamic=dynamic, **given))]


def _flat_options(parts: Parts) -> dict[str, Any]:
    """The keyword with npugraph_ex's options, where there are any."""
    asked = _flat(parts) and (parts.graphs or options_of(parts.experiment))
    return {"options": call("options")} if asked else {}
