"""Limits the cores that operators may use (TorchAir's limit_core_num)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.errors import PlanError
from npucompose.passes.base import Pass
from npucompose.passes.regions import OnNoMatch, Run, enclose, runs
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import CoreRegion
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class CoreLimit(Pass):
    """Let the operators of a region run on so many cores, so that another stream finds the rest free.

    before:  a = mm(x, y);  b = relu(a);  return b
    after:   scope_enter(['_op_aicore_num', '_op_vectorcore_num'], ['8', '16']);  a = mm(x, y);  scope_exit()
             b = relu(a);  return b

    GE writes the two attributes on its nodes; captured graphs set the limit of the current stream and take it back. A
    kernel belongs to the first region that matches it, and the edge of a stream scope ends a region.
    """

    name: ClassVar[str] = "core_limit"
    after: ClassVar[tuple[str, ...]] = ("cse", "dead_code", "remove_noop", "stream_plan")
    acts_in: ClassVar[tuple[str, ...]] = (GE, ACLGRAPH, NPUGRAPH_EX)
    uses: ClassVar[str] = "core_limits"

    regions: tuple[CoreRegion, ...] = option((), "[{aicore: 8, vectorcore: 16, match: {target: aten.mm}}]")
    on_no_match: OnNoMatch = option("error", "when a region finds no kernel", choices=("error", "warn"))

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        if not can.core_limits:
            return 0
        beyond = [why for region in self.regions if (why := can.device_model.lacks(region.aicore, region.vectorcore))]
        if beyond:
            raise PlanError("cores", f"passes.core_limit.regions: {beyond[0]}, and a region asks for more.")
        matches = [region.match for region in self.regions]
        found = runs(graph, matches, where="passes.core_limit.regions", on_no_match=self.on_no_match)
        return enclose(graph, found, self._attributes, can)

    def _attributes(self, run: Run) -> dict[str, str]:
        from npucompose.graphs.scopes import core_scope

        keys, values = core_scope(self.regions[run.region])
        return dict(zip(keys, values, strict=True))
