"""Passes that put kernels into scopes: streams, limits on cores, super kernels.

The last two take regions: kernels that a match finds and that stand one after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError, PlanError
from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.profile_table import ProfileTable
from npucompose.schema.streams import CoreRegion, Match, Streams, SuperKernelRegion
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx

OnNoMatch = Literal["error", "warn"]


@frozen(kw_only=True)
class StreamPlan(Pass):
    """Give independent chains streams of their own, and the events that their data needs.

    before:  mm = x @ x;  a = abs(x);  s = a - x;  return mm + s
    after:   mm = x @ x
             scope_enter(['_user_stream_label'], ['stream1']);  a = abs(x);  s = a - x;  r = record();  scope_exit()
             wait([r]);  return mm + s

    What is asked for comes from the experiment's `streams` (auto, none, an explicit plan). A plan that matches nothing,
    goes in a circle or cannot be made safe is refused. A planned graph stays as it is.
    """

    name: ClassVar[str] = "stream_plan"
    after: ClassVar[tuple[str, ...]] = ("cse", "dead_code", "remove_noop")

    streams: Streams = option(factory=Streams, doc="what to plan", from_experiment="streams")

    def source_files(self) -> tuple[str, ...]:
        return self.streams.files

    def check(self) -> None:
        """Read the table of kernels' times that is named."""
        if self.streams.profile is not None:
            ProfileTable.from_file(Path(self.streams.profile))

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.streams import apply

        return apply(graph, self.streams, can)


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
    on_no_match: OnNoMatch = option("error", "when a region matches no kernel", choices=("error", "warn"))

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs.effects import core_scope

        if not can.core_limits:
            return 0
        beyond = [why for region in self.regions if (why := can.device_model.lacks(region.aicore, region.vectorcore))]
        if beyond:
            raise PlanError("cores", f"passes.core_limit.regions: {beyond[0]}, and a region asks for more.")
        matches = [region.match for region in self.regions]
        found = runs(graph, matches, where="passes.core_limit.regions", on_no_match=self.on_no_match)
        return enclose(graph, [(run, *core_scope(self.regions[run.region])) for run in found], can)


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
    on_no_match: OnNoMatch = option("error", "when a region matches no kernel", choices=("error", "warn"))

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        if not can.super_kernels:
            return 0
        matches = [region.match for region in self.regions]
        found = runs(graph, matches, where="passes.super_kernel.regions", on_no_match=self.on_no_match)
        keys = ["_super_kernel_scope", "_super_kernel_options"]
        scoped: list[ScopedRun] = []
        for at, run in enumerate(found):
            region, number = self.regions[run.region], sum(earlier.region == run.region for earlier in found[:at])
            scoped.append((run, keys, [f"{region.scope}_{number}" if number else region.scope, region.options]))
        return enclose(graph, scoped, can)


@frozen(kw_only=True, eq=False)
class Run:
    """Kernels of one region that stand one after the other, with no other kernel and no edge of a scope between."""

    region: int
    kernels: tuple[fx.Node, ...]


ScopedRun = tuple[Run, list[str], list[str]]
"""A run with the keys and values of its scope."""


def runs(graph: fx.Graph, matches: Sequence[Match], *, where: str, on_no_match: OnNoMatch = "error") -> list[Run]:
    """The runs in graph order; a kernel belongs to the first region that matches it.

    Raises ConfigError where there is no region, and for every region that finds no kernel (with `warn` a warning).
    `where` is the path of the list.
    """
    from npucompose.graphs import Dependence, matching
    from npucompose.graphs.effects import control

    if not matches:
        raise ConfigError(f"{where} needs an entry: which operators are meant.")
    kernels = frozenset(Dependence.from_graph(graph).kernels)
    found: list[Run] = []
    inside: list[fx.Node] = []
    at: int | None = None
    for node in graph.nodes:
        edge = control(node) in ("scope_enter", "scope_exit") or node.op == "output"
        if not edge and node not in kernels:
            continue
        fitting = (number for number, match in enumerate(matches) if not edge and matching.matches(match, node))
        region = next(fitting, None)
        if at is not None and region != at:
            found.append(Run(region=at, kernels=tuple(inside)))
            inside = []
        at = region
        if region is not None:
            inside.append(node)
    ordered = [node for node in graph.nodes if node in kernels]
    others = [node for node in graph.nodes if node not in kernels]
    missing = set(range(len(matches))) - {run.region for run in found}
    problems = [
        f"{where}[{number}].match ({matches[number]}) finds no kernel: "
        f"{matching.why_none(matches[number], ordered, others)}"
        for number in sorted(missing)
    ]
    if problems and on_no_match == "error":
        raise ConfigError(*problems)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return found


def enclose(graph: fx.Graph, scoped: Sequence[ScopedRun], can: Capabilities) -> int:
    """Put scope_enter before each run and scope_exit behind it; says how many kernels stand inside."""
    import torch

    operators: Any = getattr(torch.ops, can.scope_namespace)
    for run, keys, values in scoped:
        with graph.inserting_before(run.kernels[0]):
            enter = graph.call_function(operators.scope_enter.default, (keys, values))
        with graph.inserting_after(run.kernels[-1]):
            leave = graph.call_function(operators.scope_exit.default, ())
        enter.meta["val"] = leave.meta["val"] = None
    return sum(len(run.kernels) for run, _, _ in scoped)
