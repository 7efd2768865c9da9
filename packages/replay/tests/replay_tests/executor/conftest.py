"""The extension by itself, for the tests of its classes; caches and compilers for tests of how it is built."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from npucompose_replay.executor import build


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def extension() -> ModuleType:
    return build.load()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own; afterwards the module knows the real one again."""
    build.load.cache_clear()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    build.load.cache_clear()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`compiler(body)`: a C++ compiler that adds each of its command lines to the file returned, then does `body`."""

    def make(body: str) -> Path:
        script, calls = tmp_path / "c++", tmp_path / "calls"
        script.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(calls))}\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return calls

    return make


@pytest.fixture(scope="module")
def real() -> Path:
    """The extension as it was built for this torch."""
    build.load()
    return build.folder() / f"{build.NAME}.so"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
