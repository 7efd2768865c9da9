"""What a call from Python takes is measured with nothing to compute, and taken off where a replay calls by address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose.targets import calls_from_python
from npucompose.targets.calls_from_python import SHORTEST_US, nanoseconds, without_call


@pytest.fixture(autouse=True)
def measured_anew() -> Iterator[None]:
    calls_from_python._call_us.cache_clear()
    yield
    calls_from_python._call_us.cache_clear()


@pytest.mark.parametrize("library", ["mm", "addmm", "bmm", "mkl_linear"])
def test_a_product_that_a_replay_calls_by_address_loses_its_call(library: str) -> None:
    if library == "mkl_linear" and not hasattr(torch.ops.mkl, "_mkl_linear"):
        pytest.skip("this torch has no MKL")
    with FakeTensorMode():  # as in a compilation
        left = without_call(library, 1e6)
    assert 0 < 1e6 - left < 1e4, "a call takes some microseconds"
    assert without_call(library, 0.0) == SHORTEST_US


def test_a_template_and_an_operator_of_onednn_keep_their_time() -> None:
    for name in ("template", "linear_pointwise"):
        assert without_call(name, 7.0) == 7.0


def test_of_many_calls_the_median_counts_and_they_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def nanoseconds(call: Any) -> int:
        asked.append(call)
        assert all(one.numel() == 1 for one in call.args)
        return 5000 if len(asked) % 3 else 900_000

    monkeypatch.setattr(calls_from_python, "nanoseconds", nanoseconds)
    assert [without_call("bmm", us) for us in (105.0, 11.0)] == [100.0, 6.0]
    assert len(asked) == calls_from_python.CALLS


def test_nanoseconds_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((1_000, 4_500))
    monkeypatch.setattr(calls_from_python, "perf_counter_ns", lambda: next(clock))
    made: list[int] = []
    assert nanoseconds(lambda: made.append(1)) == 3_500
    assert made == [1]
