"""Workers of pytest-xdist are forked from a process that has imported the tests, and are workers as any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = """
import os
from pathlib import Path

with Path("imported").open("a") as told:
    told.write(f"{os.getpid()}\\n")
"""
RAN = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    with Path("ran").open("a") as told:
        told.write(f"{os.environ['PYTEST_XDIST_WORKER']} {os.getpid()} {os.environ['MARK']}\\n")
    assert number != 3, "three is refused"
"""


def ran(folder: Path, text: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "test_here.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "MARK": "5"}
    words = ("-n", "2", "-q", "-p", "tests.forked_workers", "-p", "no:cacheprovider", "test_here.py")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


def test_a_file_is_imported_once_for_all_workers_and_they_tell_what_failed(tmp_path: Path) -> None:
    done = ran(tmp_path, IMPORTED + RAN)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "three is refused" in done.stdout
    assert "1 failed, 3 passed" in done.stdout
    (first,) = (tmp_path / "imported").read_text().split()
    lines = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert {line[0] for line in lines} == {"gw0", "gw1"}
    assert first not in {line[1] for line in lines}
    assert {line[2] for line in lines} == {"5"}


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_told_by_its_error(tmp_path: Path) -> None:
    done = ran(tmp_path, IMPORTED + "raise RuntimeError('what is missing')")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "what is missing" in done.stdout


LARGE = """
import pytest
import torch

ROWS = torch.ones(2048, 2048)  # filled by as many threads as there are

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    assert torch.get_num_threads() == 2
    assert float((ROWS + number).sum()) == 2048 * 2048 * (1 + number)
"""


def test_workers_compute_on_several_threads_though_a_file_has_made_a_large_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    done = ran(tmp_path, LARGE, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
