"""What Inductor compiles for a GPU is handed to CUDA graphs with what the graph was before, or with why it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose import ops
from npucompose.errors import CaptureError
from npucompose.graphs.recordable import why_not
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose.vendor.compiler import CompilerOptions
from npucompose_replay.cuda.code import CudaCodeCache
from npucompose_replay.front.segments import planned
from npucompose_replay.inductor.captured import CapturingRecorder
from npucompose_replay.inductor.code import UnreadCode, launches
from npucompose_replay.inductor.subjects import Subject
from replay_tests.cuda.simulated_device import SimulatedDevice
from tests.sample_graphs import mm_abs_sub

SOURCE = """
class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(arg0_1, buf0, 16, stream=stream0)
            buf1 = reinterpret_tensor(buf0, (16, ), (1, ), 0)
            extern_kernels.mm(buf0, arg1_1, out=buf1)
            buf2 = torch.ops.aten.topk.default(buf1, 2)
            triton_red_fused_sum_1.run(buf1, buf2, 16, stream=stream0)
        return (buf2, )
"""


def compiled(source: str = SOURCE) -> Any:
    """As Inductor's CompiledFxGraph."""

    class Compiled:
        current_callable = staticmethod(lambda given: given)
        source_code = source

        def __call__(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
            return [given[0] + 1]

    return Compiled()


def test_kernels_and_operators_of_generated_code_are_counted() -> None:
    assert launches(compiled()) == 4
    assert launches(lambda given: given) == 0
    for source, words in (("def call(:", "no source that can be read"), ("def run(): ...", "0 functions of the name")):
        with pytest.raises(UnreadCode, match=words):
            launches(compiled(source))
    with pytest.raises(UnreadCode, match="2 functions of the name call"):
        launches(compiled(SOURCE + "\ndef call(args): ..."))


def traced(function: Any, *shapes: tuple[int, ...]) -> torch.fx.GraphModule:
    """A graph of tensors on a GPU, which need not be there."""
    with FakeTensorMode():
        return make_fx(function)(*[torch.empty(shape, device="cuda") for shape in shapes])


def lowered(graph_module: torch.fx.GraphModule, source: str = SOURCE, partial: str = "cut") -> CudaCodeCache:
    backend: Any = SimpleNamespace(
        mode="max-autotune",
        options=CompilerOptions(),
        common_memory=None,
        partial=partial,
        records_at_once=False,
        records_only_watched=False,
    )
    device: Any = SimulatedDevice()
    how: Any = {"device": device, "capture_limit": 2, "clone_output": False, "when_full": "eager", "partial": partial}
    recorder = CapturingRecorder(backend=backend, how=lambda request: how)
    subject = Subject(
        key="graph", fixed=frozenset({1}), written=frozenset(),
        watch=None, unfrozen=frozenset({7}), graph_module=graph_module,
        unfused=lambda: graph_module,
    )  # fmt: skip
    assert recorder.wants(subject)
    before = [str(node.target) for node in graph_module.graph.nodes]
    graph_module.graph.erase_node(graph_module.graph.output_node())  # Inductor does as it likes with it
    made = recorder.lowered(subject, compiled(source))
    assert isinstance(made, CudaCodeCache)
    assert [str(node.target) for node in made.request.graph_module.graph.nodes] == before
    assert made.request.static_inputs == {1}
    return made


def test_a_graph_of_kernels_is_captured() -> None:
    made = lowered(traced(lambda x, y: (x @ y).relu(), (4, 4), (4, 4)))
    assert made.partition().outside == ()
    assert (made._code.kernels, made._kept) == (4, {7})


def test_a_graph_that_needs_the_host_is_not_and_says_what_it_needs_it_for() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * torch.ops.aten.scalar_tensor.default(3.0, device="cpu") + y

    made = lowered(traced(function, (4,), (4,)))
    (outside,) = made.partition().outside
    assert outside.reason == "aten.scalar_tensor is in it: it works on cpu; a recording here holds cuda kernels only"
    with pytest.raises(CaptureError, match=r"aten\.scalar_tensor is in it"):
        lowered(traced(function, (4,), (4,)), partial="refuse")


def test_code_that_cannot_be_read_is_not_captured() -> None:
    made = lowered(traced(lambda x, y: x + y, (4,), (4,)), source="nothing = 1")
    (outside,) = made.partition().outside
    assert outside.reason == "its code has 0 functions of the name call"


def test_events_of_a_plan_are_not_taken_for_kernels_of_the_host() -> None:
    ops.define()
    module = traced(mm_abs_sub, (4, 4))
    apply(module.graph, Streams(min_gain=0), Capabilities(target="cuda", mode="reduce-overhead"))
    steered = [str(node.target) for node in module.graph.nodes if "air" in str(node.target)]
    assert {"air.record.default", "air.wait.default"} <= set(steered)
    with FakeTensorMode():
        for node in module.graph.nodes:
            if str(node.target) == "air.record.default":
                node.meta["val"] = torch.empty(0)  # what stands for an event lies on the host
    assert [why_not(node, "cuda") for node in module.graph.nodes] == [None] * len(module.graph.nodes)
    assert planned(module, "cuda").outside == ()
