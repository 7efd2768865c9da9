"""How the extension is built, found again, and done without. The compilers here are scripts: the real one runs once."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose import activity, machine
from npucompose.cli import main
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.errors import CaptureError, ConfigError
from npucompose.report import doctor
from npucompose.report.doctor import native_replayer
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.executor import build, compiling
from npucompose_replay.executor.held_kernels import HELD, header
from replay_tests.executor.building import captured, copying


def test_without_a_compiler_the_portable_replayer_runs_and_says_why(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    facts = captured().facts()
    assert facts["executor"] == "torchscript"
    assert "no C++ compiler is installed" in facts["executor_reason"]
    assert native_replayer().startswith("impossible: no C++ compiler")
    assert CpuTarget().warnings("reduce-overhead")[0].startswith("the portable replayer is used: no C++ compiler")
    with pytest.raises(ConfigError, match=r"target\.executor=native: no C\+\+ compiler .*executor=auto"):
        CpuTarget(executor="native").check("reduce-overhead")
    CpuTarget(executor="native").check("max-autotune")  # records nothing


def test_what_a_compiler_did_instead_is_said_in_so_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(script: str) -> str:
        place = tmp_path / "g++"
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o700)
        with pytest.raises(compiling.CompilerFailed) as failed:
            compiling._run([str(place), "-c", "-o", "/a/b.o"])
        return str(failed.value).replace(str(place), "g++")

    assert said("exit 3") == "`g++ … -o b.o` ended with status 3 and said:\nnothing"
    assert said("for n in 1 2; do echo line $n >&2; done; exit 1").endswith("said:\nline 1\nline 2")
    assert said("echo noise >&2; echo an error >&2; exit 1").endswith("said:\nan error")
    many = said("for n in $(seq 13); do echo error $n >&2; done; exit 1").splitlines()
    assert (len(many), many[-1]) == (13, "error 12")
    with pytest.raises(compiling.CompilerFailed, match=r"`.*nobody … -o b\.o` cannot be run: "):
        compiling._run([str(tmp_path / "nobody"), "-o", "/a/b.o"])
    monkeypatch.setattr(compiling, "TIME_LIMIT_S", 0.01)
    assert said("exec sleep 5") == "`g++ … -o b.o` took longer than 0.01 s."
    compiling._run(["true"])


def test_the_extension_is_built_on_linux_for_a_torch_that_has_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_torch", lambda: tmp_path)
    with pytest.raises(build.Unavailable, match=r"links to .*/lib/libtorch_cpu\.so, which is not there"):
        build._library()
    monkeypatch.setattr(build.sys, "platform", "darwin")
    with pytest.raises(build.Unavailable, match="is built on Linux only; this is darwin"):
        build._library()


def test_a_compiler_that_fails_is_asked_once_and_its_words_are_kept(
    empty_cache: Path, compiler: Callable[[str], Path]
) -> None:
    calls = compiler('echo "replay.cpp:1: error: no such header" >&2; exit 1')
    assert captured().facts()["executor"] == "torchscript"
    asked = len(calls.read_text().splitlines())
    build.load.cache_clear()
    with pytest.raises(build.Unavailable, match=r"status 1 and said:\nreplay\.cpp:1: error: no such header"):
        build.load()
    assert len(calls.read_text().splitlines()) == asked
    assert "error: no such header" in native_replayer()
    assert native_replayer().startswith("failed: ")
    with pytest.raises(CaptureError, match=r"target\.executor=native: .*\n.*no such header"):
        CpuTarget(executor="native").finish_build("reduce-overhead")


@pytest.mark.slow
def test_a_failing_compiler_is_one_line_in_the_report_and_doctor_shows_all_that_it_said(
    empty_cache: Path, compiler: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiler('echo "a.cpp:1: error: no such header\na.cpp:2: error: too old" >&2; exit 1')
    reason = captured().facts()["executor_reason"]
    said = "ended with status 1 and said: a.cpp:1: error: no such header (`npucompose doctor` shows all)"
    assert reason.endswith(said)
    assert "\n" not in reason
    assert CpuTarget().warnings("reduce-overhead") == (f"the portable replayer is used: {reason}",)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert str(tmp_path / "c++") in shown
    at = [shown.index(words) for words in ("a.cpp:1: error: no such header", "a.cpp:2: error: too old", "to try again")]
    assert at == sorted(at)


def test_a_compiler_that_is_named_and_not_there_is_told(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    machine = doctor.look_at_machine()
    (note,) = doctor.notes(doctor.Torch(), machine, {})
    assert note == f"CXX=/nonexistent is no program; the C++ compiler is {machine.compiler or 'none'}."
    monkeypatch.setenv("PATH", "")
    assert build.state().kind == "impossible"
    assert doctor.look_at_machine().compiler is None


def test_another_compiler_is_tried_where_one_has_failed(
    empty_cache: Path, compiler: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler("exit 1")
    with pytest.raises(build.Unavailable):
        build.load()
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    assert build.state().kind == "not built"


def test_what_is_built_is_loaded_without_a_compiler(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = compiler(copying(real))
    assert build.state().kind == "not built"
    assert captured().facts()["executor"] == "native"
    assert "building the native replayer for torch" in capsys.readouterr().err
    assert build.state().kind == "built"
    asked = calls.read_text()
    build.load.cache_clear()
    assert captured().facts()["executor"] == "native"
    assert calls.read_text() == asked


def test_an_extension_that_is_torn_is_built_anew(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    compiler(copying(real))
    build.load()
    torn = build.folder() / f"{build.NAME}.so"
    torn.unlink()  # the loaded one stays mapped
    torn.write_bytes(real.read_bytes()[:5000])
    assert build.state().kind == "built", "what is loaded works"
    build.load.cache_clear()
    assert build.state().kind == "not built"
    assert captured().facts()["executor"] == "native"
    assert torn.read_bytes() == real.read_bytes()


def test_an_extension_that_cannot_be_imported_is_built_anew_and_then_given_up(
    empty_cache: Path, compiler: Callable[[str], Path]
) -> None:
    calls = compiler("for last; do :; done\necho 'no library' > $last")
    facts = captured().facts()
    assert facts["executor"] == "torchscript"
    assert "cannot be loaded" in facts["executor_reason"]
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 2


def test_an_extension_of_another_torch_is_never_loaded(monkeypatch: pytest.MonkeyPatch, real: Path) -> None:
    mine = build.folder()
    monkeypatch.setattr(metadata, "version", lambda _: "2.12.0")
    assert build.folder() != mine
    monkeypatch.setattr(torch, "__version__", "2.12.0")
    with pytest.raises(ImportError, match=r"built with the headers of torch .*, and this is torch 2\.12\.0"):
        build._loaded(real)


def put(content: bytes) -> Path:
    """An extension in our place in the cache, whole and with the right digest."""
    place = build.folder()
    place.mkdir(parents=True)
    (place / f"{build.NAME}.so").write_bytes(content)
    (place / f"{build.NAME}.sha256").write_text(hashlib.sha256(content).hexdigest())
    return place / f"{build.NAME}.so"


def test_an_extension_of_another_torch_in_the_place_of_ours_is_built_anew(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    calls, mine = compiler(copying(real)), build.BUILT_WITH.encode() + torch.__version__.partition("+")[0].encode()
    assert mine in real.read_bytes()
    there = put(real.read_bytes().replace(mine, mine[:-1] + b"9"))
    assert build.state().kind == "not built"
    build.load()
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1
    assert there.read_bytes() == real.read_bytes()


@pytest.mark.slow
def test_an_extension_that_needs_what_this_torch_lacks_is_built_anew_and_used(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    """In a process of its own: a process loads an extension once."""
    compiler(copying(real))
    there = put(real.read_bytes().replace(b"THPVariable_Wrap", b"THPVariable_Warp"))
    assert build.state().kind == "built"
    script = "from npucompose_replay.executor import build; print(build.load().__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(there)
    assert "building the native replayer" in done.stderr
    assert there.read_bytes() == real.read_bytes()


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0a0+git1234", "2.13.0.dev20260101+cpu"])
def test_a_torch_of_every_day_is_known_by_its_release(version: str) -> None:
    assert build._release(version) == "2.13.0"


def test_two_that_come_at_once_build_once(empty_cache: Path, compiler: Callable[[str], Path], real: Path) -> None:
    calls = compiler(f"sleep 0.1\n{copying(real)}")
    places: list[Path] = []
    threads = [threading.Thread(target=lambda: places.append(build._built(build.folder()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 3
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1


def test_two_threads_that_load_at_once_both_have_the_whole_module(monkeypatch: pytest.MonkeyPatch, real: Path) -> None:
    within, most = [], []
    loader = importlib.machinery.ExtensionFileLoader
    execute = loader.exec_module

    def slowly(self: Any, module: Any) -> None:
        within.append(module)
        most.append(len(within))
        time.sleep(0.02)
        execute(self, module)
        within.pop()

    monkeypatch.setattr(loader, "exec_module", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: build._loaded(real), range(4)))
    assert most == [1] * 4
    assert all(module.torch_version for module in found)


def test_a_build_that_was_started_goes_on_beside_its_caller_and_is_waited_for(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls = compiler(f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.02; done\n{copying(real)}")
    build.start()
    build.start()
    assert build.state().kind == "not built"
    go.touch()
    assert build.load().torch_version in torch.__version__
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1


def test_a_program_that_ends_waits_for_no_build(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def building() -> None:
        threads.append(threading.current_thread())
        begun.set()
        go.wait(20)

    monkeypatch.setattr(build, "state", lambda: build.BuildState(kind="not built", words=""))
    monkeypatch.setattr(build, "_build_beside", building)
    build.start()
    assert begun.wait(20), "it runs beside the caller, who goes on"
    assert [(thread.daemon, thread.is_alive()) for thread in threads] == [(True, True)]
    go.set()


def test_a_build_that_was_started_and_failed_says_so_where_it_is_needed_and_is_not_tried_again(
    empty_cache: Path, compiler: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    calls = compiler('sleep 0.1; echo "a.cpp:1: error: no such header" >&2; exit 1')
    CpuTarget(executor="native").start_build("reduce-overhead")
    with pytest.raises(CaptureError, match=r"target\.executor=native: .*\n.*no such header"):
        CpuTarget(executor="native").finish_build("reduce-overhead")
    asked = calls.read_text()
    assert captured().facts()["executor"] == "torchscript"
    assert calls.read_text() == asked
    assert capfd.readouterr().err.count("no such header") == 0, "the error says it, and nobody else"


def test_a_run_traces_its_model_while_the_native_replayer_is_built(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler waits for the end of tracing: one that tracing waits for would never end."""
    go, said = tmp_path / "go", list[str]()
    compiler(f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.02; done\n{copying(real)}")
    monkeypatch.setattr(activity, "_listeners", [said.append])
    monkeypatch.setattr(activity, "_now", "")
    finish = CpuTarget.finish_build

    def traced(target: CpuTarget, mode: str) -> None:
        assert build.state().kind == "not built"
        threading.Timer(0.2, go.touch).start()
        finish(target, mode)

    monkeypatch.setattr(CpuTarget, "finish_build", traced)
    session = Session(check(compose(["mode=reduce-overhead", "model=add"])))
    session.checked.target.start_build("reduce-overhead")
    (made,) = session.compilations
    assert made.lowered is not None
    assert made.lowered.captured[0].facts()["executor"] == "native"
    words = [f"tracing the model, {build.BUILDING}", f"waiting for the compiler, {build.BUILDING}"]
    assert [one for one in dict.fromkeys(said) if one in words] == words


def test_what_a_build_left_that_was_ended_goes_with_the_next_one(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    compiler(copying(real))
    left = build.folder() / f"{build.WORK}abc"
    left.mkdir(parents=True)
    (left / "unit_python.o").touch()
    build.load()
    assert sorted(file.name for file in build.folder().iterdir()) == [
        "lock",
        f"{build.NAME}.sha256",
        f"{build.NAME}.so",
    ]


NOT_UTF8 = b"\xff\xfe\x00"


def test_a_digest_that_is_no_text_is_a_reason_to_build_anew(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    calls = compiler(copying(real))
    put(real.read_bytes())
    (build.folder() / f"{build.NAME}.sha256").write_bytes(NOT_UTF8)
    assert build.state().kind == "not built"
    build.load()
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1


def test_a_failure_that_is_no_text_is_a_reason_to_try_again(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    compiler(copying(real))
    place = build.folder()
    place.mkdir(parents=True)
    (place / "failure.txt").write_bytes(f"{tried()}\n".encode() + NOT_UTF8)
    assert build.state().kind == "not built"
    assert captured().facts()["executor"] == "native"


def tried() -> str:
    found = machine.compiler()
    assert found is not None
    return found


@pytest.mark.parametrize("opened", ["", "native", "{place}", "{place}/{name}.so", "{place}/{name}.sha256"])
def test_what_others_could_have_written_is_built_anew_in_a_cache_that_is_closed(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, opened: str
) -> None:
    """The digest is right: who can write the one can write the other."""
    calls = compiler(copying(real))
    put(real.read_bytes() + b"a stranger's")
    for folder in (empty_cache, empty_cache / "native", build.folder()):
        folder.chmod(0o755)
    path = empty_cache / opened.format(place=f"native/{build.folder().name}", name=build.NAME)
    path.chmod(0o777)
    assert "can be written by others" in build.state().words
    build.load()
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1
    assert (build.folder() / f"{build.NAME}.so").read_bytes() == real.read_bytes()
    for folder in (empty_cache, empty_cache / "native", build.folder()):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert build.state().kind == "built"


def test_what_is_built_under_umask_0_is_its_owners_alone(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path
) -> None:
    compiler(copying(real))
    before = os.umask(0)
    try:
        build.load()
    finally:
        os.umask(before)
    for place in (empty_cache, *empty_cache.rglob("*")):
        assert not place.stat().st_mode & 0o077, place
    assert build.state().kind == "built"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_cache_of_another_user_is_a_reason_for_the_portable_replayer_and_doctor_says_so(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = compiler(copying(real))
    os.chown(put(real.read_bytes()), 12345, 12345)
    facts = captured().facts()
    assert facts["executor"] == "torchscript"
    assert "belongs to another user (number 12345)" in facts["executor_reason"]
    assert not calls.exists()
    assert native_replayer().startswith("impossible: the native replayer is not taken from a cache that others can")
    os.chown(empty_cache, 12345, 12345)
    (note,) = doctor.notes(doctor.Torch(), doctor.look_at_machine(), {})
    assert note.startswith(f"the cache is not believed: {empty_cache} belongs to another user")


def test_a_lock_that_is_a_link_does_not_empty_what_it_leads_to(
    empty_cache: Path, compiler: Callable[[str], Path], real: Path, tmp_path: Path
) -> None:
    compiler(copying(real))
    precious = tmp_path / "precious"
    precious.write_text("mine")
    build.folder().mkdir(parents=True)
    (build.folder() / "lock").symlink_to(precious)
    with pytest.raises(build.Unavailable, match="cannot be kept"):
        build.load()
    assert precious.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load.cache_clear()
    tmp_path.chmod(0o500)
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(build.Unavailable, match="cannot be kept"):
        build.load()
    build.load.cache_clear()


def test_every_held_kernel_is_one_that_this_torch_has() -> None:
    assert build.load().lacking == ""


def test_a_kernel_that_torch_lacks_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "ATen" / "ops"
    folder.mkdir(parents=True)
    (folder / "add_native.h").write_text("struct TORCH_API structured_ufunc_add_CPU : public at::meta::… {")
    (folder / "mul_native.h").write_text("struct TORCH_API structured_mul_out_of_tomorrow : public at::meta::… {")
    text = header(tmp_path)
    assert "#include <ATen/ops/add_native.h>" in text
    assert 'X("aten::add.out", structured_ufunc_add_CPU)' in text
    lacking = next(line for line in text.splitlines() if "LACKING" in line)
    assert "aten::mul.out" in lacking
    assert "aten::add.out" not in lacking
    assert len(HELD) - 1 == len(lacking.split('"')[1].split())


def test_every_unit_is_compiled_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(compiling, "_run", ran.append)
    made = compiling.compile_in(tmp_path, "g++", build._library())
    *compiled, linked = ran
    objects = {command[-1] for command in compiled}
    assert len(objects) == len(compiled) == len(build.UNITS)
    assert objects <= set(linked)
    assert linked[-1] == str(made)


def test_no_path_of_this_machine_is_compiled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of what a link leads to, which compilers prefer where it is shorter."""
    ran: list[list[str]] = []
    monkeypatch.setattr(compiling, "_run", ran.append)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    compiling.compile_in(tmp_path / "link", "g++", build._library())
    for command in ran[:-1]:
        hidden = {flag.split("=")[1] for flag in command if flag.startswith("-ffile-prefix-map=")}
        read = [flag.removeprefix("-isystem").removeprefix("-I") for flag in command if flag.startswith(("-i", "-I"))]
        assert [place for place in read if not any(Path(place).is_relative_to(folder) for folder in hidden)] == []
        assert {str(tmp_path / "link"), str(tmp_path / "real")} <= hidden
