"""Trackers: told of what came out, in a process of their own, and never able to lose a run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.experiment import tracking
from npucompose.experiment.tracking import TrackerOrder, handle, reporter_of
from npucompose.report import html as report_html
from npucompose.report import json as report_json
from npucompose.report.json import Tracked
from npucompose.results.record import Report
from npucompose.schema.sweep import Tracker

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from report_examples import CRASHED, FULL, WRONG


def run_dir(folder: Path, report: Report) -> Path:
    folder.mkdir(parents=True)
    report_json.write(report, folder)
    report_html.write(report, folder)
    return folder


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install 'npucompose[{package}]'")


def test_a_report_in_the_words_of_trackers(tmp_path: Path) -> None:
    folder = run_dir(tmp_path / "day" / "time", FULL)
    told = Tracked.from_report(FULL, folder)
    assert told.name == "day/time gpt_decode cpu reduce-overhead"
    assert told.params["mode.name"] == "reduce-overhead"
    assert told.params["model.options.layers"] == "4"
    assert (told.metrics["p50_us"], told.metrics["latency.eager.p50_us"]) == (517.04, 990.1)
    assert told.metrics["latency.replay.samples"] == len(told.samples["replay"]) == 2
    assert told.metrics["compile.dynamo_s"] == 1.0
    assert (told.tags["npucompose.status"], told.tags["npucompose.version.torch"]) == ("ok", "2.13.0")
    assert [path.name for path in told.files] == ["report.html", "report.json"]


def test_wrong_results_and_crashes_have_no_speed(tmp_path: Path) -> None:
    for name, report in (("wrong", WRONG), ("crashed", CRASHED)):
        told = Tracked.from_report(report, run_dir(tmp_path / name, report))
        assert told.samples == {}
        assert not [metric for metric in told.metrics if metric.startswith(("latency", "p50"))]
        assert "npucompose.error" in told.tags or report is WRONG


def test_a_missing_package_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package mlflow: pip install 'npucompose\[mlflow\]'"):
        tracking.check(Tracker(name="mlflow"), {})
    tracking.check(Tracker(), {})


def test_only_the_command_line_says_where_runs_are_told() -> None:
    """A stranger's file could otherwise send what is measured here to a server of its choice."""
    tracker = Tracker(place="https://elsewhere")
    with pytest.raises(ConfigError, match="only the command line itself can say"):
        tracking.check(tracker, {"tracker.place": "conf/tracker/mine.yaml"})
    tracking.check(tracker, {"tracker.place": "command line"})


def test_a_file_cannot_say_it_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tracker").mkdir()
    (tmp_path / "tracker" / "mine.yaml").write_text("name: none\nplace: https://elsewhere\n")
    arguments = ["--config-dir", str(tmp_path), "tracker=mine", "model=add"]
    assert main(["run", *arguments, f"hydra.run.dir='{tmp_path / 'run'}'"]) == 2
    assert "only the command line" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_nobody_is_told_unless_asked(tmp_path: Path) -> None:
    assert tracking.report_runs(Tracker(), [tmp_path], tmp_path) == ()


def test_a_tracker_that_dies_or_hangs_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "BOOT", "import os; os.abort()")
    (problem,) = tracking.report_runs(Tracker(name="mlflow"), [tmp_path], tmp_path)
    assert "its process ended with exit status -6" in problem
    monkeypatch.setattr(tracking, "BOOT", "import time; time.sleep(60)")
    monkeypatch.setattr(tracking, "TIME_LIMIT_S", 0.2)
    monkeypatch.setattr(tracking, "EACH_S", 0.0)
    (problem,) = tracking.report_runs(Tracker(name="mlflow"), [tmp_path], tmp_path)
    assert "did not end within 0 s; the runs are kept" in problem


def test_one_run_that_cannot_be_told_keeps_no_other_from_it(tmp_path: Path) -> None:
    folders = [run_dir(tmp_path / "a", FULL), tmp_path / "gone", run_dir(tmp_path / "b", CRASHED)]
    seen: list[str] = []

    def teller(run: Tracked, reused: bool) -> None:
        seen.append(run.tags["npucompose.status"])
        if run.tags["npucompose.status"] == "ok":
            raise OSError("the disk is full")

    order = TrackerOrder(name="mlflow", place=None, experiment="e", store="", folders=tuple(map(str, folders)))
    problems = handle(order, teller)
    assert seen == ["ok", "crashed"]
    assert problems[0] == "a was not told: OSError: the disk is full"
    assert problems[1].startswith("gone was not told: ConfigError: there is no report.json")


def test_the_way_to_its_process_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package `mlflow` that prints and fails: what it prints is nobody's account, and the error arrives."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "mlflow.py").write_text("print('hello'); raise ImportError('a broken installation')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "fake"))
    folder = run_dir(tmp_path / "run", FULL)
    (problem,) = tracking.report_runs(Tracker(name="mlflow"), [folder], tmp_path / "store")
    assert "a broken installation" in problem
    assert "the runs are kept" in problem


def order(name: str, tmp_path: Path, *folders: Path) -> TrackerOrder:
    return TrackerOrder(
        name=name, place=None, experiment="mine", store=str(tmp_path / "store"), folders=tuple(map(str, folders))
    )


def test_mlflow_has_all_of_a_run_and_a_reused_one_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.chdir(tmp_path)
    again = attrs.evolve(FULL, reused=True)
    asked = order("mlflow", tmp_path, run_dir(tmp_path / "a", FULL), run_dir(tmp_path / "b", again))
    assert handle(asked, reporter_of(asked)) == []
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.data.params["mode.name"] == "reduce-overhead"
    assert run.data.metrics["p50_us"] == 517.04
    samples = client.get_metric_history(run.info.run_id, "samples.eager_us")
    assert [m.value for m in sorted(samples, key=lambda m: m.step)] == [990.1, 990.1 * 1.5]
    assert {f.path for f in client.list_artifacts(run.info.run_id)} == {"report.html", "report.json"}
    assert run.info.status == "FINISHED"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "store"}


def test_tensorboard_has_all_of_a_run_and_a_reused_one_once(tmp_path: Path) -> None:
    needs("tensorboard")
    again = attrs.evolve(FULL, reused=True)
    asked = order("tensorboard", tmp_path, run_dir(tmp_path / "a", FULL), run_dir(tmp_path / "b", again))
    assert handle(asked, reporter_of(asked)) == []
    (folder,) = (tmp_path / "store" / "tensorboard" / "mine").iterdir()
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder))
    found.Reload()
    assert [s.value for s in found.Scalars("samples/replay_us")] == pytest.approx([517.04, 517.04 * 1.5])
    assert found.Scalars("p50_us")[0].value == pytest.approx(517.04)


@pytest.fixture
def wandb_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tracker's own process has it: what it sets is gone with it. Another's choice changes nothing."""
    monkeypatch.setattr(os, "environ", {**os.environ, "WANDB_MODE": "online", "WANDB_API_KEY": "k" * 40})


def wandb_records(file: Path) -> list[Any]:
    """What `wandb sync` would send, in the order written.

    The file: 7 bytes, then LevelDB's log format: in blocks of 32 KiB records, each after its checksum (4 bytes), length
    (2) and kind (1: whole; 2, 3, 4: first, middle, last part).
    """
    data, at, block, whole = file.read_bytes(), 7, 2**15, b""
    found: list[Any] = []
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(record.FromString(whole))
            whole = b""
    return found


def wandb_items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
@pytest.mark.usefixtures("wandb_environ")
def test_wandb_has_all_of_a_run_offline_and_a_reused_one_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wandb")
    monkeypatch.chdir(tmp_path)
    again = attrs.evolve(FULL, reused=True)
    asked = order("wandb", tmp_path, run_dir(tmp_path / "a", FULL), run_dir(tmp_path / "b", again))
    assert handle(asked, reporter_of(asked)) == []
    importlib.import_module("wandb").teardown()  # as when the tracker's process ends: all is written
    (folder,) = (tmp_path / "store" / "wandb").glob("*run-*")
    assert folder.name.startswith("offline-run-")
    assert {path.name for path in (folder / "files").iterdir()} == {"report.html", "report.json"}
    records = wandb_records(next(folder.glob("*.wandb")))
    (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    config = wandb_items(run.config.update)
    assert (run.project, run.display_name, list(run.tags)) == (
        "mine",
        f"{tmp_path.name}/a gpt_decode cpu reduce-overhead",
        ["ok"],
    )
    assert (config["mode.name"], config["model.options.layers"]) == ("reduce-overhead", 4)
    assert config["npucompose.version.torch"] == "2.13.0"
    rounds = [wandb_items(r.history.item) for r in records if r.WhichOneof("record_type") == "history"]
    assert [(r["_step"], r["samples/eager_us"], r["samples/replay_us"]) for r in rounds] == [
        (0, 990.1, 517.04), (1, 990.1 * 1.5, 517.04 * 1.5),
    ]  # fmt: skip
    summary: dict[str, Any] = {}
    for record in records:
        summary |= wandb_items(record.summary.update) if record.WhichOneof("record_type") == "summary" else {}
    assert (summary["p50_us"], summary["latency/eager/p50_us"]) == (517.04, 990.1)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "store"}


@pytest.mark.slow
def test_wandb_offline_asks_no_other_machine(tmp_path: Path) -> None:
    """Of the process and of the service that it starts: sockets of this machine's own only."""
    needs("wandb")
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    folder, trace = run_dir(tmp_path / "a", FULL), tmp_path / "trace"
    asked = attrs.asdict(order("wandb", tmp_path, folder))
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=connect,sendto", "-o", str(trace), sys.executable, "-c", tracking.BOOT,
         json.dumps(sys.path)],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={**os.environ, "WANDB_API_KEY": "k" * 40, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {"problems": []}
    calls = [line for line in trace.read_text().splitlines() if "sa_family=" in line]
    assert any("AF_UNIX" in call for call in calls), "the service was reached: the trace is of all of it"
    assert [call for call in calls if "AF_UNIX" not in call and "AF_NETLINK" not in call] == []
    assert not (tmp_path / "home").exists()
