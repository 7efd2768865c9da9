"""Target cuda and its thin layer of torch.cuda, with a torch.cuda that only notes what it is asked: needs no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose.errors import ConfigError
from npucompose.models.base import Built
from npucompose.recorder import LowerRequest
from npucompose.schema.recording import CACHE_OPTIONS
from npucompose.targets import compilers as aot
from npucompose.targets import cuda
from npucompose.targets.base import TORCH_COMPILE
from npucompose.targets.cuda import CudaTarget
from npucompose.vendor.compiler import CompilerOptions
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.device import Cuda, SharedPool
from npucompose_replay.front.segments import Segmented
from npucompose_replay.inductor import through as inductor
from npucompose_replay.inductor.captured import CapturingRecorder
from replay_tests.capturing import request
from tests.graph_helpers import traced

CAPTURED = "reduce-overhead"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """(call, its arguments) of torch.cuda while the test runs; each call answers with its name."""
    notes: list[tuple[Any, ...]] = []

    def noting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> str:
            notes.append((name, *args, named) if named else (name, *args))
            return name

        return call

    names = ("Stream", "current_stream", "stream", "Event", "graph_pool_handle", "CUDAGraph", "synchronize")
    for name in names:
        monkeypatch.setattr(torch.cuda, name, noting(name))

    @contextmanager
    def graph(*args: Any, **named: Any) -> Iterator[None]:
        notes.append(("graph", *args, named))
        yield
        notes.append(("captured",))

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", noting("workspaces"), raising=False)
    return notes


def test_each_call_of_the_device_is_torch_cudas_own(asked: list[tuple[Any, ...]]) -> None:
    device, second = Cuda(1), torch.device("cuda", 1)
    said = [
        device.stream(), device.stream(-1), device.current_stream(), device.on("side"), device.event(), device.pool(),
        device.graph(),
    ]  # fmt: skip
    assert said == ["Stream", "Stream", "current_stream", "stream", "Event", "graph_pool_handle", "CUDAGraph"]
    assert asked == [
        ("Stream", {"device": second, "priority": 0}),
        ("Stream", {"device": second, "priority": -1}),
        ("current_stream", second),
        ("stream", "side"),
        ("Event",),
        ("graph_pool_handle",),
        ("CUDAGraph",),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_has_workspaces_of_its_own(asked: list[tuple[Any, ...]], fails: bool) -> None:
    raised = pytest.raises(RuntimeError, match="of the caller") if fails else nullcontext()
    with raised, Cuda(1).capturing("graph", "pool", "side"):
        asked.append(("the caller",))
        if fails:
            raise RuntimeError("of the caller")
    assert asked == [
        ("workspaces",),
        ("graph", "graph", {"pool": "pool", "stream": "side", "capture_error_mode": "thread_local"}),
        ("the caller",),
        *([] if fails else [("captured",)]),
        ("workspaces",),
    ]


def test_the_device_holds_what_lies_on_it_and_says_who_uses_it() -> None:
    used: list[str] = []
    for index, held in ((0, False), (1, True)):
        tensor: Any = SimpleNamespace(device=torch.device("cuda", index), record_stream=used.append)
        assert Cuda(1).holds(tensor) is held
        Cuda(1).used_on(tensor, f"stream of {index}")
    assert not Cuda(0).holds(torch.ones(1))
    assert used == ["stream of 0", "stream of 1"]


def test_what_the_target_says_of_itself() -> None:
    target = CudaTarget(index=2)
    assert (CudaTarget().index, CudaTarget().device_index, target.device_index) == (0, 0, 2)
    assert (CudaTarget().when_full, CudaTarget().pool) == ("eager", "model")
    assert target.previews_npu
    assert (target.device_variable, target.loaded) == ("CUDA_VISIBLE_DEVICES", TORCH_COMPILE)
    assert tuple(target.modes) == ("max-autotune", "reduce-overhead", "eager")
    for mode in target.modes:
        can = target.capabilities(mode)
        assert (can.target, can.mode, can.device) == ("cuda", mode, "cuda:2")
        assert can.captures is (mode == CAPTURED)
        assert target.support(mode).options == (CACHE_OPTIONS[CAPTURED].supported if mode == CAPTURED else frozenset())
        assert target.warnings(mode) == ()
        assert target.support(mode).fuses is target.support(mode).trains is (mode == "max-autotune")
    with pytest.raises(ValueError, match="index"):
        CudaTarget(index=-1)


@pytest.mark.parametrize(
    ("available", "count", "index", "has"),
    [
        (False, 4, 0, "no CUDA device here"),
        (True, 0, 0, "no CUDA device here"),
        (True, 1, 1, r"1 CUDA device\(s\) here"),
        (True, 2, 1, None),
    ],
)
def test_a_device_that_torch_does_not_find_is_refused(
    monkeypatch: pytest.MonkeyPatch, available: bool, count: int, index: int, has: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    target = CudaTarget(index=index)
    if has is None:
        target.check("eager")
        with pytest.raises(ConfigError, match="mode=npugraph_ex cannot run on target=cuda"):
            target.check("npugraph_ex")
        return
    with pytest.raises(ConfigError, match=f"needs device cuda:{index}, and torch .* finds {has}.*null_device"):
        target.check("eager")


def test_its_identity_is_what_nvidia_smi_says_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Any, ...]] = []
    answers = iter((" Some GPU, 550.1\n", "\n"))

    def run(command: list[str], **named: Any) -> Any:
        ran.append((command, named))
        return SimpleNamespace(stdout=next(answers))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
    assert CudaTarget(index=3).identity() == {"cuda": "device 3"}
    assert ran == []
    monkeypatch.setattr(cuda.shutil, "which", lambda name: f"/bin/{name}")
    assert CudaTarget(index=3).identity() == {"cuda": "Some GPU, 550.1"}
    assert CudaTarget(index=3).identity() == {"cuda": "device 3"}
    command = ["/bin/nvidia-smi", "--id=3", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    named = {"capture_output": True, "text": True, "timeout": 30, "check": False}
    assert ran == [(command, named)] * 2


def test_a_model_and_its_inputs_are_moved_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: (self.tolist(), device))
    module: Any = SimpleNamespace(to=lambda device: ("module", device))
    built = Built(module=module, inputs=lambda step: {"x": torch.full((2,), float(step)), "n": step}, steps=5)
    placed, second = CudaTarget(index=1).place(built), torch.device("cuda", 1)
    assert placed.module == ("module", second)
    assert placed.steps == 5
    assert [placed.inputs(step) for step in (0, 2)] == [
        {"x": ([0.0, 0.0], second), "n": 0},
        {"x": ([2.0, 2.0], second), "n": 2},
    ]


def test_max_autotune_goes_through_inductor_and_the_rest_through_aotautograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "through_inductor", lambda *given, recorder: ("inductor", *given, recorder))
    monkeypatch.setattr(aot, "through_aot", lambda *given: ("aot", *given))
    graph_module: Any = "graph"

    def compiled(mode: str, records: bool) -> Any:
        backend: Any = SimpleNamespace(mode=mode, records=records)
        way, given, *rest = CudaTarget().compile(backend, graph_module, ["x"])
        assert given is backend
        return way, *rest

    assert compiled(CAPTURED, True) == ("aot", "graph", ["x"])
    assert compiled("max-autotune", False) == ("inductor", "graph", ["x"], None)
    *said, recorder = compiled("max-autotune", True)
    assert said == ["inductor", "graph", ["x"]]
    assert isinstance(recorder, CapturingRecorder)


def placeless(function: Any) -> torch.fx.GraphModule:
    """The graph of `function`; nothing in it says that it was traced on a CPU."""
    module = traced(function, torch.ones(3))
    for node in module.graph.nodes:
        node.meta.pop("val", None)
    return module


def test_only_a_graph_that_is_recorded_has_a_partition_and_kernels_of_a_cpu_stand_outside() -> None:
    def function(x: torch.Tensor) -> Any:
        return ((x + 1).nonzero(),)

    for module, outside in (
        (placeless(function), ["aten.nonzero"]),
        (traced(function, torch.ones(3)), ["aten.add.Tensor", "aten.nonzero"]),
    ):
        assert CudaTarget().partition("max-autotune", module) is None
        found = CudaTarget().partition(CAPTURED, module)
        assert found is not None
        assert [one.operator for one in found.outside] == outside


def test_graphs_of_one_model_share_a_pool_of_the_device_unless_each_is_to_have_its_own(
    asked: list[tuple[Any, ...]],
) -> None:
    assert CudaTarget(pool="graph").common_memory() is None
    assert asked == []
    shared = CudaTarget(index=1).common_memory()
    assert isinstance(shared, SharedPool)
    assert (shared.handle, shared.stream) == ("graph_pool_handle", "Stream")
    assert asked == [("graph_pool_handle",), ("Stream", {"device": torch.device("cuda", 1), "priority": 0})]


def lower_request(function: Any, **changed: Any) -> LowerRequest:
    said = {"debug.aclgraph.static_capture_size_limit": 3, "debug.aclgraph.enable_output_clone": True}
    options = CompilerOptions(values=said)
    return evolve(request(placeless(function)), options=options, **changed)


def test_lowering_gives_a_cache_with_the_options_of_the_request(asked: list[tuple[Any, ...]]) -> None:
    memory = CudaTarget().common_memory()
    target = CudaTarget(index=1, when_full="replace")
    cache = target.lower(lower_request(lambda x: (x + 1,), memory=memory, partial="refuse"))
    assert isinstance(cache, CudaCache)
    assert (cache.capture_limit, cache.clone_output, cache.when_full) == (3, True, "replace")
    assert (cache.partial, cache.pool) == ("refuse", memory)
    assert cache.device.holds(SimpleNamespace(device=torch.device("cuda", 1)))  # type: ignore[arg-type]


def test_a_graph_that_cannot_be_recorded_whole_is_cut_into_caches_on_one_pool(asked: list[tuple[Any, ...]]) -> None:
    cut = CudaTarget().lower(lower_request(lambda x: ((y := x + 1).nonzero(), y * 2)))
    assert isinstance(cut, Segmented)
    caches: Any = cut.caches
    assert len(caches) == 2
    assert len({id(cache.pool) for cache in caches}) == 1
    for cache in caches:
        assert (cache.capture_limit, cache.when_full, cache.partial) == (3, "eager", "cut")
        assert not cache.clone_output


def test_synchronize_waits_for_its_own_device(asked: list[tuple[Any, ...]]) -> None:
    CudaTarget(index=1).synchronize()
    assert asked == [("synchronize", 1)]
