"""Target npu above torch_npu, with a torch_npu that only notes what it is asked: needs no device and no CANN."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.models.base import Built
from npucompose.npu.torchair import config, facts, target
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets import npu
from npucompose.targets.npu import CANN_VARIABLES, NpuTarget


class Npu(SimpleNamespace):
    """torch.npu: so many devices, or none that are available; `asked` is what was done to them."""

    def __init__(self, count: int, available: bool = True) -> None:
        super().__init__(count=count, available=available, asked=[])

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.asked.append(("set_device", index))

    def synchronize(self, index: int) -> None:
        self.asked.append(("synchronize", index))


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Npu]:
    """`platform(count)`: torch_npu can be imported and finds so many devices."""

    def make(count: int, available: bool = True) -> Npu:
        made = Npu(count, available)
        monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
        monkeypatch.setattr(torch, "npu", made, raising=False)
        return made

    return make


def test_what_the_target_says_of_itself() -> None:
    assert (NpuTarget().index, NpuTarget().device_index, NpuTarget(index=3).device_index) == (0, 0, 3)
    assert NpuTarget(index=3).identity() == {"npu": "device 3"}
    assert (NpuTarget().platform(), NpuTarget.device_variable) == ("device", "ASCEND_RT_VISIBLE_DEVICES")
    with pytest.raises(ValueError, match="index"):
        NpuTarget(index=-1)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("variable", [*CANN_VARIABLES, None])
def test_the_package_and_canns_environment_must_be_there_and_each_that_is_not_is_named(
    monkeypatch: pytest.MonkeyPatch, installed: bool, variable: str | None
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in CANN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "/cann")
    monkeypatch.setattr(npu.util, "find_spec", lambda name: "found" if name == "torch_npu" and installed else None)
    if installed and variable is not None:
        NpuTarget().check("eager")
        return
    with pytest.raises(ConfigError, match="target=npu needs an Ascend device with CANN") as refused:
        NpuTarget().check("eager")
    words = str(refused.value)
    assert ("the package torch_npu is not installed" in words) is not installed
    said = "CANN's environment is not set (ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME; source its set_env.sh)"
    assert (said in words) is (variable is None)
    assert "`npucompose doctor`" in words


def test_a_mode_it_does_not_have_is_refused_before_anything_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="mode=turbo cannot run on target=npu"):
        NpuTarget().check("turbo")


def test_the_platform_is_its_device_of_those_that_torch_npu_finds(platform: Callable[..., Npu]) -> None:
    made = platform(2)
    NpuTarget(index=1).load_platform("eager")
    assert made.asked == [("set_device", 1)]
    for count, available, finds in ((1, True, 1), (4, False, 0)):
        made = platform(count, available)
        with pytest.raises(ConfigError, match=f"needs device npu:1, and torch_npu finds {finds}.*npu_offline"):
            NpuTarget(index=1).load_platform("eager")
        assert made.asked == []


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_what_the_loader_says_is_said(
    monkeypatch: pytest.MonkeyPatch, platform: Callable[..., Npu], error: type[Exception]
) -> None:
    def fails() -> bool:
        raise error("libhccl.so: no such file")

    made = platform(1)
    monkeypatch.setattr(made, "is_available", fails)
    with pytest.raises(ConfigError, match=r"torch_npu cannot be loaded: libhccl\.so: no such file.*doctor") as refused:
        NpuTarget().load_platform("eager")
    assert isinstance(refused.value.__cause__, error)


def test_the_platform_is_loaded_for_eager_too_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(NpuTarget, "load_platform", lambda self, mode: seen.append(f"platform for {mode}"))
    monkeypatch.setattr(config, "package", lambda name: seen.append(f"package {name}"))
    monkeypatch.setattr(target, "watch", lambda name: seen.append(f"calls of {name} are counted"))
    monkeypatch.setattr(facts, "watch_ge", lambda: seen.append("GE is watched"))
    for mode in ("eager", GE):
        NpuTarget().prepare(mode)
    assert seen == [
        "platform for eager",
        f"platform for {GE}",
        "package torchair",
        "calls of torchair are counted",
        "GE is watched",
    ]


def test_its_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu.metadata, "version", lambda name: f"{name} 2.13.0")
    assert NpuTarget().package_version() == "torch_npu 2.13.0"


def test_captures_are_what_torchairs_counters_say(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"npugraph_ex": Counter(captured_a=2, captured_b=3, recaptured=7)}
    monkeypatch.setattr(torch._dynamo.utils, "counters", counted)
    counts = {mode: NpuTarget().counts(mode) for mode in (GE, ACLGRAPH, NPUGRAPH_EX)}
    assert counts == {GE: {"captures": 0}, ACLGRAPH: {"captures": 5}, NPUGRAPH_EX: {"captures": 5}}


def test_a_model_and_its_inputs_are_moved_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: (self.tolist(), device))
    module: Any = SimpleNamespace(to=lambda device: ("module", device))
    built = Built(module=module, inputs=lambda step: {"x": torch.full((1,), float(step)), "n": step}, steps=5)
    placed = NpuTarget(index=1).place(built)
    assert (placed.module, placed.steps) == (("module", "npu:1"), 5)
    assert placed.inputs(2) == {"x": ([2.0], "npu:1"), "n": 2}


def test_synchronize_waits_for_its_own_device(platform: Callable[..., Npu]) -> None:
    made = platform(4)
    NpuTarget(index=3).synchronize()
    assert made.asked == [("synchronize", 3)]
