"""Whole sweeps through the command line: points that die, a parent that dies, and what the next command does."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from nursery import cold, command
from sweeping import check_folders, entries, none_left, statuses, sweep, write_factories

TRUSTED = ["model=python", "trust=true", "pipeline=check"]
FAULTY = ("kills", "kills_too", "hangs", "raises")


def faulty_sweep(folder: Path, modes: int, fine: int, time_limit_s: float) -> None:
    """In each mode `fine` points go well and one is illegal; four points in all do not end well."""
    factories = [f"points:{name}" for name in (*FAULTY, *(f"fine{n}" for n in range(fine)))]
    swept = [
        *TRUSTED,
        f"mode={','.join(['reduce-overhead', 'eager', 'npugraph_ex'][:modes])}",
        f"model.factory={','.join([*factories, 'illegal'])}",
        "passes=[stream_plan]",
        f"pipeline.time_limit_s={time_limit_s}",
    ]
    well = (fine + 4) * modes - 4
    first = sweep(folder, *swept)
    assert first.returncode == 3, first.stdout + first.stderr
    assert f"{modes} of {(fine + 5) * modes} jobs illegal and not run" in first.stderr
    assert first.stderr.count("'illegal'; it needs the form module:function") == modes
    assert statuses(folder) == {"ok": well, "illegal": modes, "crashed": 2, "timeout": 1, "failed": 1}
    signals = Counter(entry.exit_signal for entry in entries(folder) if entry.exit_signal)
    assert signals == {"SIGKILL": 2, "SIGABRT": 1}  # one of them is ours, for the point that hung
    check_folders(folder)
    for name in FAULTY:
        (folder / name).unlink()
    second = sweep(folder, *swept)
    assert second.returncode == 3
    assert f"{well + 4} were done before" in second.stdout
    assert not any((folder / name).exists() for name in FAULTY)
    for name in FAULTY:
        (folder / name).touch()
    healed = sweep(folder, *swept, "retry=failed")
    assert healed.returncode == 2, healed.stdout + healed.stderr
    assert f"{well} were done before" in healed.stdout
    assert statuses(folder) == {"ok": well + 4, "illegal": modes}
    check_folders(folder)
    assert none_left(folder)


@pytest.mark.slow
def test_points_that_die_hang_or_raise_end_alone_and_only_they_are_run_again(tmp_path: Path) -> None:
    faulty_sweep(tmp_path, modes=1, fine=1, time_limit_s=9)


@pytest.mark.slow
def test_a_sweep_of_sixty_points_of_which_seven_do_not_end_well(tmp_path: Path) -> None:
    faulty_sweep(tmp_path, modes=3, fine=15, time_limit_s=20)


@pytest.mark.slow
def test_sixty_points_over_mode_passes_streams_and_model(tmp_path: Path) -> None:
    """Three of them are illegal as only the worker sees: an explicit plan about a product, and a model without one."""
    plan = "plan: [{stream: s1, match: {target: aten.mm.default}}]"
    (tmp_path / "mine" / "streams").mkdir(parents=True)
    (tmp_path / "mine" / "streams" / "product.yaml").write_text(
        f"defaults: [auto]\nname: product\nkind: explicit\n{plan}\n"
    )
    swept = [
        "--config-dir", "mine", *TRUSTED, "mode=reduce-overhead,eager",
        "passes=[stream_plan],[cse,stream_plan],[dead_code,stream_plan]", "streams=auto,product",
        "model.factory=points:kills,points:kills_too,points:hangs,points:raises,points:no_product",
        "pipeline.time_limit_s=30",
    ]  # fmt: skip
    first = sweep(tmp_path, *swept)
    assert first.returncode == 3, first.stdout + first.stderr
    assert statuses(tmp_path) == {"ok": 53, "illegal": 3, "crashed": 2, "timeout": 1, "failed": 1}
    check_folders(tmp_path)
    illegal = [entry.overrides for entry in entries(tmp_path) if entry.status == "illegal"]
    assert all({"mode=reduce-overhead", "streams=product"} <= set(texts) for texts in illegal)
    second = sweep(tmp_path, *swept)
    assert "57 were done before" in second.stdout
    healed = sweep(tmp_path, *swept, "retry=failed")
    assert healed.returncode == 2, healed.stdout + healed.stderr
    assert "53 were done before" in healed.stdout
    assert statuses(tmp_path) == {"ok": 57, "illegal": 3}
    assert none_left(tmp_path)


@pytest.mark.slow
def test_folders_of_points_are_named_as_hydra_is_told(tmp_path: Path) -> None:
    swept = ["model=add", "pipeline=compile_only", "seed=1,2", "hydra.sweep.dir=swept"]
    done = sweep(tmp_path, *swept, "hydra.sweep.subdir=${hydra.job.override_dirname}")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = {path.parent.name for path in tmp_path.glob("swept/*/report.html")}
    assert folders == {f"model=add,pipeline=compile_only,seed={seed}" for seed in (1, 2)}
    escaping = sweep(tmp_path, *swept, "seed=3,4", "hydra.sweep.subdir=../${hydra.job.num}")
    assert escaping.returncode == 2
    assert "is no folder below the sweep's own" in escaping.stderr
    assert "Traceback" not in escaping.stderr


def test_a_point_that_only_the_worker_sees_to_be_illegal_leaves_no_folder(tmp_path: Path) -> None:
    plan = "streams.plan=[{stream: s1, match: {target: aten.mm.default}}]"
    swept = ["model=add", "pipeline=compile_only", "passes=[],[stream_plan]", "streams.kind=explicit", plan]
    done = sweep(tmp_path, *swept)
    assert done.returncode == 2, done.stdout + done.stderr
    assert statuses(tmp_path) == {"ok": 1, "illegal": 1}
    assert [p.parent.name for p in tmp_path.glob("multirun/*/*/*/report.json")] == ["0"]
    assert not list(tmp_path.glob("multirun/*/*/1"))


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write_factories(tmp_path)
    swept = [*TRUSTED, "model.factory=points:fine,points:hangs", "executor.jobs=1"]
    process = subprocess.Popen(command("run.py", "-m", *swept), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "hangs").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told
    assert none_left(tmp_path)
    assert statuses(tmp_path) == {"ok": 1}
    assert sweep(tmp_path, *swept).returncode == 0
    assert statuses(tmp_path) == {"ok": 2}


@pytest.mark.slow
def test_a_parent_that_is_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    moments = random.Random(8)
    swept = ["model=add", "pipeline=compile_only", "seed=range(0,40)"]
    for _ in range(20):
        process = subprocess.Popen(cold("run.py", "-m", *swept), cwd=tmp_path, stdout=subprocess.DEVNULL)
        try:
            process.wait(moments.uniform(0.3, 8.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert none_left(tmp_path)
        check_folders(tmp_path)
    assert sweep(tmp_path, *swept).returncode == 0
    assert statuses(tmp_path) == {"ok": 40}
    assert sorted(int(entry.overrides[2].removeprefix("seed=")) for entry in entries(tmp_path)) == list(range(40))
    check_folders(tmp_path)
    again = sweep(tmp_path, *swept)
    assert "40 were done before" in again.stdout
