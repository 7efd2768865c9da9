"""Adapts operators to what a device takes, rule by rule, as `conf/adapt` asks: the pass, and its dry run.

What a rule may say is schema/adapt.py, where it matches graphs/matching.py; here it is only applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import field, frozen

from npucompose.passes.base import Outcome, Pass, Request
from npucompose.results.graphs import Adaptation
from npucompose.schema.adapt import RuleSet
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx

    from npucompose.passes.adapt.engine import Applied, Rejected


@frozen(kw_only=True)
class Adapt(Pass):
    """Put what a device takes in the place of what it does not take.

    before:  y = paddle.relu_grad(out, dout)
    after:   y = aten.threshold_backward(dout, out, 0.0)        (rule: kind fill_args, args [$dout, $out, 0.0])

    The rules come from the experiment's `adapt`; for each node the one with the highest priority that matches is
    applied, and what it made is looked at again, but never by a rule that it descends from. A rule of kind `reject`
    that matches is an error with the node and the model's line. New nodes keep the old one's stack trace and module
    path. Results keep their dtype, their strides and, as far as the rule's contract says, their bits.
    """

    name: ClassVar[str] = "adapt"
    exact: ClassVar[bool] = False
    before: ClassVar[tuple[str, ...]] = ("cancel_moves", "replace", "cse", "dead_code", "remove_noop", "stream_plan")

    rules: RuleSet = option(factory=RuleSet, doc="what to adapt", from_experiment="adapt")

    def run(self, request: Request) -> Outcome:
        return self.rewrite(request.graph_module.graph, request.can, check=request.check)

    def rewrite(self, graph: fx.Graph, can: Capabilities, *, check: bool = False) -> Outcome:
        from npucompose.passes.adapt.engine import apply

        return apply(graph, self.rules, can, check=check)


@frozen(kw_only=True)
class AdaptationLog:
    """What was seen so far, over all graphs."""

    adaptations: list[Adaptation] = field(factory=list)
    untouched: list[str] = field(factory=list)
    graphs: list[str] = field(factory=list)


@frozen(kw_only=True)
class DryAdapt(Adapt):
    """`adapt` as a dry run: it writes down what each rule does, and rejects nothing."""

    written: AdaptationLog = field(factory=AdaptationLog, eq=False)

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
    from npucompose.graphs.matching import source_line
    from npucompose.passes.adapt.engine import Rejected

    rule, node = one.rule, one.node
    if isinstance(one, Rejected):
        more: dict[str, Any] = {"rejected": one.message}
    else:
        contract, after = one.rule.contract, tuple(node_text(made) for made in one.made)
        more = {"after": after, **attrs.asdict(contract)}
    return Adaptation(
        graph=graph,
        rule=rule.name,
        kind=rule.kind,
        op=rule.op,
        node=node.name,
        source=source_line(node),
        before=node_text(node),
        **more,
    )
