"""Ejected scripts on the genuine TorchAir above the stand-in: the frozen hooks meet the graphs that TorchAir makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.recipe import eject
from tests.recipe.experiments import EXPERIMENTS

HERE = Path(__file__).resolve().parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        util.find_spec("npucompose.targets.npu_offline") is None
        or util.find_spec("npucompose.targets.npu_offline.standin") is None,
        reason="target=npu_offline is not part of this version",
    ),
]


def ran(overrides: list[str], script: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "on_standin.py")],
        input=json.dumps({"overrides": overrides, "script": script}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


def outcome(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"graphs"')))


def offline(name: str) -> list[str]:
    overrides = [*EXPERIMENTS[name], "target=npu_offline"]
    try:
        api.checked(overrides)
    except ConfigError as error:
        pytest.skip(str(error))
    return overrides


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_script_run_by_torchair_gives_the_graph_of_the_experiment(name: str) -> None:
    overrides = offline(name)
    experiment, script = outcome(ran(overrides)), outcome(ran(overrides, eject(*EXPERIMENTS[name])))
    assert script["equal"]
    assert script["counts"]["captures"] == experiment["counts"]["captures"]
    if api.checked(overrides).passes:
        assert script["graphs"] == experiment["graphs"]


def test_a_script_meets_another_graph_and_says_so() -> None:
    overrides = offline("branches")
    done = ran([*overrides, "model.depth=3"], eject(*EXPERIMENTS["branches"]))
    assert done.returncode != 0
    assert "were frozen for the graph" in done.stderr
