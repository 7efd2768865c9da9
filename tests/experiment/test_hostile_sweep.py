"""A sweep of which many points do harm: the others are ok, each has its own status, nothing is left running."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sweeping import ROOT, by_factory, check_folders, entries, none_left, statuses, sweep, write_factories

HARM = {
    "garbage_everywhere": "crashed",
    "deep_json": "crashed",
    "a_result_of_its_own": "crashed",
    "closed_pipes": "crashed",
    "a_daemon": "crashed",
    "a_stopped_daemon": "crashed",
    "a_fork_bomb": "crashed",
    "a_comet": "crashed",
    "stops_itself": "timeout",
    "stops_its_supervisor": "crashed",
    "kills_its_supervisor": "crashed",
    "gigabytes_of_log": "crashed",
    "memory_without_end": "memory_limit",
    "escapes_in_an_exception": "illegal",
    "moves_its_folder": "ok",
}
HOSTILE = """

import hostile_jobs


def _moves_its_folder(here):
    for said in (here / "multirun").glob("*/*/*/.hydra/overrides.yaml"):
        if "moves_its_folder" in said.read_text():
            said.parents[1].rename(said.parents[1].with_name("moved"))


def harmful(name):
    act = globals().get(f"_{name}") or getattr(hostile_jobs, name)

    def make():
        # in the factory itself an exception says that the model is illegal; elsewhere harm is done when inputs are made
        if name == "escapes_in_an_exception":
            act(Path(HERE))

        def inputs(step):
            act(Path(HERE))
            return {"x": torch.ones(4, 4)}

        return Built(module=Small(), inputs=inputs, steps=1)

    return make


def __getattr__(name):
    return fine if name.startswith("fine") else harmful(name)
"""


def hostile(folder: Path, harm: list[str], fine: int, *more: str) -> tuple[list[str], dict[str, str]]:
    """The overrides, and what becomes of each factory."""
    write_factories(folder)
    shutil.copy(ROOT / "tests" / "airflow_free" / "hostile_jobs.py", folder)
    text = (folder / "points.py").read_text()
    (folder / "points.py").write_text(text[: text.index("def __getattr__")] + HOSTILE)
    wanted = {**{name: HARM[name] for name in harm}, **{f"fine{n}": "ok" for n in range(fine)}}
    return [
        "model=python",
        "trust=true",
        "pipeline=check",
        "pipeline.memory_limit_mb=3000",
        "pipeline.log_limit_mb=1",
        f"model.factory={','.join(f'points:{name}' for name in wanted)}",
        *more,
    ], wanted


def check(folder: Path, overrides: list[str], wanted: dict[str, str]) -> None:
    done = sweep(folder, *overrides, write=False)
    assert done.returncode == 3, done.stdout + done.stderr
    found = by_factory(folder)
    assert {name: entry.status for name, entry in found.items()} == wanted, done.stdout
    assert "\x1b" not in done.stdout + done.stderr + "".join(entry.error or "" for entry in entries(folder))
    assert none_left(folder)
    check_folders(folder)
    for log in folder.glob("multirun/*/*/*/run.log"):
        assert log.stat().st_size < 2 * 2**20, log


@pytest.mark.slow
def test_forty_points_of_which_fifteen_do_harm(tmp_path: Path) -> None:
    overrides, wanted = hostile(tmp_path, list(HARM), 25, "pipeline.time_limit_s=60", "executor.jobs=3")
    check(tmp_path, overrides, wanted)
    assert len(wanted) == 40
    assert statuses(tmp_path) == {"ok": 26, "crashed": 11, "timeout": 1, "memory_limit": 1, "illegal": 1}
    again = sweep(tmp_path, *overrides, write=False)
    assert "39 were done before" in again.stdout, again.stdout + again.stderr


@pytest.mark.slow
def test_points_that_do_harm_end_alone(tmp_path: Path) -> None:
    overrides, wanted = hostile(tmp_path, ["garbage_everywhere", "a_daemon", "moves_its_folder"], 1)
    check(tmp_path, overrides, wanted)
