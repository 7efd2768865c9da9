"""What a first run in a fresh clone need not wait for: each file's assertions are rewritten once, not once a worker,
and temporary folders lie in memory, where a test that makes sure that a file is on disk does not wait for a disk.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """`--basetemp` and TMPDIR are followed where they are given."""
    if config.getoption("basetemp") is None and "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected stays to the end: the garbage collector, which would look at all of it again and again, rests
    until it is there, and then never looks at it. Compilers make young objects by the thousand: it looks at them each
    20,000, not each 700, which is a tenth of the processor time of all tests.
    """
    gc.disable()
    _import_from_the_end(session)
    found = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    return found


def _import_from_the_end(session: pytest.Session) -> None:
    """The second worker imports the files from the last to the first and meets the first one, which begins at their
    start, in the middle: what either has rewritten the other reads.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and session.config.args == session.config.getini("testpaths"):
        for path in sorted(session.config.rootpath.glob("tests/**/test_*.py"), reverse=True):
            _imported(path)


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    return not system.f_flag & os.ST_NOEXEC and system.f_bavail * system.f_frsize >= ENOUGH


def _imported(path: Path) -> None:
    """Under the name that pytest gives it; a file that cannot be imported is pytest's to tell."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    with suppress(Exception, pytest.skip.Exception):
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
