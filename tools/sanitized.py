"""`tools.call_from_threads` with our native library under the thread sanitizer: `python -m tools.sanitized`.

The library is built once more, with -fsanitize=thread, into a cache of its own; Python and torch are as they are: the
sanitizer sees what they do only where it goes through pthread, malloc and the like. What it reports about them alone is
suppressed (tools/thread_sanitizer.supp names libraries, never a function of ours); a report with a frame of ours in it
is printed, and the exit status is 1. Every other word on the command line goes to `tools.call_from_threads`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler
from npucompose.targets.cpu.native.build import NAME

HERE = Path(__file__).resolve().parent
SUPPRESSIONS = HERE / "thread_sanitizer.supp"
OURS = f"{NAME}.so"
FLAGS = "-fsanitize=thread -g -fno-omit-frame-pointer"
OPTIONS = (
    "ignore_noninstrumented_modules=0",  # what libraries do through pthread and malloc orders what we do
    "report_signal_unsafe=0",
    "history_size=7",
    "halt_on_error=0",
    "exitcode=0",  # the script itself counts reports
)

BUILD = "from npucompose.targets.cpu.native import build; build.file()"


class NotHere(Exception):
    """No compiler, or one without the sanitizer's library."""


def environments(logs: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What a process needs to build the sanitized library, and one that loads it and writes its reports to `logs`."""
    found = compiler()
    if found is None:
        raise NotHere("no C++ compiler is installed")
    library = _asked(found, "-print-file-name=libtsan.so")
    if not Path(library).is_file():
        raise NotHere(f"{found} has no libtsan.so: it cannot build for the thread sanitizer")
    place = cache_dir() / "sanitized"
    place.mkdir(parents=True, exist_ok=True)
    options = " ".join((*OPTIONS, f"suppressions={SUPPRESSIONS}", f"log_path={logs / 'report'}"))
    builds = {**os.environ, "CXX": str(_wrapper(place, found)), CACHE_VARIABLE: str(place), "OMP_NUM_THREADS": "1"}
    return builds, {**builds, "LD_PRELOAD": str(Path(library).resolve()), "TSAN_OPTIONS": options}


def _asked(found: str, question: str) -> str:
    return subprocess.run([found, question], capture_output=True, text=True, check=True).stdout.strip()


def _wrapper(place: Path, found: str) -> Path:
    """A compiler as it is, with the sanitizer's flags."""
    script = place / "sanitizing-compiler"
    text = f'#!/bin/sh\nexec {found} {FLAGS} "$@"\n'
    if not script.is_file() or script.read_text() != text:
        script.write_text(text)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def reports(logs: Path) -> list[str]:
    """Each warning of the sanitizer, in full."""
    texts = [file.read_text(errors="replace") for file in sorted(logs.iterdir())]
    return [found for text in texts for found in re.findall(r"WARNING: ThreadSanitizer:.*?={10,}", text, re.DOTALL)]


def is_ours(report: str) -> bool:
    """Whether one of the two accesses was made by our library, or by what it called."""
    return OURS in report


def sanitized(arguments: list[str], timeout: float | None = None) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """(the finished process, the reports with a frame of ours)."""
    with tempfile.TemporaryDirectory() as work:
        logs = Path(work)
        builds, loads = environments(logs)
        # A compiler that was started by a sanitized process would not live long.
        subprocess.run([sys.executable, "-c", BUILD], env=builds, cwd=HERE.parent, check=True)
        done = subprocess.run(
            [*_without_randomised_addresses(), sys.executable, "-m", "tools.call_from_threads", *arguments],
            env=loads,
            cwd=HERE.parent,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done, [report for report in reports(logs) if is_ours(report)]


def _without_randomised_addresses() -> list[str]:
    """Older sanitizers do not find their way among addresses of newer kernels."""
    setarch = shutil.which("setarch")
    if setarch is None:
        return []
    works = subprocess.run([setarch, "-R", "true"], capture_output=True, check=False).returncode == 0
    return [setarch, "-R"] if works else []


def main() -> int:
    try:
        done, found = sanitized(sys.argv[1:])
    except NotHere as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
    for report in found:
        print(report)
    print(f"{len(found)} reports of the thread sanitizer with a frame of {OURS}")
    return int(done.returncode != 0 or bool(found))


if __name__ == "__main__":
    sys.exit(main())
