"""Random graphs that write in place, take views and tuples apart, read each value several times; random streams; and
what really happens to their memory: storages are watched while the graph runs as TorchAir's generated code would run.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator

import torch
from attrs import define, field
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from npucompose.graphs import Dependence
from npucompose.graphs.effects import control, stream_labels, tensors_in
from npucompose.schema.streams import Match, PlanEntry, Streams
from tests.sample_graphs import Program, happens_before, some_inputs

aten = torch.ops.aten
KINDS = (
    "clone", "neg", "mm", "add", "relu_", "add_", "copy_", "zero_", "row", "t", "expand", "reshape", "row_copy_",
    "chunk", "max", "layer_norm", "relu_of_row", "write_input",
)  # fmt: skip


def in_place_program(seed: int, size: int = 16) -> fx.GraphModule:
    """On 4 x 4 matrices: half of what is drawn is written in place, directly, through a row, or as part of a tuple."""
    chance = random.Random(seed)
    program = Program(inputs=2)
    inputs, made = list(program.values), [program.call(aten.clone.default, program.values[0])]
    for _ in range(size):
        # Mostly of the last few values: long chains of names for one piece of memory.
        a = chance.choice(made[-4:]) if chance.random() < 0.7 else chance.choice(made)
        made += _step(program, chance.choice(KINDS), a, chance.choice([*made, *inputs]), chance.choice(inputs))
    return program.finish(chance.sample(made, k=min(len(made), 2)))


def _step(program: Program, kind: str, a: fx.Node, b: fx.Node, given: fx.Node) -> list[fx.Node]:
    call, get = program.call, operator.getitem
    copied = lambda: call(aten.clone.default, b)  # noqa: E731
    match kind:
        case "clone" | "neg" | "relu_" | "t" | "zero_":
            return [call(getattr(aten, kind).default, a)]
        case "mm":
            return [call(aten.mm.default, a, b)]
        case "add" | "add_":
            return [call(getattr(aten, kind).Tensor, a, copied())]
        case "copy_":
            return [call(aten.copy_.default, a, copied())]
        case "row":
            row = call(aten.slice.Tensor, a, 0, 1, 2)
            return [call(aten.cat.default, [row] * 4)]
        case "expand":
            return [call(aten.expand.default, a, [4, 4])]
        case "reshape":
            return [call(aten.reshape.default, call(aten.reshape.default, a, [2, 8]), [4, 4])]
        case "row_copy_":
            call(aten.copy_.default, call(aten.slice.Tensor, a, 0, 1, 2), call(aten.slice.Tensor, copied(), 0, 0, 1))
            return []
        case "relu_of_row":
            return [call(aten.add.Tensor, b, call(aten.relu_.default, call(aten.slice.Tensor, a, 0, 2, 3)))]
        case "chunk":
            parts = call(aten.split.Tensor, a, 2)
            call(aten.relu_.default, call(get, parts, 1))
            return [call(aten.cat.default, [call(get, parts, 1), call(get, parts, 0)])]
        case "max":
            both = call(aten.max.dim, a, 0, True)
            return [call(aten.add.Tensor, b, call(aten.relu_.default, call(get, both, 0)))]
        case "layer_norm":
            three = call(aten.native_layer_norm.default, a, [4], None, None, 1e-5)
            return [call(get, three, 0), call(aten.add.Tensor, b, call(get, three, 1))]
    call(aten.copy_.default, given, copied())
    return []


def random_streams(module: fx.GraphModule, seed: int, count: int = 3) -> Streams:
    """An explicit plan that deals the kernels out, in short runs."""
    chance = random.Random(f"streams {seed}")
    entries: list[PlanEntry] = []
    stream = 0
    for kernel in Dependence.from_graph(module.graph).kernels:
        if chance.random() < 0.5:
            stream = chance.randrange(count)
        if stream:
            entries.append(PlanEntry(stream=f"s{stream}", match=Match(name=kernel.name)))
    if not entries:
        return Streams(min_gain=0, max_streams=count)
    return Streams(kind="explicit", plan=tuple(entries), max_streams=count)


@define
class _Storage:
    maker: fx.Node
    alive: StorageWeakRef
    users: list[fx.Node] = field(factory=list)
    freed_at: int | None = None


def uncovered(module: fx.GraphModule) -> Iterator[str]:
    """Memory that its own stream takes again while another stream may still use it: what the run shows.

    Each storage that a kernel makes is watched until nothing refers to it any more; the next kernel of its stream may
    have it. Who is done by then is read off scopes, records and waits.
    """
    graph = module.graph
    nodes = list(graph.nodes)
    labels, before = stream_labels(graph), happens_before(graph)
    storages, places = _watched(module, nodes, frozenset(before)), {node: at for at, node in enumerate(nodes)}
    for storage in storages:
        stream = labels.get(storage.maker, "default")
        again = next(
            (
                kernel
                for kernel in before
                if storage.freed_at is not None
                and places[kernel] > storage.freed_at
                and labels.get(kernel, "default") == stream
            ),
            None,
        )
        for user in storage.users:
            if again is not None and labels.get(user, "default") != stream and user not in before[again]:
                yield f"{storage.maker.name} is used by {user.name} when {again.name} takes its memory"


def _watched(module: fx.GraphModule, nodes: list[fx.Node], kernels: frozenset[fx.Node]) -> list[_Storage]:
    drops: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        # A wait names no tensor in what TorchAir generates: it puts a record in its place.
        users = [user for user in node.users if control(user) is None]
        drops.setdefault(max(users, key=nodes.index, default=node), []).append(node)
    given = iter(some_inputs(module))
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    known: dict[int, _Storage] = {}
    everything: list[_Storage] = []
    for place, node in enumerate(nodes):
        if node.op == "output":
            break
        if control(node) is not None:
            continue
        if node in kernels:
            for key in {t.untyped_storage()._cdata for s in node.all_input_nodes for t in _tensors(interpreter.env[s])}:
                if key in known:
                    known[key].users.append(node)
        value = interpreter.env[node] = next(given) if node.op == "placeholder" else interpreter.run_node(node)
        if node in kernels:
            for tensor in _tensors(value):
                storage = tensor.untyped_storage()
                if storage._cdata not in known and not _is_given(storage, interpreter, nodes):
                    known[storage._cdata] = _Storage(node, StorageWeakRef(storage))
                    everything.append(known[storage._cdata])
                del tensor, storage
        del value
        for dead in drops.get(node, ()):
            if dead.op != "placeholder":
                interpreter.env.pop(dead, None)
        for key, storage in list(known.items()):
            if storage.alive.expired():
                storage.freed_at = place
                del known[key]
    return everything


def _tensors(value: object) -> list[torch.Tensor]:
    return list(tensors_in([value]))


def _is_given(storage: torch.UntypedStorage, interpreter: fx.Interpreter, nodes: list[fx.Node]) -> bool:
    given = (interpreter.env[node] for node in nodes if node.op == "placeholder" and node in interpreter.env)
    return storage._cdata in {value.untyped_storage()._cdata for value in given}
