"""benchmark.against: which modes may be named, who is said to have won, and a run that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nursery import command

from npucompose.api import checked
from npucompose.compose.check import Checked
from npucompose.errors import ConfigError
from npucompose.experiment.job import wanted
from npucompose.experiment.stages import modes
from npucompose.experiment.stages.modes import ROUNDS, check, contest, in_mode
from npucompose.measure.timing import Samples
from npucompose.results.measured import ModeFacts, ModeTime

ROOT = Path(__file__).resolve().parents[2]
AGAINST = "benchmark.against=[max-autotune]"


def mlp(*overrides: str) -> Checked:
    return checked(["model=mlp", *overrides])


def test_the_stage_follows_the_benchmark_where_a_mode_is_named_and_comes_last() -> None:
    assert "modes" not in wanted(mlp())
    assert wanted(mlp(AGAINST))[-1] == "modes"
    declared = wanted(mlp(AGAINST, "model.sequence=[{x.0: 2}]"))
    assert declared[-2:] == ("sequence", "modes")


def asked(*overrides: str) -> None:
    point = mlp(*overrides)
    check(point, wanted(point))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["benchmark.against=[max-autotun]"], "must be one of max-autotune, reduce-overhead"),
        (["benchmark.against=[eager]"], r"against\[0\]: eager is timed already"),
        (["benchmark.against=[reduce-overhead]"], r"against\[0\]: reduce-overhead is timed already"),
        (["benchmark.against=[max-autotune,max-autotune]"], r"against\[1\]: max-autotune is timed already"),
        ([AGAINST, "pipeline=check"], "no effect without the stage benchmark"),
        (["pipeline.stages=[modes]"], "needs modes to time"),
        ([AGAINST, "target=npu_offline", "mode=npugraph_ex"], "every mode needs a process of its own"),
        ([AGAINST, "compile.training=true", "mode=eager", "pipeline.stages=[modes]"], "not measured"),
    ],
)
def test_what_cannot_be_timed_side_by_side_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(*overrides)


def test_the_other_mode_is_the_same_experiment_and_what_is_idle_there_is_no_error() -> None:
    own = mlp(AGAINST, "passes=stream_plan", "compiler.debug.aclgraph.enable_output_clone=true")
    other = in_mode(own, "max-autotune")
    assert {one.option for one in other.effective} >= {"compiler.debug.aclgraph.enable_output_clone"}
    assert (other.passes, other.target, other.model) == (own.passes, own.target, own.model)
    assert other.experiment.compiler is own.experiment.compiler
    with pytest.raises(ConfigError, match="has no effect in mode=max-autotune"):
        mlp("mode=max-autotune", "compiler.debug.aclgraph.enable_output_clone=true")


def test_every_mode_of_the_list_that_cannot_be_timed_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(checked: Checked, mode: str) -> Checked:
        raise ConfigError(f"{mode} cannot run.", "Nor can it be helped.")

    monkeypatch.setattr(modes, "in_mode", cannot)
    with pytest.raises(ConfigError) as refused:
        asked("benchmark.against=[eager,max-autotune,max-autotune]", "mode=reduce-overhead")
    assert refused.value.problems == (
        "benchmark.against[0]: eager is timed already. The experiment's own mode and eager always are.",
        "benchmark.against[1]: max-autotune cannot run.",
        "benchmark.against[1]: Nor can it be helped.",
        "benchmark.against[2]: max-autotune is timed already. The experiment's own mode and eager always are.",
    )


def ended(rounds: int, **ratios: list[float]) -> ModeFacts:
    """A contest of modes named a, b, …: each one's times by those of a."""
    samples = {mode: Samples(us=[10 * r for r in (us * rounds)[:rounds]]) for mode, us in ratios.items()}
    return contest([ModeTime(mode=mode, passed=True) for mode in ratios], samples)


def test_who_is_faster_in_three_rounds_of_four_has_won() -> None:
    found = ended(40, a=[1.0], b=[1.3, 1.2, 1.1, 0.9], eager=[2.0])
    assert (found.fastest, found.won) == ("a", True)
    assert [one.behind is None for one in found.modes] == [True, False, False]
    behind = found.modes[1].behind
    assert behind is not None
    assert behind.low == pytest.approx(1.05)
    assert behind.ratio == pytest.approx(1.15)
    assert behind.high == pytest.approx(1.225)
    spread = ended(41, a=[1.0], b=[1 + at / 100 for at in range(41)]).modes[1].behind
    assert spread is not None
    assert (spread.low, spread.ratio, spread.high) == pytest.approx((1.1, 1.2, 1.3))


def test_who_is_faster_in_half_of_the_rounds_or_in_few_rounds_has_not() -> None:
    assert not ended(40, a=[1.0], b=[1.3, 1.2, 0.9, 0.9]).won
    assert not ended(40, a=[1.0], b=[1.0]).won
    assert not ended(ROUNDS - 1, a=[1.0], b=[1.3]).won
    assert ended(ROUNDS, a=[1.0], b=[1.3]).won


def test_eager_can_win_and_what_gave_wrong_results_cannot() -> None:
    slow, eager = ModeTime(mode="slow", passed=True), ModeTime(mode="eager", passed=True)
    wrong = ModeTime(mode="wrong", passed=False, problem="differs")
    samples = {"slow": Samples(us=[20.0] * 30), "eager": Samples(us=[10.0] * 30)}
    found = contest([slow, wrong, eager], samples)
    assert (found.fastest, found.won) == ("eager", True)
    assert found.modes[1] == wrong
    assert contest([wrong], {}) == ModeFacts(fastest=None, won=False, modes=(wrong,))


def test_two_equal_candidates_hardly_ever_have_a_winner() -> None:
    """A hundred contests of a coin: the rule is worth what its docstring says."""
    torch.manual_seed(0)
    wins = 0
    for _ in range(100):
        one, two = (1 + 0.1 * torch.randn(ROUNDS, 2)).abs().T.tolist()
        wins += contest(
            [ModeTime(mode="a", passed=True), ModeTime(mode="b", passed=True)],
            {"a": Samples(us=one), "b": Samples(us=two)},
        ).won
    assert wins <= 10


def run(folder: Path, *overrides: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    path = os.pathsep.join(filter(None, [*sys.path, str(folder)]))
    done = subprocess.run(
        command("run.py", "hydra.run.dir=out", "benchmark=quick", *overrides),
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "out" / "report.json").read_text())


@pytest.mark.slow
def test_a_run_times_every_mode_in_the_same_rounds_and_each_report_says_who_won(tmp_path: Path) -> None:
    done, report = run(tmp_path, "model=mlp", AGAINST)
    facts = report["stages"]["modes"]
    assert [one["mode"] for one in facts["modes"]] == ["reduce-overhead", "max-autotune", "eager"]
    assert [one["candidate"] for one in facts["modes"]] == ["replay", "replay", "eager"]
    assert all(one["passed"] for one in facts["modes"])
    assert len({len(one["timing"]["samples_us"]) for one in facts["modes"]}) == 1
    assert [one["mode"] for one in facts["modes"] if one["behind"] is None] == [facts["fastest"]]
    assert report["records"][-1]["stage"] == "modes"
    assert " won" in done.stdout
    assert "Which mode won" in (tmp_path / "out" / "report.html").read_text()


WRONG = """
import torch


def wrong(gm, example_inputs, config):
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.abs.default:
            node.target = torch.ops.aten.neg.default
"""


def test_a_mode_with_wrong_results_is_told_and_neither_timed_nor_a_winner(tmp_path: Path) -> None:
    (tmp_path / "wrong_pass.py").write_text(WRONG)
    (tmp_path / "mine" / "passes").mkdir(parents=True)
    (tmp_path / "mine" / "passes" / "wrong.yaml").write_text('wrong: {pass: python, function: "wrong_pass:wrong"}')
    done, report = run(
        tmp_path, "model=mm_abs_sub", "mode=eager", "passes=wrong", "trust=true",
        "benchmark.against=[reduce-overhead]", "--config-dir", str(tmp_path / "mine"),
    )  # fmt: skip
    eager, wrong = report["stages"]["modes"]["modes"]
    assert (eager["mode"], eager["passed"]) == ("eager", True)
    assert (wrong["mode"], wrong["passed"], wrong["timing"]) == ("reduce-overhead", False, None)
    assert "differs" in wrong["problem"]
    assert not report["stages"]["modes"]["won"]
    assert "nobody won" in done.stdout
