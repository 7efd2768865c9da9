"""The door to recordings: what asks it, and what a core without a recorder does, says and refuses."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose import recorder
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.errors import CaptureError, ConfigError
from npucompose.recorder import MISSING, RECORDERS, Recorder
from npucompose.report import doctor
from npucompose.targets.cpu import UNRECORDED, CpuTarget
from npucompose.targets.cuda import CudaTarget

MODES = ("reduce-overhead", "max-autotune", "npugraph_ex")


@pytest.fixture
def no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "installed", lambda: None)


def test_the_recorder_is_found_by_its_entry_point() -> None:
    assert isinstance(recorder.installed(), Recorder)
    assert recorder.installed() is RECORDERS.get("replay") is recorder.needed("nothing")


def test_a_value_that_lacks_an_answer_is_no_recorder() -> None:
    assert not isinstance(SimpleNamespace(detach_call=None), Recorder)


@pytest.mark.usefixtures("no_recorder")
@pytest.mark.parametrize("mode", MODES)
def test_without_a_recorder_a_graph_runs_as_the_passes_left_it(mode: str) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False), torch.rand(4, 8)
    fast = npucompose.compile(model, f"mode={mode}", "passes=cse")
    assert torch.equal(fast(x), model(x))
    (compilation,) = fast.materialised.backend.compilations
    assert compilation.lowered is None
    assert [one.name for one in compilation.passes] == ["cse"]
    assert fast.statistics == type(fast.statistics)()
    assert fast.materialised.backend.recordings() == []


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_one_line_says_what_is_missing() -> None:
    assert CpuTarget().warnings("reduce-overhead") == (
        "target=cpu runs the graph as the passes left it: npucompose-replay is not installed: "
        "pip install 'npucompose[replay]'.",
    )
    assert CudaTarget().warnings("eager") == ()


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_what_only_it_can_do_is_refused_by_its_name() -> None:
    fast, x = npucompose.compile(nn.ReLU(), "mode=reduce-overhead"), torch.rand(3)
    for refused in (lambda: fast.detach(x), fast.recapturing, lambda: recorder.needed("memory is not foretold")):
        with pytest.raises(CaptureError, match=re.escape(MISSING)):
            refused()
    with pytest.raises(ConfigError, match="npucompose-replay"):
        CpuTarget().lower(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_a_session_says_why_nothing_is_detached() -> None:
    session = Session(check(compose(["model=tiny_ops", "mode=reduce-overhead"])))
    assert session.detached is None
    assert session.why_attached == MISSING


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_a_target_can_less_and_has_another_key() -> None:
    target, plain = CpuTarget(), CpuTarget().support("eager")
    for mode in MODES:
        can = target.support(mode)
        assert (can.captures, can.fuses, can.replays_fused, can.options) == (False, False, False, frozenset())
        assert can.compiles
    assert not plain.compiles
    assert target.identity()["replayer"] == UNRECORDED
    graph: Any = None
    assert target.partition("reduce-overhead", graph) is target.planned("reduce-overhead", graph, ()) is None
    assert target.common_memory() is target.restored(graph, graph, (), {}) is None
    assert target.stream_times(()) == target.kernel_clocks(()) == {}


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_the_doctor_names_it() -> None:
    assert doctor.native_replayer() == f"none: {MISSING}"
    assert doctor.kernel_times() == ()


@pytest.mark.usefixtures("no_recorder")
def test_without_a_recorder_gradients_flow() -> None:
    model = nn.Linear(4, 4)
    fast, x = npucompose.compile(model, "mode=max-autotune"), torch.rand(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fast(x).sum().backward()
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, x.sum(0).expand(4, 4))
