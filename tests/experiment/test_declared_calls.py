"""Runs with declared calls (model.sequence), from the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nursery import command

from tests.npu.needs import offline
from tests.npu.needs import run as run_offline

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = "model.sequence=[{actual_seq_lengths_kv:[70,71]},{actual_seq_lengths_kv:[80,90]}]"
MARKED = ("shapes=dynamic", "shapes.mark_static=[query,key,value]")


def run(folder: Path, *overrides: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        command("run.py", "hydra.run.dir=out", *overrides),
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = folder / "out" / "report.json"
    return done.returncode, json.loads(report.read_text()) if report.is_file() else {}, done.stderr


def test_each_recompilation_names_its_call_its_argument_and_what_avoids_it(tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "model=linear_scalar", "pipeline=check", "expect.recompiles=1", "expect.captures=4",
        "model.sequence=[{x.0:6},{times:4},{},{x:transposed}]",
    )  # fmt: skip
    assert status == 1
    assert report["status"] == "expect_failed"
    assert [(r["compile_id"], r["argument"], r["call"]) for r in report["recompiles"]] == [
        ("0/1", "x", "call 1 of model.sequence (x.0: 6)"),
        ("0/2", "times", "call 2 of model.sequence (times: 4)"),
        ("0/3", "x", "call 4 of model.sequence (x: transposed)"),
    ]
    assert [r["avoid"].partition(":")[0] for r in report["recompiles"]] == [
        "shapes=dynamic, or shapes.mark_dynamic",
        "shapes=dynamic",
        "pass tensors of one stride order",
    ]
    made = report["stages"]["sequence"]
    assert [call["recompiles"] for call in made["calls"]] == [0, 1, 1, 0, 1]
    assert all(call["passed"] for call in made["calls"])
    assert (made["graphs"], made["captures"], len(report["graphs"])) == (4, 4, 4)
    missed, held = report["expectations"]
    assert (missed["name"], missed["got"], missed["held"], len(missed["evidence"])) == ("recompiles", 3, False, 3)
    assert (held["name"], held["got"], held["held"]) == ("captures", 4, True)
    assert "expect.recompiles wanted 1, got 3 (0/1 in call 1 of model.sequence (x.0: 6): tensor 'x'" in error
    assert report["numerics"]["bitwise"]
    assert {p.name for p in (tmp_path / "out" / "graphs").iterdir()} >= {"graph_3.before.txt", "graph_3.after.txt"}


@pytest.mark.parametrize(
    ("model", "calls", "words"),
    [
        ("linear_scalar", "[{x.0:6},{time:4}]", "unknown input 'time' @ model.sequence[1]. Did you mean 'times'?"),
        ("add", "[{x.0:6}]", "model.sequence[0] (x.0: 6): the model cannot take these inputs, even in eager: Runtime"),
        ("add", "[{x.0:a}]", "must be an integer or a number or true or false or one of transposed, unmarked"),
    ],
)
def test_calls_that_do_not_fit_are_refused_and_leave_nothing(
    model: str, calls: str, words: str, tmp_path: Path
) -> None:
    status, report, error = run(tmp_path, f"model={model}", "pipeline=check", f"model.sequence={calls}")
    assert (status, report) == (2, {})
    assert words in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob(".npucompose/records/*/*"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_that_varies_its_numbers_by_itself_is_counted_as_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The comparison compiled for times 3, 4 and 5 already; the declared call with 5 is still one more."""
    status, report, error = run(
        tmp_path, "model=linear_scalar", "model.vary=true", "mode=max-autotune", "pipeline=check",
        "model.sequence=[{times:5}]",
    )  # fmt: skip
    assert status == 0, error
    assert [r["call"] for r in report["recompiles"]] == [
        "step 1 of the comparison",
        "step 2 of the comparison",
        "call 1 of model.sequence (times: 5)",
    ]
    assert report["stages"]["sequence"]["graphs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_a_recording_is_compared_on_the_calls_it_was_made_for(shapes: str, tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "model=linear_scalar", "model.vary=true", "pipeline=check", f"shapes={shapes}"
    )
    assert status == 0, error
    assert report["stages"]["capture"]["detached"]
    assert report["stages"]["replay"]["replays"] == 4  # three steps through torch.compile, one by the handle
    ended = report["stages"]["replay"]["detached_ended"]
    assert ended.startswith("at step 1 of 3: captured for ")
    assert len(report["recompiles"]) == (2 if shapes == "static" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["static", "auto", "dynamic"])
@pytest.mark.parametrize("mode", ["eager", "reduce-overhead", "max-autotune"])
def test_declared_calls_equal_eager_in_every_mode_and_policy(mode: str, shapes: str, tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "model=mlp", f"mode={mode}", f"shapes={shapes}", "benchmark=quick",
        "model.sequence=[{x.0:20},{x.0:24}]",
    )  # fmt: skip
    assert status == 0, error
    expected = {"static": 2, "auto": 1, "dynamic": 0}[shapes] if mode != "eager" else 0
    assert len(report["recompiles"]) == expected
    assert [r["stage"] for r in report["records"]][-2:] == ["benchmark", "sequence"]


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead", "npugraph_ex"])
def test_constant_lengths_compile_once_per_value_and_symbols_once(mode: str, tmp_path: Path) -> None:
    chosen = (f"mode={mode}", "model=attention_decode", LENGTHS, "expect.recompiles=0")
    (tmp_path / "static").mkdir()
    status, report, _ = run_offline(tmp_path / "static", *chosen)
    assert status == 1
    assert [r["argument"] for r in report["recompiles"]] == ["actual_seq_lengths_kv"] * 2
    assert report["npu"]["fx_graphs"] == 3
    status, report, error = run_offline(tmp_path, *chosen, *MARKED)
    assert status == 0, error
    assert (report["recompiles"], report["npu"]["fx_graphs"]) == ([], 1)
    captures = report["stages"]["sequence"]["captures"]
    assert captures == report["npu"]["captures"] == (0 if mode == "max-autotune" else 1)
