"""What the tests of this folder share."""

from __future__ import annotations

import functools

import pytest

from npucompose_replay.captured_graph import CapturedGraph


@pytest.fixture(params=["native", "torchscript", "python"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every claim of a test that uses it is one about each executor."""
    monkeypatch.setattr(CapturedGraph, "capture", functools.partial(CapturedGraph.capture, executor=request.param))
    return request.param
