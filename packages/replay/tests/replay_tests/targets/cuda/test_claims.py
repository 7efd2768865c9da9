"""The claims about a GPU, run on the CPU: that they can be run, and can fail. What a GPU does only a GPU can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose.graphs import recordable
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.detached import DetachedHandle
from replay_tests.targets.cuda import claims


@pytest.mark.parametrize("model", [pytest.param("tiny_ops", marks=pytest.mark.slow), "parallel_branches"])
def test_models_agree(model: str) -> None:
    found = claims.agrees("cpu", model, claims.MODELS[model])
    assert found["bitwise"]
    assert found["kernels"] > 0
    assert found["streams"] == (2 if model == "parallel_branches" else 1)


def test_a_replay_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = CapturedGraph.try_replay

    def wrong(self: CapturedGraph, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        outputs = genuine(self, inputs)
        return None if outputs is None else [output + 1 for output in outputs]

    monkeypatch.setattr(CapturedGraph, "try_replay", wrong)
    with pytest.raises(AssertionError):
        claims.signatures_take_turns("cpu")


def test_random_numbers_and_signatures() -> None:
    claims.random_numbers_go_on("cpu")
    claims.signatures_take_turns("cpu")


def test_results_live_on_and_operators_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claims.results_live_on("cpu") == {"warnings": 1, "overwritten": True}
    assert claims.operators_run_once("cpu") == {"calls": 4, "calls_of_the_host_code": 4}
    monkeypatch.setattr(CapturedGraph, "try_replay", lambda self, inputs: self._reusing(inputs))
    with pytest.raises(AssertionError):
        claims.results_live_on("cpu")


def test_times_have_a_spread() -> None:
    found = claims.decoding("cpu", 5, "model.hidden=32", "model.layers=1", "model.ffn=32", "model.steps=3")
    assert list(found) == ["eager", "npucompose", "npucompose, detached"]
    assert all(0 < one["p25_us"] <= one["p50_us"] <= one["p75_us"] for one in found.values())


@pytest.mark.parametrize("mode", [claims.RECORDED[0], pytest.param(claims.RECORDED[1], marks=pytest.mark.slow)])
def test_the_rules_of_both_modes_can_be_asked(mode: str) -> None:
    claims.what_the_host_holds_counts("cpu", mode)
    claims.signatures_take_turns("cpu", mode)
    assert claims.results_live_on("cpu", mode)["overwritten"]
    assert claims.operators_run_once("cpu", mode, unsafe=True)["calls_of_the_host_code"] == 4


def test_an_operator_that_a_replay_leaves_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordable, "is_unsafe", lambda op: False)
    skipped = lambda self, inputs: [torch.full((4,), 9.0)]  # noqa: E731
    monkeypatch.setattr(CapturedGraph, "try_replay", skipped)
    with pytest.raises(AssertionError, match=r"call [234]"):
        claims.operators_run_once("cpu", unsafe=True)


def test_a_recording_that_others_spoil_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    claims.torchs_own_graphs_beside("cpu")
    genuine, calls = DetachedHandle.__call__, [0]

    def spoilt(self: DetachedHandle, *args: Any) -> Any:
        calls[0] += 1
        return genuine(self, *args) + (calls[0] > 3)

    monkeypatch.setattr(DetachedHandle, "__call__", spoilt)
    with pytest.raises(AssertionError):
        claims.torchs_own_graphs_beside("cpu")


@pytest.mark.slow
def test_frozen_weights_are_followed_and_all_ways_are_timed() -> None:
    assert claims.weights_are_followed("cpu") == {"warnings": 1}
    found = claims.ways_side_by_side("cpu", "mlp", 5, "model.hidden=32")
    assert [name for name in found if "max-autotune" in name] == [
        "npucompose max-autotune, not detached", "npucompose max-autotune", "torch max-autotune",
    ]  # fmt: skip
    assert all(one["p50_us"] > 0 and one["made_s"] >= 0 for one in found.values())


@pytest.mark.slow
def test_small_kernels_and_a_whole_job(tmp_path: Path) -> None:
    assert "torch reduce-overhead" in claims.small_kernels("cpu", rounds=5)
    assert claims.a_whole_job("cpu", tmp_path, "benchmark=quick", "model=mlp")["fastest"]


def test_the_pools_of_captures_are_foretold() -> None:
    found = claims.pools_are_foretold("cpu")
    assert 0 < found["shared"] < found["apart"]
