from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from npucompose.measure import environment as measured
from npucompose.measure.environment import _build_settings, cpu, environment, peak_rss_bytes, versions
from npucompose.table.structure import facts_of
from npucompose.version import __version__


def test_the_environment_names_no_machine_and_no_place() -> None:
    facts = environment({"cpu": "a model"})
    text = json.dumps(facts_of(facts))
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert str(Path.cwd()) not in text
    assert sys.prefix not in text
    assert facts.versions["python"] == platform.python_version()
    assert facts.device == {"cpu": "a model"}
    assert facts.cpu["usable"] >= 1
    assert facts.torch_build["cpu_capability"]


def test_thread_variables_are_kept_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment().threads["OMP_NUM_THREADS"] == "3"


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert "no-such-package" not in versions(("torch", "no-such-package"))


def test_versions_are_read_without_torch() -> None:
    code = "import sys, npucompose.measure.environment as e; e.versions(); e.cpu(); sys.exit('torch' in sys.modules)"
    environment_ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment_, check=False).returncode == 0


def test_the_peak_of_a_small_process_is_not_that_of_its_parent() -> None:
    ballast = bytearray(200 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    code = "from npucompose.measure.environment import peak_rss_bytes; print(peak_rss_bytes())"
    environment_ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], env=environment_, check=True, capture_output=True, text=True)
    assert 1 << 20 < int(child.stdout) < peak_rss_bytes() - (100 << 20)


def test_a_name_without_a_version_is_left_out_and_npucompose_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "installed_version", lambda name: {"torch": "2"}.get(name))
    python = {"python": platform.python_version(), "implementation": sys.implementation.name}
    assert versions(("torch", "numpy")) == {**python, "torch": "2"}
    assert versions(("numpy", "npucompose")) == {**python, "npucompose": __version__}
    monkeypatch.setattr(measured, "installed_version", lambda name: "1 of its own")
    assert versions(("npucompose",))["npucompose"] == "1 of its own"


def test_the_cpu_is_told_by_model_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "cpu_model", lambda: "Abacus 9")
    monkeypatch.setattr(measured, "usable_cores", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cpu() == {"model": "Abacus 9", "architecture": platform.machine(), "logical": 7, "usable": 3}
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpu()["logical"] == 1


def test_of_torch_s_build_only_what_names_no_place_is_kept() -> None:
    config = (
        "PyTorch built with:\n  - Build settings: BLAS_INFO=mkl , BUILD_TYPE=Release, CXX_FLAGS=-I/home/x, USE_MKL=ON\n"
    )
    assert _build_settings(config) == {"BLAS_INFO": "mkl", "BUILD_TYPE": "Release", "USE_MKL": "ON"}


def test_the_environment_holds_what_each_part_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(measured, "git_state", lambda: ("abc", True))
    monkeypatch.setattr(measured, "thread_settings", lambda: {"OMP_NUM_THREADS": "5"})
    device = {"npu": "one"}
    facts = environment(device)
    device["npu"] = "another"
    assert facts.device == {"npu": "one"}
    assert (facts.git_commit, facts.git_dirty) == ("abc", True)
    assert facts.versions == versions()
    assert facts.cpu == cpu()
    assert facts.platform == f"{platform.system()} {platform.release()} {platform.machine()}"
    assert facts.threads == {
        "intra_op": torch.get_num_threads(),
        "inter_op": torch.get_num_interop_threads(),
        "OMP_NUM_THREADS": "5",
    }
    assert environment().device == {}


def test_the_peak_is_that_of_the_address_space_where_the_system_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        ru_maxrss = 77

    asked: list[int] = []
    monkeypatch.setattr(measured.resource, "getrusage", lambda who: asked.append(who) or Usage)
    monkeypatch.setattr(measured, "PROC_STATUS", tmp_path / "status")
    assert peak_rss_bytes() == 77 * 1024  # no such file
    (tmp_path / "status").write_text("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t 1234 kB\nVmRSS:\t 5 kB\n")
    assert peak_rss_bytes() == 1234 * 1024
    (tmp_path / "status").write_text("Name:\tx\n")
    assert peak_rss_bytes() == 77 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_rss_bytes() == 77
    assert asked == [measured.resource.RUSAGE_SELF] * 3
