"""benchmark.profile: windows of calls under a profiler, after the timed ones; each a trace with a replay's kernels."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.cli import main
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.run import written_files
from npucompose.experiment.stages import benchmark
from npucompose.measure.timing import profiled
from npucompose.report.json import load
from npucompose.results.streams import Timeline
from npucompose.schema.experiment import Profile
from npucompose.targets.base import Profiler

TWO_KERNELS = Timeline(
    source="measured",
    nodes=("mm", "relu"),
    streams=("default", "s1"),
    start_us=(1.0, 5.0),
    end_us=(4.0, 9.0),
    events=(),
)


def of_torch() -> Profiler:
    return Profiler(module=torch.profiler)


def slices(file: Path) -> Counter[str]:
    return Counter(one["name"] for one in json.loads(file.read_text())["traceEvents"] if one.get("ph") == "X")


def test_a_window_has_its_active_calls_and_behind_each_the_kernels_of_a_replay(tmp_path: Path) -> None:
    x, log = torch.ones(4, 4), list[str]()

    def call() -> Any:
        log.append("call")
        return x @ x

    def clock() -> Timeline:
        log.append("clock")
        return TWO_KERNELS

    folder = tmp_path / "outputs" / "profile"
    files = profiled(
        call, "replay", Profile(active=2, wait=1, warmup=1, repeat=2), of_torch(), folder,
        clocks={"graph_0": clock}, between=lambda: log.append("rewind"),
    )  # fmt: skip
    assert files == ("replay_0.json", "replay_1.json")
    assert log == ["rewind", "call", "clock"] * 8
    for name in files:
        found = slices(folder / name)
        assert (found["replay"], found["aten::mm"], found["mm"], found["relu"]) == (2, 2, 2, 2)
    events = json.loads((folder / files[0]).read_text())["traceEvents"]
    ranges = [one for one in events if one["name"] == "graph_0 kernels" and one.get("cat") == "user_annotation"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    assert sorted(one["ts"] for one in kernels if one["name"] == "relu") == [
        pytest.approx(one["ts"] + 5.0) for one in sorted(ranges, key=lambda one: one["ts"])
    ]
    rows = {one["args"]["name"] for one in events if one.get("ph") == "M" and one["name"] == "thread_name"}
    assert {"graph_0, default", "graph_0, s1"} <= rows


def test_without_clocks_the_trace_is_the_profiler_s_own(tmp_path: Path) -> None:
    (file,) = profiled(
        lambda: torch.ones(2) + 1, "compiled", Profile(active=1, wait=0, warmup=0), of_torch(), tmp_path, clocks={}
    )
    assert slices(tmp_path / file)["aten::add"] == 1


def live(profile: Profile, folder: Path) -> Any:
    log: list[str] = []
    target = SimpleNamespace(
        synchronize=lambda: None, profiler=of_torch, kernel_clocks=lambda graphs: {},
        stream_times=lambda graphs: {}, device_memory=dict,
    )  # fmt: skip
    settings = SimpleNamespace(warmup=1, min_calls=3, min_seconds=0.0, max_calls=3, profile=profile)
    return SimpleNamespace(
        log=log, experiment=SimpleNamespace(mode=SimpleNamespace(name="eager"), benchmark=settings),
        reference=lambda *args, **kwargs: log.append("call"), detached=None, steadiness=None,
        rewind=lambda: log.append("rewind"), state=SimpleNamespace(outside=False), inputs=lambda step: {},
        bind=lambda inputs: SimpleNamespace(args=(), kwargs={}), folders=SimpleNamespace(profile=folder),
        checked=SimpleNamespace(target=target), compilations=[],
        materialised=SimpleNamespace(backend=SimpleNamespace(compilations=[], recordings=list)),
    )  # fmt: skip


def test_profiled_calls_come_after_the_timed_ones_and_are_none_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = live(Profile(active=2, wait=1, warmup=1), tmp_path)
    found: Any = benchmark.BenchmarkStage().run(session, lambda done: None)
    assert len(found["benchmark"]["samples_us"]) == 3
    assert session.log == ["rewind", *["call"] * 4, "rewind", *["call"] * 4], "warmup and samples, then the window"
    assert found["benchmark"]["profile"] == {"candidate": "eager", "calls": 2, "files": ["profile/eager_0.json"]}
    assert "profile: profile/eager_0.json (2 calls of eager each" in capsys.readouterr().out
    assert written_files(found) == ("profile/eager_0.json",)
    plain = live(Profile(), tmp_path)
    assert benchmark.BenchmarkStage().run(plain, lambda done: None)["benchmark"]["profile"] is None
    assert plain.log == ["rewind", *["call"] * 4]


def test_a_profile_without_measuring_is_refused() -> None:
    asked = ("model=add", "pipeline=check", "benchmark.profile.active=1")
    with pytest.raises(ConfigError, match="has no effect without the stage benchmark: pipeline=bench has it"):
        Job.from_composed(compose(asked))
    Job.from_composed(compose((*asked[:2], "benchmark.profile.repeat=2")))


@pytest.mark.slow
def test_a_run_leaves_the_trace_with_every_kernel_and_a_reused_one_has_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "model=parallel_branches",
        "mode=reduce-overhead",
        "benchmark=quick",
        "benchmark.profile.active=2",
    ]
    for name in ("first", "again"):
        folder = tmp_path / name
        assert main([*command, f"hydra.run.dir={folder}"]) == 0
        report = load(folder)
        assert report.reused is (name == "again")
        times = report.stages.benchmark
        assert times is not None
        assert times.profile is not None
        assert times.profile.files == ("profile/replay_0.json",)
        kernels = Counter(
            one["name"]
            for one in json.loads((folder / "profile" / "replay_0.json").read_text())["traceEvents"]
            if one.get("cat") == "kernel"
        )
        assert report.stages.capture is not None
        assert sum(kernels.values()) == 2 * report.stages.capture.kernels
    assert "profile: profile/replay_0.json" in (tmp_path / "first" / "run.log").read_text()
