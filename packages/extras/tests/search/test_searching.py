"""search=optuna through the command line: proposes, prunes what is illegal, resumes, shares the ledger of sweeps."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from nursery import command

from airflow_free.errors import OrchestratorError
from airflow_free.ledger import Trial
from npucompose.experiment.sweep.run import PointLedger
from npucompose.schema.sweep import Dimension, Optuna
from npucompose_extras.search.study import Space, Study
from tests.experiment.sweeping import check_folders, entries, none_left, statuses, sweep, write_factories

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs Optuna: pip install 'npucompose[optuna]'"
)
SPACE = """
# @package _global_
defaults:
  - override /search: optuna
  - override /pipeline: compile_only
search:
  trials: 10
  objectives: {compile_s: minimize}
  space:
    mode: {one_of: [reduce-overhead, eager]}
    passes: {one_of: [[], [stream_plan]], when: {mode: [reduce-overhead]}}
    model.size: {low: 2, high: 9}
    streams.min_gain: {low: 0.001, high: 0.5, log: true, when: {passes: [[stream_plan]]}}
    tiling: {one_of: [host, sink]}
"""
"""Tiling sink has no effect in reduce-overhead: a point with both is illegal."""


def with_space(folder: Path, text: str = SPACE) -> list[str]:
    (folder / "mine" / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "mine" / "experiment" / "find.yaml").write_text(text.lstrip())
    return ["--config-dir", "mine", "experiment=find", "model=add"]


def trials(folder: Path) -> list[Trial]:
    with PointLedger.open(folder / ".npucompose") as ledger:
        (study,) = {row[0] for row in ledger.connection.execute("SELECT study FROM trials")}
        return ledger.trials(study)


@pytest.mark.slow
def test_a_search_over_every_kind_of_dimension_prunes_resumes_and_goes_on(tmp_path: Path) -> None:
    asked = with_space(tmp_path)
    first = sweep(tmp_path, *asked)
    assert first.returncode == 0, first.stdout + first.stderr
    found = trials(tmp_path)
    assert [trial.number for trial in found] == list(range(10))
    for trial in found:
        assert ("passes" in trial.params) == (json.loads(str(trial.params["mode"])) == "reduce-overhead")
        assert ("streams.min_gain" in trial.params) == (trial.params.get("passes") == '["stream_plan"]')
        assert type(trial.params["model.size"]) is int
        illegal = (trial.params["mode"], trial.params["tiling"]) == ('"reduce-overhead"', '"sink"')
        assert trial.state == ("pruned" if illegal else "complete")
        assert (trial.values is None) == (trial.state == "pruned")
    states = Counter(trial.state for trial in found)
    assert states["pruned"]
    assert states["complete"]
    by_key = {entry.key: entry for entry in entries(tmp_path)}
    assert {trial.key for trial in found} == set(by_key)
    for trial in found:
        entry = by_key[trial.key]
        assert (entry.status, entry.figures.compile_s) == (
            ("illegal", None) if trial.values is None else ("ok", trial.values[0])
        )
    check_folders(tmp_path)
    best = min(value for trial in found for value in trial.values or ())
    assert f"compile_s {best:g}" in first.stdout
    again = sweep(tmp_path, *asked)
    assert again.returncode == 0
    assert "0 jobs: none done" in again.stdout
    assert f"compile_s {best:g}" in again.stdout
    further = sweep(tmp_path, *asked, "search.trials=13")
    assert "3 jobs" in further.stdout
    assert [trial for trial in trials(tmp_path) if trial.number < 10] == found
    assert len(trials(tmp_path)) == 13
    (folder,) = {
        p.parent for p in tmp_path.glob("multirun/*/*/points.json") if len(json.loads(p.read_text())["points"]) == 3
    }
    assert none_left(tmp_path)
    assert folder.is_dir()


@pytest.mark.slow
def test_several_objectives_give_a_front_and_failures_are_told(tmp_path: Path) -> None:
    text = SPACE.replace("{compile_s: minimize}", "{compile_s: minimize, pool_bytes: maximize}")
    text = (
        text.partition("    mode:")[0]
        + '    model.factory: {one_of: ["points:fine0", "points:fine1", "points:raises"]}\n'
    )
    text = text.replace("compile_only", "check")
    asked = [*with_space(tmp_path, text)[:3], "model=python", "trust=true"]
    done = sweep(tmp_path, *asked, "search.trials=8", "search.sampler=random")
    assert done.returncode == 3, done.stdout + done.stderr
    found = trials(tmp_path)
    assert {trial.state for trial in found} == {"complete", "failed"}
    assert all(len(trial.values or (0, 0)) == 2 for trial in found)
    assert "Pareto front, " in done.stdout
    assert statuses(tmp_path) == {"ok": 2, "failed": 1}
    healed = sweep(tmp_path, *asked, "search.trials=8", "search.sampler=random", "retry=failed")
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert {trial.state for trial in trials(tmp_path)} == {"complete"}


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = with_space(tmp_path)
    write_factories(tmp_path)
    process = subprocess.Popen(command("run.py", "-m", *asked), cwd=tmp_path)
    for _ in range(600):
        if (tmp_path / ".npucompose" / "sweeps.sqlite").exists() and len(entries(tmp_path)) >= 3:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert none_left(tmp_path)
    before = trials(tmp_path)
    assert 1 <= len(before) < 10
    assert sweep(tmp_path, *asked).returncode == 0
    assert [trial for trial in trials(tmp_path) if trial.number in {t.number for t in before}] == before
    assert [trial.number for trial in trials(tmp_path)] == list(range(10))
    check_folders(tmp_path)


@pytest.mark.parametrize(
    ("params", "values", "said"),
    [
        ({}, (1.0,), "seed"),
        ({"seed": 7}, (1.0,), "seed"),
        ({"seed": "one"}, (1.0,), "one"),
        ({"seed": 2}, (1.0, 2.0), "values"),
        ({"seed": 2}, None, "complete"),
    ],
)
def test_a_trial_of_a_stranger_that_fits_no_search_is_one_sentence(
    params: dict[str, object], values: tuple[float, ...] | None, said: str, tmp_path: Path
) -> None:
    options = Optuna(objectives={"p50_us": "minimize"}, space={"seed": Dimension(low=1, high=3)})
    told = Trial(study="s", number=4, key="a" * 64, state="complete", params=params, values=values)
    with PointLedger.open(tmp_path) as ledger:
        ledger.write_trial(told)
        with pytest.raises(OrchestratorError, match=f"cannot be used: trial 4 of the study 's': .*{said}"):
            Study("s", options, Space(dimensions=options.space, base=()), ledger)
