"""The text of an ejected script, section by section. Knows how Python is written, and nothing of graphs."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.passes.base import Stage
from npucompose.recipe import header, node_filters
from npucompose.recipe.ejected import Mark, Parts, options_of
from npucompose.schema.compiler import EVERY_LEAF, LEAVES
from npucompose.schema.genuine import PREFIX
from npucompose.schema.leaf import NPUGRAPH_EX
from npucompose.schema.verified import VERIFIED_TORCH_NPU
from npucompose.schema.versions import tree_of
from npucompose.version import __version__

if TYPE_CHECKING:
    from npucompose.recipe.freeze import FrozenGraph
    from npucompose.recipe.genuine import Package
    from npucompose.schema.leaf import Kind

STAGES: Mapping[Stage, str] = {"pre": "before TorchAir's own FX passes", "post": "after TorchAir's own FX passes"}
HOOKS: Mapping[Stage, str] = {"pre": "post_grad_custom_pre_pass", "post": "post_grad_custom_post_pass"}


def text(parts: Parts) -> str:
    """The whole script."""
    sections = [_top(parts), _imports(parts), *_logs(parts), *_carried(parts), *_passes(parts), *_filter(parts)]
    sections += [*_configuration(parts), *_marking(parts), _compiled(parts)]
    return _double_quoted("\n\n\n".join("\n".join(lines) for lines in sections) + "\n")


def _double_quoted(source: str) -> str:
    """Text in double quotes, as formatters want it; `repr` prefers single ones. What holds a quote stays as it is.

    So does text inside an f-string, which Python 3.12 reads as tokens of its own: older ones need another quote there.
    """
    lines = source.splitlines(keepends=True)
    inside = 0
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        inside += (tokenize.tok_name[token.type] == "FSTRING_END") - (tokenize.tok_name[token.type] == "FSTRING_START")
        (row, start), (last, end) = token.start, token.end
        plain = row == last and not inside and not set(token.string[1:-1]) & set("\"'\\")
        if token.type == tokenize.STRING and token.string.startswith("'") and plain:
            line = lines[row - 1]
            lines[row - 1] = f'{line[:start]}"{token.string[1:-1]}"{line[end:]}'
    return "".join(lines)


def _top(parts: Parts) -> list[str]:
    words = "torch and torch_npu" if _flat(parts) else f"torch, torch_npu and {_package(parts)}"
    unproven = parts.torch_npu not in VERIFIED_TORCH_NPU
    return [
        f'"""What an npucompose experiment does, with {words} alone (npucompose {__version__}).',
        "",
        *([f"The options are named as in torch_npu {parts.torch_npu}, on which this was not run.", ""] * unproven),
        "    fast = compiled(model, inputs)      # inputs: {argument of forward: value}, as for the first call",
        "    with torch.no_grad():",
        "        y = fast(**inputs)",
        '"""',
        "",
        *header.written(parts.recipe),
    ]


def _package(parts: Parts) -> Package:
    return "npugraph_ex" if parts.experiment.mode.name == NPUGRAPH_EX else "torchair"


def _flat(parts: Parts) -> bool:
    """npugraph_ex takes a flat dict of options and has operators of its own; torchair, and npugraph_ex up to torch_npu
    2.8.0, take a tree of attributes, and their operators are air's.
    """
    own = (path.removeprefix(PREFIX) for path in tree_of(parts.torch_npu) if path.startswith(PREFIX))
    return _package(parts) == NPUGRAPH_EX and not any("." in path for path in own)


def _imports(parts: Parts) -> list[str]:
    whole: list[str] = []
    names = ["from typing import Any"]
    if parts.graphs:
        whole += ["import hashlib", "import operator  # noqa: F401  edits may name its functions", "import re"]
        names.append("from contextlib import nullcontext")
    if parts.experiment.logs.levels:
        whole.append("import logging")
    if _filters(parts):
        whole.append("import fnmatch")
        names.append("from collections.abc import Callable")
    torch = ["import torch", *(["from torch.fx.node import has_side_effect"] if _orders_streams(parts) else [])]
    brought = [] if _flat(parts) else [f"import {_package(parts)}"]
    brought.insert(_package(parts) == NPUGRAPH_EX, "import torch_npu  # noqa: F401  brings the device")
    return ["from __future__ import annotations", "", *sorted(whole), *sorted(names), "", *torch, *brought]


def _logs(parts: Parts) -> Iterator[list[str]]:
    logs = parts.experiment.logs
    lines = [f"logging.getLogger({name!r}).setLevel(logging.{level})" for name, level in logs.levels.items()]
    if logs.artifacts:
        lines.append(f"torch._logging.set_logs({', '.join(f'{name}=True' for name in logs.artifacts)})")
    if lines:
        yield lines


def _carried(parts: Parts) -> Iterator[list[str]]:
    """The fingerprint and the edits, pasted as they are tested."""
    if not parts.graphs:
        return
    from npucompose.recipe import carried

    source = inspect.getsource(carried)
    yield [
        "# How a graph is recognised and edited.",
        *source[source.index("def graph_fingerprint") :].rstrip().split("\n"),
    ]
    if _orders_streams(parts):
        from npucompose.recipe import carried_events

        source = inspect.getsource(carried_events)
        yield source[source.index("AIR = ") :].rstrip().split("\n")


def _orders_streams(parts: Parts) -> bool:
    """The script is for npugraph_ex, which brings the operators of scopes and not the events that it looks for."""
    edits = (
        edit for graphs in parts.graphs.values() for graph in graphs for made in graph.edits.values() for edit in made
    )
    return _flat(parts) and any("torch.ops.air.record" in edit for edit in edits)


def _passes(parts: Parts) -> Iterator[list[str]]:
    for stage, graphs in parts.graphs.items():
        for index, graph in enumerate(graphs):
            yield _edits(parts, stage, index, graph)
        labels = _labels(graphs)
        yield [
            f"def {stage}_pass(graph_module: Any, example_inputs: Any, config: Any) -> None:",
            f'    """{labels}, frozen; {STAGES[stage]}."""',
            *(["    define_events()"] if _orders_streams(parts) else []),
            f"    apply_frozen(graph_module, {stage.upper()}, {labels!r})",
            "",
            "",
            f"{stage.upper()} = {{",
            *(f"    {graph.fingerprint!r}: {stage}_edits_{index}," for index, graph in enumerate(graphs)),
            "}",
        ]


def _labels(graphs: Sequence[FrozenGraph]) -> str:
    return ", ".join(dict.fromkeys(label for graph in graphs for label in graph.edits))


def _edits(parts: Parts, stage: Stage, index: int, graph: FrozenGraph) -> list[str]:
    lines = [
        f"def {stage}_edits_{index}(edit: GraphEdit) -> None:",
        f'    """The graph {graph.fingerprint[:12]} of {graph.nodes} nodes."""',
    ]
    for label, edits in graph.edits.items():
        lines.append(f"    # {label}" if edits else f"    # {label}: nothing to do")
        for edit in edits:
            there = re.sub(r"\btorch\.ops\.air\.scope", "torch.ops.npugraph_ex.scope", edit) if _flat(parts) else edit
            lines += _wrapped(there, 4)
    return lines


def _wrapped(call: str, indent: int, width: int = 120) -> list[str]:
    """`f(a, b)` on one line, or one argument a line where it is longer than `width`."""
    pad = " " * indent
    if len(pad) + len(call) <= width or not call.endswith(")"):
        return [pad + call]
    opened = call.index("(") + 1
    return [pad + call[:opened], *(f"{pad}    {part}," for part in _split(call[opened:-1])), f"{pad})"]


def _split(arguments: str) -> list[str]:
    """The arguments of a call, at its own commas only."""
    import ast

    tree = ast.parse(f"f({arguments})", mode="eval").body
    assert isinstance(tree, ast.Call)
    parts = [ast.unparse(a) for a in tree.args]
    return parts + [f"{k.arg}={ast.unparse(k.value)}" for k in tree.keywords]


def _configuration(parts: Parts) -> Iterator[list[str]]:
    options = options_of(parts.experiment)
    pools = _paths_of("pool")
    lines = [
        f"    pools = {{{value!r}: torch.npu.graph_pool_handle()}}" for path, value in options.items() if path in pools
    ]
    values = {path: _plain(value) for path, value in options.items()}
    values |= {path: f"pools[{value!r}]" for path, value in options.items() if path in pools}
    values |= {path: f"node_filter({options[path]!r})" for path in _filters(parts)}
    values |= {HOOKS[stage]: f"{stage}_pass" for stage in parts.graphs}
    if _flat(parts):
        if values:
            body = [f"        {path!r}: {value}," for path, value in values.items()]
            doc = '    """What torch.compile(backend="npugraph_ex") is told; all else stays at its default."""'
            yield ["def options() -> dict[str, Any]:", doc, *lines, "    return {", *body, "    }"]
        return
    mode, package = parts.experiment.mode.name, _package(parts)
    values = {**({} if mode == LEAVES["mode"].default else {"mode": repr(mode)}), **values}
    yield [
        f"def compiler_config() -> {package}.CompilerConfig:",
        '    """What TorchAir is told; all else stays at its default."""',
        *lines,
        f"    config = {package}.CompilerConfig()",
        *(f"    config.{path} = {value}" for path, value in values.items()),
        "    return config",
    ]


def _paths_of(kind: Kind) -> frozenset[str]:
    """Genuine paths of all options of a kind."""
    return frozenset(leaf.genuine_path for leaf in EVERY_LEAF.values() if leaf.kind == kind)


def _filters(parts: Parts) -> list[str]:
    """Genuine paths of the options that are set and that are functions of nodes."""
    return [path for path in options_of(parts.experiment) if path in _paths_of("names")]


def _filter(parts: Parts) -> Iterator[list[str]]:
    """The function that makes a filter of patterns, pasted."""
    if not _filters(parts):
        return
    yield node_filters.source().split("\n")


def _plain(value: Any) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


def _marking(parts: Parts) -> Iterator[list[str]]:
    if not _marks_inputs(parts):
        return
    lines = [
        "def mark(inputs: dict[str, Any]) -> None:",
        '    """Which sizes may change from call to call; to be said of the very tensors of the first call."""',
    ]
    for mark in parts.marks:
        lines += _mark(mark)
    for argument, gears in parts.gears.items():
        lines.append(f"    torchair.inference.set_dim_gears(inputs[{argument!r}], {dict(gears)!r})")
    yield lines


def _marks_inputs(parts: Parts) -> bool:
    return bool(parts.marks or parts.gears)


def _mark(mark: Mark) -> list[str]:
    argument = f"inputs[{mark.argument!r}]"
    subject = "tensor" if mark.nested else argument
    calls = [f"torch._dynamo.mark_static({subject})"]
    if mark.dims is not None:
        calls = [f"torch._dynamo.mark_dynamic({subject}, {dim})" for dim in mark.dims]
    if not mark.nested:
        return [f"    {call}" for call in calls]
    return [
        f"    for tensor in torch.utils._pytree.tree_leaves({argument}):",
        "        if isinstance(tensor, torch.Tensor):",
        *(f"            {call}" for call in calls),
    ]


def _compiled(parts: Parts) -> list[str]:
    experiment = parts.experiment
    backend = '"npugraph_ex"' if _flat(parts) else "backend"
    made = f"{_package(parts)}.get_npu_backend(compiler_config=compiler_config())"
    keywords = f"dynamic={experiment.shapes.dynamic}, fullgraph={experiment.compile.fullgraph}"
    options = ", options=options()" if _flat(parts) and (parts.graphs or options_of(experiment)) else ""
    return [
        "def compiled(model: Any, inputs: dict[str, Any]) -> Any:",
        '    """Your model goes here, in eval mode and on the device, with the inputs of the first call."""',
        *(["    mark(inputs)"] if _marks_inputs(parts) else []),
        *([] if _flat(parts) else [f"    backend = {made}"]),
        f"    return torch.compile(model, backend={backend}, {keywords}{options})",
    ]
