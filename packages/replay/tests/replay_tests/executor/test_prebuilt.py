"""The extension that a wheel carries: taken where it fits, built anew or done without elsewhere, and who says why."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from npucompose_replay.executor import build
from replay_tests.executor.building import captured, copying


@pytest.fixture
def carried(tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The extension's file as a wheel for this torch carries it."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    place = build.prebuilt()
    place.mkdir(parents=True)
    (place / f"{build.NAME}.sha256").write_text(hashlib.sha256(real.read_bytes()).hexdigest())
    return Path(shutil.copy(real, place))


def test_what_a_wheel_carries_for_this_torch_is_taken_without_a_compiler(
    carried: Path, empty_cache: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr(build, "_loaded", loaded.append)
    assert build.state() == build.BuildState(kind="built", words=str(carried))
    assert build.file() == carried
    build.load()
    assert loaded == [carried]
    assert not empty_cache.exists()


def test_what_a_wheel_carries_does_not_depend_on_when_torch_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = build._library()
    before, there = build.prebuilt(), os.stat(library)
    later = os.stat_result((*there[:8], there.st_mtime + 60, there.st_ctime))
    larger = os.stat_result((*there[:6], there.st_size + 1, *there[7:10]))
    for stat, same in ((later, True), (larger, False)):
        found = SimpleNamespace(stat=lambda stat=stat: stat, open=library.open)
        monkeypatch.setattr(build, "_library", lambda found=found: found)
        assert (build.prebuilt() == before) == same


def of_another_torch(carried: Path) -> str:
    carried.parent.rename(carried.parent.with_name("torch-2.0.0-cp310-x86_64-0123456789ab"))
    return "is for torch-2.0.0-cp310-x86_64 and does not fit here."


def torn(carried: Path) -> str:
    carried.write_bytes(carried.read_bytes()[:5000])
    return "cannot be loaded: it is damaged, or its C library is newer."


def that_cannot_be_imported(carried: Path) -> str:
    """Whole as it was made, and it needs what this machine's libraries lack."""
    content = f"no library, {build.BUILT_WITH}{torch.__version__.partition('+')[0]}\0".encode()
    carried.write_bytes(content)
    (carried.parent / f"{build.NAME}.sha256").write_text(hashlib.sha256(content).hexdigest())
    return "cannot be loaded: it is damaged, or its C library is newer."


@pytest.mark.parametrize("spoil", [of_another_torch, torn, that_cannot_be_imported])
def test_what_a_wheel_carries_and_does_not_fit_is_built_anew(
    spoil: Callable[[Path], str],
    carried: Path,
    real: Path,
    empty_cache: Path,
    compiler: Callable[[str], Path],
) -> None:
    spoil(carried)
    calls = compiler(copying(real))
    assert captured().facts()["executor"] == "native"
    assert sum(line.startswith("-shared") for line in calls.read_text().splitlines()) == 1
    assert (build.folder() / f"{build.NAME}.so").is_file()


@pytest.mark.parametrize("spoil", [of_another_torch, torn, that_cannot_be_imported])
def test_what_a_wheel_carries_and_does_not_fit_is_the_reason_where_there_is_no_compiler(
    spoil: Callable[[Path], str], carried: Path, empty_cache: Path, no_compiler: None
) -> None:
    words = spoil(carried)
    facts = captured().facts()
    assert facts["executor"] == "torchscript"
    assert "no C++ compiler is installed" in facts["executor_reason"]
    assert facts["executor_reason"].endswith(words)
