"""Adapts operators to what a device takes, rule by rule, as `conf/adapt` asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Outcome, Pass, Request
from npucompose.schema.adapt import RuleSet
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.options import option

if TYPE_CHECKING:
    from torch import fx


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
        from npucompose.passes.adapt.engine import apply

        return apply(request.graph_module.graph, self.rules, request.can, check=request.check)

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> Outcome:
        from npucompose.passes.adapt.engine import apply

        return apply(graph, self.rules, can)
