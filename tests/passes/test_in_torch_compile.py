"""All passes on the graph that torch.compile really hands over: modules, buffers updated in place, views, dropout."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified

from npucompose.graphs import printed
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.scopes import StreamPlan
from npucompose.passes.simplify import Cse, DeadCode, RemoveNoop
from npucompose.schema.streams import Streams
from npucompose.streams import plan_of, validate
from npucompose.table.structure import structure
from tests.sample_graphs import CAN, bits

STEP = torch.zeros(1, 8, dtype=torch.long)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.cache.scatter_(0, position, x[:1])
        y = self.down(torch.relu(self.gate(x)) * self.up(x)) + self.cache.sum(0)
        noise = torch.nn.functional.dropout(y, 0.5, training=True)
        return y + noise, y.view(-1), self.cache.t()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for layer in self.layers:
            x, *others = layer(x, position)
            results += others
        return [x, *results]


def outcome(net: Any, plain: Net) -> list[Any]:
    found: list[Any] = []
    for index in range(3):
        torch.manual_seed(index)
        x = torch.randn(4, 8)
        found += bits(net(x, STEP + index)) + bits([layer.cache for layer in plain.layers])
    return found


def compiled(net: Net, streams: Streams, graphs: list[fx.Graph]) -> Any:
    named = (("dead_code", DeadCode()), ("cse", Cse()), ("remove_noop", RemoveNoop()))
    pipeline = PassPipeline(passes=(*named, ("stream_plan", StreamPlan(streams=streams))), can=CAN)

    def lower(module: fx.GraphModule, inputs: Any) -> Any:
        pipeline(module)
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    def backend(module: fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(module, inputs, fw_compiler=lower, keep_inference_input_mutations=True)

    return torch.compile(net, backend=backend, fullgraph=True)


def check(streams: Streams) -> fx.Graph:
    torch.manual_seed(0)
    net = Net().eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    graphs: list[fx.Graph] = []
    torch._dynamo.reset()
    with torch.no_grad():
        expected = outcome(net, net)
        net.load_state_dict(state)
        assert outcome(compiled(net, streams, graphs), net) == expected
    validate(graphs[0])
    return graphs[0]


def test_a_module_with_a_cache_and_dropout_keeps_its_bits_under_all_passes() -> None:
    graph = check(Streams(max_streams=3))
    found = plan_of(graph)
    assert len(found.streams) > 1
    assert "aten.copy_.default" in printed(graph)


def test_an_explicit_plan_finds_modules_by_their_path() -> None:
    tree = {"kind": "explicit", "plan": [{"stream": "up", "match": {"module": "layers.*.up"}}]}
    found = plan_of(check(structure(Streams, tree, "streams")))
    assert sum(stream == "up" for stream in found.nodes.values()) == 2
