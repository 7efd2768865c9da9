"""The parts of a kit's program that need no device: what its profile and its times come to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose_devtools.device_kit.kit_files import my_model, observe, run_kit


def test_inputs_in_lists_and_mappings_are_moved_to_the_device() -> None:
    x = torch.ones(2)
    moved = observe._moved((x, [x, 3], {"mask": x, "name": "n"}), "meta")
    assert type(moved) is tuple
    first, (second, three), named = moved
    assert [t.device.type for t in (first, second, named["mask"])] == ["meta"] * 3
    assert (three, named["name"]) == (3, "n")


PROFILE = """Type,Name,Duration(us),{stream}
MatMul,mm_1,2.5,7
MatMul,mm_2,1.5,3
,Add_1,1,
"""


def profiler(stream: str, calls: list[dict[str, Any]]) -> ModuleType:
    """torch_npu with a profiler that writes `PROFILE` of what runs in it."""

    @contextlib.contextmanager
    def profile(activities: list[str], on_trace_ready: Path) -> Iterator[None]:
        yield
        on_trace_ready.mkdir(parents=True)
        (on_trace_ready / "kernel_details.csv").write_text(PROFILE.format(stream=stream) if calls else "")

    fake: Any = ModuleType("torch_npu")
    activities = SimpleNamespace(CPU="cpu", NPU="npu")
    fake.profiler = SimpleNamespace(
        profile=profile,
        ProfilerActivity=activities,
        tensorboard_trace_handler=lambda folder: Path(folder) / "deep" / "down",
    )
    return fake


@pytest.mark.parametrize("stream", ["Stream ID", "Stream Id"])
def test_a_profile_comes_to_calls_times_and_streams_of_each_kernel(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "torch_npu", profiler(stream, calls))
    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=lambda: None), raising=False)
    found = observe._profiled(lambda **inputs: calls.append(inputs), {"x": 1}, str(tmp_path))
    assert calls == [{"x": 1}]
    assert found == {
        "MatMul": {"calls": 2, "us": 4.0, "streams": ["3", "7"]},
        "Add_1": {"calls": 1, "us": 1.0, "streams": []},
    }


def test_a_profile_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", profiler("Stream ID", []))
    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=lambda: None), raising=False)
    with pytest.raises(RuntimeError, match="left no kernel_details"):
        observe._profiled(lambda: None, {}, str(tmp_path))


def test_the_time_of_a_call_is_the_median_where_there_are_samples() -> None:
    assert run_kit._p50({"times_us": {"compiled": [5.0, 1.0, 3.0]}}) == 3.0
    assert run_kit._p50({"times_us": {"compiled": []}}) is None
    assert run_kit._p50({}) is None


def test_an_untouched_kit_says_that_the_model_is_missing() -> None:
    made, inputs = my_model.make()
    assert not made.training
    with pytest.raises(NotImplementedError, match="put your model here"):
        made(**inputs)


def test_values_of_a_configuration_become_plain_ones() -> None:
    assert observe._plain({"a": (1, [2.5, None]), 3: {"b": True}, "c": object}) == {
        "a": [1, [2.5, None]],
        "3": {"b": True},
        "c": "an object",
    }


def test_the_model_is_made_from_the_seed_of_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an option and without it the weights must be the same."""
    seeds: list[int] = []

    def make() -> None:
        seeds.append(torch.initial_seed())
        raise KeyboardInterrupt

    (tmp_path / "kit.json").write_text('{"seed": 71}')
    monkeypatch.setattr(observe, "HERE", tmp_path)
    monkeypatch.setattr(observe, "CallCounter", lambda: SimpleNamespace(begin=lambda: None))
    monkeypatch.setattr(observe, "_without", lambda *asked: {})
    for name, module in {"torch_npu": None, "compiled": None, "my_model": SimpleNamespace(make=make)}.items():
        monkeypatch.setitem(sys.modules, name, module or SimpleNamespace())
    with torch.random.fork_rng(), pytest.raises(KeyboardInterrupt):
        observe.observe({"without": None})
    assert seeds == [71]
