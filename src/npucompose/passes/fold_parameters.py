"""Computes once, when the graph is compiled, what only parameters decide: casts and copies of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.passes.base import Constant, Constants, Outcome, Pass, Request
from npucompose.results.graphs import FoldFacts
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import fx


@frozen(kw_only=True)
class FoldParameters(Pass):
    """Put a constant in the place of a permuted, copied or cast parameter.

    before:  t = permute(weight, [1, 0]);  c = clone(t);  return mm(x, c)
    after:   c = get_attr folded_0;  return mm(x, c)

    Whoever asks for this pass freezes the parameters: what is written into one afterwards (an optimiser's step, weights
    that are loaded) is not seen by the compiled model. Parameters that the graph itself writes, or whose memory it
    writes through another tensor, are left alone; so are buffers unless `buffers=true`, because a model's own code
    often updates them between calls. Views alone are not folded: they cost nothing. Every bit is kept; each constant
    takes memory of its own beside the parameter, which the report adds up.
    """

    name: ClassVar[str] = "fold_parameters"
    skips_planned: ClassVar[bool] = True
    after: ClassVar[tuple[str, ...]] = ("adapt", "cancel_moves", "replace")
    before: ClassVar[tuple[str, ...]] = ("stream_plan",)
    freezes: ClassVar[bool] = True
    uses: ClassVar[str] = "constants"

    buffers: bool = option(False, "fold buffers too: promises that nothing writes them between calls")

    def run(self, request: Request) -> Outcome:
        module = request.graph_module
        if not request.can.constants:
            return Outcome(matches=0)
        folded = list(self._foldable(module.graph, request.constants))
        for node, _, value in folded:
            _put_in(module, node, value)
        return Outcome(
            matches=len(folded),
            folds=FoldFacts(
                parameters=tuple(dict.fromkeys(name for _, name, _ in folded)),
                bytes=sum(value.untyped_storage().nbytes() for _, _, value in folded),
            ),
        )

    def _foldable(self, graph: fx.Graph, constants: Constants) -> Iterator[tuple[fx.Node, str, torch.Tensor]]:
        """(node, the placeholder that it is computed of, its value), for the last of a chain of moves."""
        from npucompose.graphs import Aliases
        from npucompose.passes.cancel_transposes.moves import is_move, moves_of, perm_of, source_of

        aliases = Aliases.from_graph(graph)
        written = {_memory(constants[n.name].value) for n in graph.nodes
                   if n.name in constants and not aliases.is_quiet(n)}  # fmt: skip
        outputs = aliases.of_all(next(iter(reversed(graph.nodes))).all_input_nodes)
        values: dict[fx.Node, tuple[str, torch.Tensor]] = {}
        for node in graph.nodes:
            if node.op == "placeholder" and self._frozen(constants.get(node.name), written):
                values[node] = (node.name, constants[node.name].value)
        for node in moves_of(graph):
            if source_of(node) in values:
                name, given = values[source_of(node)]
                values[node] = (name, _computed(node, given))
        for node in values:
            if node.op == "placeholder" or perm_of(node) is not None:
                continue
            shared = aliases.of_all([node])
            alone = outputs.isdisjoint(shared) and aliases.written.isdisjoint(shared)
            if alone and any(user not in values or not is_move(user) for user in node.users):
                yield node, *values[node]

    def _frozen(self, constant: Constant | None, written: Collection[int]) -> bool:
        if constant is None or not (constant.kind == "parameter" or self.buffers):
            return False
        return _memory(constant.value) not in written

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        raise TypeError("folding needs the parameters' values: use run")


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _computed(node: fx.Node, given: torch.Tensor) -> torch.Tensor:
    """The operator on the parameter itself; passes run while torch traces, which is put away meanwhile."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    target: Any = node.target
    with _disable_current_modes(), torch.no_grad():
        return target(given, *node.args[1:], **node.kwargs)


def _put_in(module: fx.GraphModule, node: fx.Node, value: torch.Tensor) -> None:
    from npucompose.passes.cancel_transposes.moves import Editor
    from npucompose.passes.metadata import fake_mode_of

    name = next(name for at in count() if not hasattr(module, name := f"folded_{at}"))
    module.register_buffer(name, value, persistent=False)
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta.update(node.meta)
    mode = fake_mode_of(node)
    if mode is not None:  # later steps run operators on fake values, and this one is real: as Inductor's own freezing
        mode.allow_non_fake_inputs = True
    node.replace_all_uses_with(constant)
    Editor(module.graph, writes=False).sweep([node])
