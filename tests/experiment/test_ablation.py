"""pipeline=ablation: which lists of passes are tried, and what a run says of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nursery import command

from npucompose.api import checked
from npucompose.errors import ConfigError
from npucompose.experiment.stages import ablation
from npucompose.experiment.stages.ablation import AblationStage, Variant, check, lists
from npucompose.measure.timing import Samples

ROOT = Path(__file__).resolve().parents[2]
PASSES = """
import torch

aten = torch.ops.aten


def _swap(gm, old, new):
    for node in gm.graph.nodes:
        if node.target is old:
            node.target = new


def wrong(gm, example_inputs, config):
    _swap(gm, aten.abs.default, aten.neg.default)


def repair(gm, example_inputs, config):
    _swap(gm, aten.neg.default, aten.abs.default)
"""
MINE = """
# one that breaks the model, and one that mends it
wrong: {pass: python, function: "own_passes:wrong"}
cse: {}
repair: {pass: python, function: "own_passes:repair"}
"""


def test_each_pass_is_left_out_and_one_after_the_other_comes_in() -> None:
    assert lists(["a", "b", "c"]) == {
        "all passes": ("a", "b", "c"),
        "without a": ("b", "c"),
        "without b": ("a", "c"),
        "without c": ("a", "b"),
        "up to a": ("a",),
        "no pass": (),
    }


def test_each_list_has_its_own_times_and_a_wrong_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(live: Any, wanted: Any, row: Any, progress: Any) -> Any:
        rows = [Variant(name=name, passes=(), passed=name != "no pass") for name in wanted]
        return rows, {"all passes": Samples(us=(4.0, 4.0)), "without cse": Samples(us=(8.0, 2.0))}

    monkeypatch.setattr(ablation, "in_one_process", tried)
    live: Any = SimpleNamespace(checked=SimpleNamespace(passes=[("cse", None), ("clean", None)]), with_passes=print)
    found = {one["name"]: one for one in AblationStage().run(live, print)["ablation"]["variants"]}
    assert {name: one["ratio"] for name, one in found.items()} == {
        "all passes": 1.0, "without cse": 1.25, "without clean": None, "no pass": None,
    }  # fmt: skip
    assert found["without cse"]["timing"]["samples_us"] == [8.0, 2.0]


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], ["a", "b", "c", "d", "e"]])
def test_no_list_is_tried_twice_and_none_is_forgotten(labels: list[str]) -> None:
    found = list(lists(labels).values())
    assert len(found) == len(set(found))
    wanted = {tuple(labels[:count]) for count in range(len(labels) + 1)}
    wanted |= {tuple(other for other in labels if other != label) for label in labels}
    assert set(found) == wanted


@pytest.mark.parametrize(
    ("overrides", "words"),
    [(["passes=[]"], "needs passes to leave out"), (["mode=eager", "passes=cse"], "mode=eager runs no pass")],
)
def test_where_there_is_nothing_to_leave_out_it_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(checked(["model=add", "strict=off", *overrides]))


def run(folder: Path, *overrides: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    (folder / "own_passes.py").write_text(PASSES)
    (folder / "mine" / "passes").mkdir(parents=True)
    (folder / "mine" / "passes" / "mine.yaml").write_text(MINE)
    path = os.pathsep.join(filter(None, [*sys.path, str(folder)]))
    done = subprocess.run(
        command("run.py", "hydra.run.dir=out", "pipeline=ablation", "benchmark=quick", *overrides),
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    report = json.loads((folder / "out" / "report.json").read_text())
    assert "What each pass contributes" in (folder / "out" / "report.html").read_text()
    return done, report["stages"]["ablation"]["variants"]


@pytest.mark.slow
def test_a_list_with_wrong_results_is_told_and_not_timed_and_the_others_are_timed_in_turns(tmp_path: Path) -> None:
    done, variants = run(
        tmp_path, "model=mm_abs_sub", "passes=mine", "trust=true", "--config-dir", str(tmp_path / "mine")
    )
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in variants}
    assert list(found) == ["all passes", "without wrong", "without cse", "without repair", "up to wrong", "no pass"]
    passed = {name for name, one in found.items() if one["passed"]}
    assert passed == {"all passes", "without wrong", "without cse", "no pass"}
    assert "differ" in found["up to wrong"]["problem"]
    for name, one in found.items():
        assert (one["timing"] is not None) == (one["ratio"] is not None) == (name in passed)
    samples = {len(found[name]["timing"]["samples_us"]) for name in passed}
    assert len(samples) == 1
    assert found["all passes"]["ratio"] == 1
    assert found["no pass"]["nodes"] == found["all passes"]["nodes"]
    assert "up to wrong" in done.stdout


@pytest.mark.slow
def test_more_lists_than_dynamo_keeps_versions_are_timed_where_nothing_is_recorded(tmp_path: Path) -> None:
    passes = "passes=[replace,cse,dead_code,remove_noop,cancel_moves]"
    done, variants = run(tmp_path, "model=mlp", "mode=max-autotune", passes)
    assert done.returncode == 0, done.stderr
    assert len(variants) == 10
    assert all(one["passed"] and one["timing"] is not None for one in variants)
