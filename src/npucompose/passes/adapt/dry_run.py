"""The pass adapt as a dry run: it writes down what each rule does, and rejects nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen

from npucompose.passes.adapt import Adapt
from npucompose.passes.base import Outcome, Request
from npucompose.schema.adapted import Adaptation

if TYPE_CHECKING:
    from npucompose.passes.adapt.engine import Applied, Rejected


@frozen(kw_only=True)
class Written:
    """What was seen so far, over all graphs."""

    adaptations: list[Adaptation] = field(factory=list)
    untouched: list[str] = field(factory=list)
    graphs: list[str] = field(factory=list)


@frozen(kw_only=True)
class DryAdapt(Adapt):
    """`adapt` that tells `written` of every step."""

    written: Written = field(factory=Written, eq=False)

    def run(self, request: Request) -> Outcome:
        from npucompose.graphs.describe import node_text
        from npucompose.passes.adapt.engine import walk

        graph, name = request.graph_module.graph, f"graph_{len(self.written.graphs)}"
        self.written.graphs.append(name)
        named = {rule.op for rule in self.rules.rules}
        candidates = {node: node_text(node) for node in graph.nodes if str(node.target) in named}
        taken: set[str] = set()

        def see(one: Applied | Rejected) -> None:
            taken.add(one.node.name)
            self.written.adaptations.append(_adaptation(one, name))

        counts, _ = walk(graph, self.rules, request.can, see)
        self.written.untouched.extend(text for node, text in candidates.items() if node.name not in taken)
        return Outcome(matches=sum(count["matches"] for count in counts.values()), exact=False)


def _adaptation(one: Applied | Rejected, graph: str) -> Adaptation:
    from npucompose.graphs.describe import node_text
    from npucompose.graphs.source import source_line
    from npucompose.passes.adapt.engine import Rejected

    rule, node = one.rule, one.node
    told = Adaptation(
        graph=graph,
        rule=rule.name,
        kind=rule.kind,
        op=rule.op,
        node=node.name,
        source=source_line(node),
        before=node_text(node),
    )
    if isinstance(one, Rejected):
        return attrs.evolve(told, rejected=one.told)
    contract = one.rule.contract
    return attrs.evolve(
        told,
        after=tuple(node_text(made) for made in one.made),
        rtol=contract.rtol,
        atol=contract.atol,
        range_check=contract.range_check,
    )
