from __future__ import annotations

import importlib.util

import pytest
import torch
from targets.suite import TargetSuite

import npucompose
from npucompose.errors import ConfigError
from npucompose.targets.base import Target
from npucompose.targets.cpu import CpuTarget
from npucompose.targets.cuda import CudaTarget
from npucompose.targets.npu import NpuTarget
from npucompose.targets.npu_offline import NpuOfflineTarget
from npucompose.targets.null_device import NullDevice, Tape


class TestCpu(TargetSuite):
    @pytest.fixture
    def target(self) -> Target:
        return CpuTarget()


class TestNullDevice(TargetSuite):
    @pytest.fixture
    def target(self) -> Target:
        return NullDevice()


class TestCuda(TargetSuite):
    @pytest.fixture
    def target(self) -> Target:
        return CudaTarget()


class TestNpu(TargetSuite):
    @pytest.fixture
    def target(self) -> Target:
        return NpuTarget()


class TestNpuOffline(TargetSuite):
    @pytest.fixture
    def target(self) -> Target:
        return NpuOfflineTarget()


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="asks what happens without torch_npu")
def test_npu_without_a_device_says_what_is_missing_and_what_is_possible() -> None:
    with pytest.raises(
        ConfigError, match=r"torch_npu is not installed; CANN.* `npucompose doctor` .*target=npu_offline"
    ):
        NpuTarget().check("npugraph_ex")


@pytest.mark.parametrize("target", [NpuTarget(), NpuOfflineTarget()])
def test_more_than_one_process_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match=f"WORLD_SIZE=8: target={target.name} compiles for one process"):
        target.check("max-autotune")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a CUDA device")
def test_cuda_without_a_device_says_what_torch_finds() -> None:
    with pytest.raises(ConfigError, match=r"needs device cuda:0, and torch .* finds no CUDA device"):
        CudaTarget().check("eager")


def test_the_null_device_is_told_streams_and_events_in_order() -> None:
    made = npucompose.materialize("target=null_device", "passes=stream_plan", "streams=mm_abs_sub")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x) + (torch.abs(x) - x)

    with torch.no_grad():
        torch.compile(forward, backend=made.backend, **made.compile_keywords)(torch.ones(2, 2))
    tape = made.backend.compilations[0].lowered
    assert isinstance(tape, Tape)
    told = [line.partition("(")[0] for line in tape.calls]
    assert told.count("air.scope_enter.default") == told.count("air.scope_exit.default") == 1
    assert told.index("air.record.default") < told.index("air.wait.default")
    inside = told[told.index("air.scope_enter.default") + 1 : told.index("air.scope_exit.default")]
    assert "aten.abs.default" in inside
    assert "aten.sub.Tensor" in inside
    assert "aten.mm.default" not in inside
