"""A Python that is started anew imports nothing of the working folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_free import forkserver
from airflow_free.fresh_python import FIRST, RUN_MODULE, SAFE_PATH, module_command
from npucompose.experiment import tracking
from npucompose.report import doctor
from tools.layout import product

STARTS = re.compile(r"[\[(]\s*(?:sys\.executable|python)\s*,")
TOLD = {
    "airflow_free/fresh_python.py": RUN_MODULE,
    "airflow_free/forkserver.py": forkserver.BOOT,
    "npucompose/experiment/tracking.py": tracking.BOOT,
    "npucompose/report/doctor.py": doctor._ASK_TORCH,
}
"""What each source that starts a Python tells it with -c."""
A_FILE = "npucompose_devtools/device_kit/kit_files/run_kit.py"
"""Starts a file, whose own folder is the first on its path; it has no package beside it."""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder has a module of every name of the standard library, and two of ours."""
    for name in {*sys.stdlib_module_names, "npucompose", "airflow_free", "torch"} - {*sys.builtin_module_names}:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write('{name}\\n')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executed(folder: Path) -> bool:
    return (folder / "executed").exists()


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in SAFE_PATH}
    return subprocess.run(
        words, env={**kept, **environment}, capture_output=True, text=True, check=False, input="{}", timeout=60
    )


def test_a_module_is_run_as_with_m_and_not_from_the_working_folder(hostile: Path) -> None:
    done = run(module_command("json.tool", "--compact"))
    assert (done.stdout.strip(), done.returncode) == ("{}", 0), done.stderr
    assert not executed(hostile)
    assert executed_by(hostile, [sys.executable, "-m", "json.tool"]), "a control: Python alone does it"


def executed_by(folder: Path, words: list[str]) -> bool:
    run(words)
    return executed(folder)


@pytest.mark.parametrize("source", TOLD)
def test_what_our_processes_are_told_begins_with_leaving_the_folder_out(source: str) -> None:
    assert TOLD[source].startswith(FIRST)


def test_a_fork_server_loads_nothing_of_the_working_folder(hostile: Path) -> None:
    server = forkserver.ForkServer.start(None, ("json", "colorsys"), hostile / "log")
    while server.listen() and not server.ready:
        pass
    assert server.ready, (hostile / "log").read_text()
    server.close()
    assert not executed(hostile)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows the variable from 3.11 on")
def test_what_a_worker_starts_itself_finds_none_there_either(hostile: Path) -> None:
    words = [sys.executable, "-c", "import json"]
    run(words, **SAFE_PATH)
    assert not executed(hostile)
    assert executed_by(hostile, words), "a control"


def test_every_source_that_starts_a_python_is_named_here() -> None:
    found = {
        f"{package}/{file.relative_to(top).as_posix()}"
        for package, top in product().items()
        for file in top.rglob("*.py")
        if STARTS.search(file.read_text(encoding="utf-8"))
    }
    assert found == {*TOLD, A_FILE}
    assert STARTS.search('subprocess.run([sys.executable, "-m", "x"])'), "a control"


def test_a_worker_s_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.experiment.orchestrator import worker_environment

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert json.dumps(worker_environment({})).count("PYTHONSAFEPATH") == 1
