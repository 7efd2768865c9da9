"""A command that is forked warm is the cold one in all that a caller can see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nursery
import pytest
from nursery import cold, command

from npucompose.targets import TARGETS

FACTORY = """
import json, os, sys, time
from pathlib import Path
import torch

if Path("hang").exists():
    Path("hangs").write_text(str(os.getpid()))
    time.sleep(600)
Path("seen").write_text(json.dumps({
    "cwd": os.getcwd(), "variable": os.environ.get("NPUCOMPOSE_MARK"), "threads": torch.get_num_threads(),
    "warm": "hydra" in sys.modules, "modules": [name for name in ("pytest", "hypothesis") if name in sys.modules],
}))


def make():
    return torch.nn.ReLU(), {"input": torch.ones(2)}
"""
ASKED = ("model=python", "trust=true", "model.factory=mine:make", "pipeline=compile_only")


def ran(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "mine.py").write_text(FACTORY)
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def seen(folder: Path) -> dict[str, object]:
    return json.loads((folder / "seen").read_text())


def test_its_worker_has_the_folder_and_the_environment_and_nothing_of_the_tests(tmp_path: Path) -> None:
    done = ran(command("run.py", *ASKED), tmp_path / "warm", NPUCOMPOSE_MARK="5")
    assert (done.returncode, done.stderr) == (0, "")
    found = seen(tmp_path / "warm")
    assert (found["cwd"], found["variable"], found["modules"]) == (str(tmp_path / "warm"), "5", [])
    assert found["warm"], "the worker was started cold: no second is saved"


@pytest.mark.slow
def test_what_must_be_set_before_torch_is_loaded_makes_it_cold(tmp_path: Path) -> None:
    done = ran(command("run.py", *ASKED), tmp_path / "cold", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(tmp_path / "cold")["threads"] == 1
    assert not seen(tmp_path / "cold")["warm"]


@pytest.mark.parametrize(
    "words",
    [
        ("run.py", "mode=eger"),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (("npucompose", "list", "modez"), ("npucompose", "--help"))
        ),
    ],
)
def test_its_words_and_its_status_are_those_of_a_cold_one(words: tuple[str, ...], tmp_path: Path) -> None:
    warm, start = (ran(started(*words), tmp_path / name) for name, started in (("warm", command), ("cold", cold)))
    assert (warm.returncode, warm.stdout, warm.stderr) == (start.returncode, start.stdout, start.stderr)


def test_what_was_begun_for_all_is_used_for_the_environments_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "_begun", lambda owner, read: (None, f"for {dict(read)}"))
    monkeypatch.setenv(nursery.SHARED, "{}")
    offline = {**os.environ, **TARGETS.get("npu_offline")().environment(), "OMP_NUM_THREADS": "1"}
    nursery.share()
    shared = json.loads(os.environ[nursery.SHARED]).values()
    monkeypatch.setattr(nursery, "_begun", lambda owner, read: (None, f"own of {owner}"))
    assert [nursery.address(os.environ), nursery.address(offline)] == list(shared)
    assert nursery.address({**os.environ, "OMP_NUM_THREADS": "3"}) == f"own of {os.getpid()}"


def hanging(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A command whose worker hangs, and that worker."""
    (folder / "mine.py").write_text(FACTORY)
    (folder / "hang").touch()
    process = subprocess.Popen(command("run.py", *ASKED), cwd=folder, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "hangs").exists() or not (folder / "hangs").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, int((folder / "hangs").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_signal_to_it_ends_it_and_its_worker(number: signal.Signals, tmp_path: Path) -> None:
    process, worker = hanging(tmp_path)
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _module(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "loaded_early.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "loaded_early", raising=False)
    return "loaded_early"


def test_what_needs_an_extra_that_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nursery.load(_module("import no_such_extra.part", tmp_path, monkeypatch))
    assert "loaded_early" not in sys.modules


@pytest.mark.parametrize("ours", ["npucompose.no_such", "airflow_free.no_such", "torch.no_such"])
def test_what_lacks_a_module_of_ours_or_of_torch_ends_the_nursery(
    ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModuleNotFoundError, match=ours):
        nursery.load(_module(f"import {ours}", tmp_path, monkeypatch))
