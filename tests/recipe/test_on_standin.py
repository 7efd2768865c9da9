"""Ejected scripts on the genuine TorchAir above the stand-in: the frozen hooks meet the graphs that TorchAir makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.recipe import eject
from tests.recipe.experiments import EXPERIMENTS

HERE = Path(__file__).resolve().parent


def ran(folder: Path, overrides: list[str], script: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "on_standin.py")],
        input=json.dumps({"overrides": overrides, "script": script}),
        capture_output=True,
        text=True,
        cwd=folder,
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


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "gears" else pytest.mark.slow) for n in EXPERIMENTS])
def test_a_script_run_by_torchair_gives_the_configuration_and_the_graph_of_the_experiment(
    name: str, tmp_path: Path
) -> None:
    overrides = offline(name)
    experiment, script = outcome(ran(tmp_path, overrides)), outcome(ran(tmp_path, overrides, eject(*EXPERIMENTS[name])))
    assert script["equal"]
    assert script["as_dict"] == experiment["as_dict"]
    assert script["leaves"] == experiment["leaves"]
    assert script["ge"] == experiment["ge"]
    assert script["counts"]["captures"] == experiment["counts"]["captures"]
    if api.checked(overrides).passes:
        assert script["graphs"] == experiment["graphs"]


@pytest.mark.slow
def test_a_script_meets_another_graph_and_says_so(tmp_path: Path) -> None:
    overrides = offline("branches")
    done = ran(tmp_path, [*overrides, "model.depth=3"], eject(*EXPERIMENTS["branches"]))
    assert done.returncode != 0
    assert "were frozen for the graph" in done.stderr
