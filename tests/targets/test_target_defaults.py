"""What a target is that says nothing of itself: the answers of the base class, and what the null device adds."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.recorder import LowerRequest
from npucompose.targets import compilers
from npucompose.targets.base import (
    NO_FOLDERS,
    OWN_PROCESS,
    Folders,
    ModeSupport,
    Target,
    VendorCompiler,
    check_stages,
)
from npucompose.targets.null_device import NullDevice, Tape
from npucompose.targets.vendor_compiled import (
    CachesGraphs,
    ExportsGraphs,
    VendorCompiled,
    device_facts,
    device_texts,
    ge_facts,
)
from npucompose.vendor.compiler import CompilerOptions
from replay_tests.capturing import request
from tests.graph_helpers import built, traced


@frozen(kw_only=True)
class Plain(Target):
    """Says what every target has to."""

    name: ClassVar[str] = "plain"
    modes: ClassVar[Mapping[str, ModeSupport]] = {"reduce-overhead": ModeSupport(), "eager": ModeSupport()}

    def capabilities(self, mode: str) -> Any:
        return None

    def identity(self) -> dict[str, str]:
        return {}

    def lower(self, request: LowerRequest) -> Any:
        return request


@frozen(kw_only=True)
class Idle(Plain):
    executes: ClassVar[bool] = False


PROTOCOLS = (VendorCompiled, CachesGraphs, ExportsGraphs)
BACKEND: Any = SimpleNamespace(mode="reduce-overhead", target=Plain(), reads_only=False)
GRAPH: Any = SimpleNamespace()
MODE = "reduce-overhead"


def test_a_target_runs_measures_and_detaches_unless_it_says_otherwise() -> None:
    target = Plain()
    assert (target.measures, target.executes, target.detaches, target.modes_share_a_process) == (True,) * 4
    assert not target.previews_npu
    assert (target.soc, target.device_variable, target.device_index) == (None, None, 0)
    assert target.loaded == ("torch",)
    assert target.environment() == OWN_PROCESS == {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert target.support(MODE) == target.support("npugraph_ex") == ModeSupport()
    assert not any(getattr(ModeSupport(), name) for name in ("captures", "fuses", "trains", "caches", "exports"))


def test_a_target_has_nothing_to_tell_unless_it_says_so() -> None:
    target = Plain()
    assert target.prepare(MODE) is target.synchronize() is None
    assert target.start_build(MODE) is target.finish_build(MODE) is None
    assert not any(isinstance(target, able) for able in PROTOCOLS)
    assert device_facts(BACKEND) is target.support(MODE).numerics_note is None
    assert target.set_gears(MODE) is target.common_memory() is target.partition(MODE, GRAPH) is None
    assert target.device_memory() == device_texts(BACKEND) == target.stream_times([]) == {}
    assert compilers.decompositions(BACKEND) == {}
    assert target.recordings(MODE, []) == []
    assert target.warnings(MODE) == ge_facts(BACKEND) == ()
    model: Any = SimpleNamespace()
    assert target.place(model) is model


def test_calls_are_profiled_by_torchs_own_profiler_on_the_cpu_and_by_the_devices_beside_it() -> None:
    import torch.profiler

    from npucompose.targets.base import Profiler
    from npucompose.targets.cuda import CudaTarget

    assert Plain().profiler() == Profiler(module=torch.profiler)
    assert CudaTarget().profiler() == Profiler(module=torch.profiler, activities=("CPU", "CUDA"))
    assert (Plain().stream_times([]), Plain().kernel_clocks([])) == ({}, {})


def test_a_mode_it_does_not_have_is_refused_by_its_name() -> None:
    target = Plain()
    target.check("eager")
    with pytest.raises(ConfigError, match=r"mode=npugraph_ex cannot run on target=plain.*: reduce-overhead, eager\."):
        target.check("npugraph_ex")


def test_stages_that_need_results_are_refused_where_nothing_is_executed() -> None:
    stages = ("compile", "capture", "check", "benchmark")
    check_stages(Plain(), stages)
    check_stages(Idle(), stages[:2])
    with pytest.raises(ConfigError, match=r"target=plain executes nothing: check, benchmark cannot run.*compile_only"):
        check_stages(Idle(), stages)


def test_recordings_are_the_facts_of_each_graph_that_was_lowered() -> None:
    def recording(name: str) -> Any:
        return SimpleNamespace(facts=lambda: {"name": name})

    whole = SimpleNamespace(captured=[recording("a"), recording("b")])
    cut = SimpleNamespace(captured=[recording("c")], partition=lambda: None)
    graphs: Any = [SimpleNamespace(lowered=one) for one in (whole, None, cut)]
    assert Plain().recordings(MODE, graphs) == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def test_where_inductor_fuses_aotautograd_takes_apart_what_inductor_does() -> None:
    from torch._inductor.decomposition import select_decomp_table

    @frozen(kw_only=True)
    class Fusing(Plain):
        modes: ClassVar[Mapping[str, ModeSupport]] = {MODE: ModeSupport(fuses=True), "eager": ModeSupport()}

    def found(mode: str) -> Mapping[Any, Any]:
        backend: Any = SimpleNamespace(mode=mode, target=Fusing())
        return compilers.decompositions(backend)

    assert found(MODE)
    assert set(found(MODE)) == set(select_decomp_table())
    assert found("eager") == {}


def test_a_graph_goes_through_aotautograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "through_aot", lambda *given: given)
    graph: Any = "graph"
    made: Any = compilers.compiled(BACKEND, graph, ["x"])
    assert made == (BACKEND, "graph", ["x"])


def test_values_that_nobody_gave_are_the_plain_ones() -> None:
    lower = LowerRequest(
        mode=MODE, graph_module=torch.fx.GraphModule({}, torch.fx.Graph()), example_inputs=(),
        static_inputs=frozenset(), options=CompilerOptions(),
    )  # fmt: skip
    assert (lower.memory, lower.partial, lower.at_once) == (None, "cut", False)
    assert VendorCompiler(config=1, backend=lambda *_: print).options is None
    assert (NO_FOLDERS.files, NO_FOLDERS.cache) == (None, None)
    assert Folders() == NO_FOLDERS


# The null device.


def test_the_null_device_says_what_it_is() -> None:
    target = NullDevice()
    assert (target.measures, target.executes, target.previews_npu) == (False, False, False)
    assert target.identity() == {"device": "none"}
    for mode in target.modes:
        can = target.capabilities(mode)
        assert (can.target, can.mode, can.captures) == ("null_device", mode, mode in ("reduce-overhead", "npugraph_ex"))
        assert target.support(mode).options == frozenset()


def test_a_tape_has_a_line_for_each_call_and_gives_outputs_of_the_right_form() -> None:
    tape = NullDevice().lower(request(traced(lambda x: ((x + 1).double().t(), 3, None), torch.ones(2, 3))))
    assert isinstance(tape, Tape)
    assert tape.calls[0].partition("(")[0] == "aten.add.Tensor"
    assert all(") -> " in line for line in tape.calls)
    assert tape.calls[0].endswith("(x_1, 1) -> add")
    assert tape.captured == []
    given = [torch.ones(2, 3)]
    turned, three, nothing = tape(given)
    assert given == [], "it is boxed: what it was given is free"
    assert (turned.dtype, tuple(turned.shape), three, nothing) == (torch.float64, (3, 2), 3, None)
    assert tape._boxed_call


def test_a_tape_notes_calls_and_nothing_else() -> None:
    module = built(lambda graph, given: (graph.call_function(torch.ops.aten.relu.default, (given[0],)), 7), 2)
    tape = Tape(request(module))
    assert tape.calls == ["aten.relu.default(x0) -> relu_default"]
    assert tape([1, 2]) == [None, 7], "an output of which nothing is known"
