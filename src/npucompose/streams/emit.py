"""Writing a plan into an FX graph as flat scopes, records and waits; and taking them out again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import LABEL, PRIORITY, control, core_scope, tensors_in
from npucompose.results.streams import StreamAssignment
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM, Cores
from npucompose.streams.execute import missing_first


def emit(graph: fx.Graph, plan: StreamAssignment, dependence: Dependence, can: Capabilities) -> None:
    """Reorder the graph to the plan's order and put scopes, records and waits around its kernels.

    before:                          after (sub on stream1, one event):
        abs_1 = abs(x)                   scope_enter(['_user_stream_label'], ['stream1'])
        sub = sub(abs_1, x)              abs_1 = abs(x);  sub = sub(abs_1, x);  record = record()
        add = add(mm, sub)               scope_exit()
                                         wait([record]);  add = add(mm, sub)

    Source of the rules (TorchAir, `_scope.py`, `_record_wait.py`, its two lowerings): scopes are flat, the label is
    the first key, the default stream has no scope, a limit of cores has a scope of its own around its kernels, inside
    that of their stream; a record stands behind a real kernel of its stream and a wait directly before the kernel that
    needs it. Views and getitem follow the kernel they are made of; what is made of inputs alone stands before its first
    reader. Joining the side streams before the outputs is the target's duty (TorchAir's capture closure does it).
    """
    _PlanWriter(graph, plan, dependence, can).write()


class _PlanWriter:
    """Appends to the end of the node list (before the output), kernel by kernel; what is moved is never lost."""

    def __init__(self, graph: fx.Graph, plan: StreamAssignment, dependence: Dependence, can: Capabilities) -> None:
        self.graph, self.plan = graph, plan
        self.scopes = getattr(torch.ops, can.scope_namespace)
        self.events = getattr(torch.ops, can.event_namespace)
        for space, name in ((can.scope_namespace, "scope_enter"), (can.event_namespace, "record")):
            if not hasattr(getattr(torch.ops, space), name):
                raise PlanError(
                    "no_operators",
                    f"The stream operators torch.ops.{space}.{name}, … are not defined in this process: "
                    "npucompose.ops.define() defines those of 'air', their own package all others.",
                )
        self.output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self.kernels = {node.name: node for node in dependence.kernels}
        self.free = [
            node
            for node in graph.nodes
            if node.op not in ("placeholder", "output") and node.name not in self.kernels and control(node) is None
        ]
        self.pending = {node: len(dependence.origins[node]) for node in self.free}
        self.followers: dict[fx.Node, list[fx.Node]] = {}
        for node in self.free:
            for kernel in dependence.origins[node]:
                self.followers.setdefault(kernel, []).append(node)
        self.placed: set[fx.Node] = {node for node in graph.nodes if node.op == "placeholder"}
        self.records: dict[str, fx.Node] = {}
        self.empty = _empty(graph)
        self.stream = DEFAULT_STREAM
        self.limit: Cores | None = None
        self.limits = plan.cores if can.core_limits else {}

    def write(self) -> None:
        recorders = {event.recorder for event in self.plan.events}
        waits: dict[str, list[str]] = {}
        for event in self.plan.events:
            waits.setdefault(event.waiter, []).append(event.recorder)
        for name, stream in self.plan.nodes.items():
            kernel = self.kernels[name]
            if stream != self.stream:
                self._leave()
            for source in kernel.all_input_nodes:
                self._demand(source)
            self._enter(stream)
            self._restrict(self.limits.get(name))
            if name in waits:
                self._new("wait", ([self.records[recorder] for recorder in waits[name]],), None)
            self._place(kernel)
            if name in recorders:
                self.records[name] = self._new("record", (), self.empty)
            self._follow(kernel)
        self._leave()
        for node in self.free:
            self._demand(node)

    def _enter(self, stream: str) -> None:
        entered, self.stream = self.stream, stream
        if stream in (entered, DEFAULT_STREAM):
            return
        keys, values = [LABEL], [stream]
        if stream in self.plan.priorities:
            keys.append(PRIORITY)
            values.append(str(self.plan.priorities[stream]))
        self._new("scope_enter", (keys, values), None)

    def _restrict(self, limit: Cores | None) -> None:
        """From here on the stream's kernels have so many cores."""
        if limit == self.limit:
            return
        if self.limit is not None:
            self._new("scope_exit", (), None)
        if limit is not None:
            self._new("scope_enter", core_scope(limit), None)
        self.limit = limit

    def _leave(self) -> None:
        self._restrict(None)
        if self.stream != DEFAULT_STREAM:
            self._new("scope_exit", (), None)
        self.stream = DEFAULT_STREAM

    def _demand(self, node: fx.Node) -> None:
        """A node without a kernel, and before it what it is made of."""
        for missing in missing_first([node], self.placed):
            self._place(missing)

    def _follow(self, kernel: fx.Node) -> None:
        for node in self.followers.get(kernel, ()):
            self.pending[node] -= 1
            if not self.pending[node]:
                self._demand(node)

    def _place(self, node: fx.Node) -> None:
        self.output.prepend(node)
        self.placed.add(node)

    def _new(self, name: str, args: tuple[Any, ...], value: Any) -> fx.Node:
        ops = self.events if name in ("record", "wait") else self.scopes
        with self.graph.inserting_before(self.output):
            node = self.graph.call_function(getattr(ops, name).default, args)
        node.meta["val"] = value
        return node


def _empty(graph: fx.Graph) -> torch.Tensor:
    """What every record returns, in the graph's fake mode where it has one."""
    values = (t for node in graph.nodes for t in tensors_in(node.meta.get("val")))
    fake = next((t for t in values if isinstance(t, FakeTensor)), None)
    with fake.fake_mode if fake is not None else nullcontext():
        return torch.empty(0)


def strip(graph: fx.Graph) -> int:
    """Take out every stream scope, record and wait; the order of the kernels stays. Says how many nodes went."""
    gone = [node for node in graph.nodes if control(node) is not None]
    for node in sorted(gone, key=lambda node: control(node) != "wait"):
        graph.erase_node(node)
    return len(gone)
