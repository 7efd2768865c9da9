"""A diagnosis: of the machine, of torch, of each target, of the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from npucompose.report import (
    doctor,
)
from npucompose.report.doctor import Diagnosis, Machine, Torch, Usable

MACHINE = Machine(
    cpu="A CPU",
    architecture="x86_64",
    system="Linux",
    cores=4,
    memory_gib=None,
    compiler="g++ 12",
    nvidia=("H200", "H100"),
    npu="npu-smi 25",
    cann={"ASCEND_HOME_PATH": "/cann", "ASCEND_TOOLKIT_HOME": "/kit"},
)
TORCH = Torch(version="2.13.0+cu130", threads=4, capability="AVX512", cuda_build="13.0", cuda_devices=("a", "b"))
BROKEN = Torch(error="no module named torch")


def test_a_diagnosis_reads_like_this(golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = Diagnosis(
        python="3.11",
        packages={"torch": "2.13.0", "torch_npu": None, "numpy": "2"},
        torch=TORCH,
        machine=MACHINE,
        targets=(
            Usable(name="cpu", usable=True, needs="torch", lacks="no compiler"),
            Usable(name="cuda", usable=True, needs="CUDA", has="two devices"),
            Usable(name="null_device", usable=True, needs="torch"),
            Usable(name="npu", usable=False, needs="a device", lacks="CANN is missing."),
        ),
        extras=(
            Usable(name="mlflow", usable=False, needs="mlflow", lacks="mlflow: pip install"),
            Usable(name="ray", usable=True, needs="ray"),
        ),
        store="/store (none yet)",
        native_replayer="built: here",
        notes=("a note",),
    )
    doctor.show(found)
    bare = evolve(
        found,
        torch=BROKEN,
        machine=evolve(MACHINE, nvidia=(), npu=None, cann={}, compiler=None, memory_gib=2.5),
        notes=(),
        targets=(Usable(name="cpu", usable=False, needs="torch", lacks="it"),),
    )
    doctor.show(bare)
    doctor.show(bare, as_json=True)
    golden("report/doctor.txt", capsys.readouterr().out)
    assert (found.exit_status, bare.exit_status) == (0, 3)


@pytest.mark.parametrize(
    ("torch", "machine", "usable"),
    [(TORCH, MACHINE, True), (BROKEN, MACHINE, False), (evolve(TORCH, cuda_devices=()), MACHINE, False)],
)
def test_a_target_says_what_it_has_or_lacks(torch: Torch, machine: Machine, usable: bool) -> None:
    found = {one.name: one for one in doctor.targets(torch, machine)}
    assert found["cuda"].usable is usable
    assert bool(found["cuda"].has) is usable
    assert bool(found["cuda"].lacks) is not usable
    if usable:
        assert found["cuda"].has == "a, b, CUDA 13.0"
    if torch is BROKEN:
        assert {found[name].lacks for name in ("cpu", "cuda", "null_device")} == {
            "torch cannot be imported: no module named torch"
        }
        assert not any(found[name].usable for name in ("cpu", "cuda", "null_device"))
    else:
        assert (found["cpu"].lacks, found["null_device"].lacks) == ("", "")
        assert not torch.cuda_devices or found["null_device"].usable
    assert not torch.version or torch.cuda_devices or "finds no device" in found["cuda"].lacks


def test_what_is_installed_and_set_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    good = evolve(TORCH, version="2.13.0")
    assert doctor.notes(good, MACHINE, {"torch_npu": "2.13.0"}) == ()
    assert doctor.notes(good, evolve(MACHINE, cann={}), {"torch_npu": None}) == ()
    assert doctor.notes(BROKEN, MACHINE, {}) == ()
    assert len(doctor.notes(good, evolve(MACHINE, cann={}), {"torch_npu": "2.13.0"})) == 1
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    (note,) = doctor.notes(good, MACHINE, {})
    assert note.startswith(f"the cache is not believed: {tmp_path / 'cache'} can be written by others")
    (tmp_path / "cache").chmod(0o700)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.notes(good, MACHINE, {}) == ("CXX=no-such-compiler is no program; the C++ compiler is g++ 12.",)
    monkeypatch.setenv("CXX", "sh")
    assert doctor.notes(good, MACHINE, {}) == ()


def test_the_store_is_told_where_it_lies(tmp_path: Path) -> None:
    store = tmp_path / "a" / "b"
    assert doctor.state_of(store) == f"{store} (none yet)"
    (store / "c").mkdir(parents=True)
    (store / "c" / "one").write_bytes(b"x" * 2**19)
    (store / "two").write_bytes(b"x" * 2**20)
    assert doctor.state_of(store) == f"{store} (2 files, 1.5 MiB)"


def test_lines_of_a_command_are_stripped(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.write_text("#!/bin/sh\nprintf '| one |\\n\\n  two\\n'\nexit $1\n")
    told.chmod(0o755)
    assert doctor.first_lines(str(told), "0") == ("one", "two")
    assert doctor.first_lines(str(told), "1") == ()
    assert doctor.first_lines(str(tmp_path / "nobody")) == ()


def test_the_compiler_is_told_whatever_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "compiler", lambda: None)
    assert doctor._compiler() is None
    monkeypatch.setattr(doctor, "compiler", lambda: "/bin/c++")
    monkeypatch.setattr(
        doctor, "first_lines", lambda *command: ("c++ 12", "more") if command[1:] == ("--version",) else ()
    )
    assert doctor._compiler() == "/bin/c++: c++ 12"
    monkeypatch.setattr(doctor, "first_lines", lambda *command: ())
    assert doctor._compiler() == "/bin/c++: it does not tell its version"


@pytest.mark.parametrize(("version", "verified"), [("2.13.0+cpu", True), ("2.13.0", True), ("1.0+2.13.0", False)])
def test_what_torch_says_of_itself_is_kept(version: str, verified: bool, tmp_path: Path) -> None:
    said = {"version": version, "threads": 3, "capability": "AVX2", "cuda_build": "13.0", "cuda": ["a", "b"]}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho a warning\necho '{json.dumps(said)}'\n")
    python.chmod(0o755)
    assert doctor.ask_torch(str(python)) == Torch(
        version=version,
        verified=verified,
        threads=3,
        capability="AVX2",
        cuda_build="13.0",
        cuda_devices=("a", "b"),
    )


def test_a_target_of_torchair_is_usable_where_it_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import npucompose.targets

    asked: list[str] = []

    class Registry:
        def get(self, name: str) -> Any:
            asked.append(name)
            return lambda: self

        def check(self, mode: str) -> None:
            asked.append(mode)

    monkeypatch.setattr(npucompose.targets, "TARGETS", Registry())
    assert doctor._torchair("npu", "a device") == Usable(name="npu", usable=True, needs="a device")
    assert asked == ["npu", "max-autotune"]


def test_a_torch_that_ends_without_a_word_has_a_status(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho last >&2\nexit 4\n")
    python.chmod(0o755)
    assert doctor.ask_torch(str(python)) == Torch(error="last")
    python.write_text("#!/bin/sh\nexit 4\n")
    assert doctor.ask_torch(str(python)) == Torch(error="exit status 4")
    python.write_text("#!/bin/sh\n")
    assert doctor.ask_torch(str(python)) == Torch(error="torch answered: ")


def test_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"nvidia-smi": ("H200, 1 MiB",), "npu-smi": ("+---", "npu-smi 25.0", "npu-smi later")}
    monkeypatch.setattr(doctor, "first_lines", lambda *command: said.get(command[0], ()))
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", "")
    found = doctor.look_at_machine()
    assert (found.nvidia, found.npu, found.cann) == (("H200, 1 MiB",), "npu-smi 25.0", {"ASCEND_HOME_PATH": "/cann"})
    said.clear()
    assert (doctor.look_at_machine().npu, doctor.look_at_machine().nvidia) == (None, ())
    assert doctor.memory_gib() == found.memory_gib
    assert found.memory_gib is not None
    assert found.memory_gib > 0.1
    monkeypatch.setattr(doctor.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**20, "SC_PAGE_SIZE": 4096}[name])
    assert doctor.memory_gib() == 4.0
    monkeypatch.setattr(doctor.os, "sysconf_names", {})
    assert doctor.memory_gib() is None
