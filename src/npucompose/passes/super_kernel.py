"""Marks operators that GE fuses into one super kernel (TorchAir's super_kernel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.passes.regions import OnNoMatch, Run, enclose, runs
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import SuperKernelRegion
from npucompose.table.modes import GE
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class SuperKernel(Pass):
    """Put a region's operators into the scope of a super kernel.

    before:  a = sigmoid(x);  b = a * 2;  return b
    after:   scope_enter(['_super_kernel_scope', '_super_kernel_options'], ['sk', '']);  a = sigmoid(x);  b = a * 2
             scope_exit();  return b

    GE only (max-autotune, static shapes); captured graphs fuse by an option of their own. Operators of a region that
    do not stand side by side make several super kernels: sk, sk_1, …
    """

    name: ClassVar[str] = "super_kernel"
    after: ClassVar[tuple[str, ...]] = ("cse", "dead_code", "remove_noop", "stream_plan")
    acts_in: ClassVar[tuple[str, ...]] = (GE,)
    uses: ClassVar[str] = "super_kernels"
    elsewhere: ClassVar[str] = (
        "captured graphs fuse with compiler.experimental_config.aclgraph._super_kernel_optimize=true "
        "(mode=reduce-overhead) or compiler.npugraph_ex.super_kernel_optimize=true (mode=npugraph_ex)"
    )

    regions: tuple[SuperKernelRegion, ...] = option((), "[{scope: attention, match: {module: 're:.*attn'}}]")
    on_no_match: OnNoMatch = option("error", "when a region finds no kernel", choices=("error", "warn"))

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        if not can.super_kernels:
            return 0
        matches = [region.match for region in self.regions]
        found = runs(graph, matches, where="passes.super_kernel.regions", on_no_match=self.on_no_match)
        earlier = {id(run): sum(r.region == run.region for r in found[:at]) for at, run in enumerate(found)}

        def attributes(run: Run) -> dict[str, str]:
            region, number = self.regions[run.region], earlier[id(run)]
            scope = f"{region.scope}_{number}" if number else region.scope
            return {"_super_kernel_scope": scope, "_super_kernel_options": region.options}

        return enclose(graph, found, attributes, can)
