"""The tests of replays with our native library under sanitizers: `python -m tools.sanitized [address|thread] [--fast]`.

The library is built once more for each of them, into a cache of its own: `address` with -fsanitize=address,undefined,
`thread` with -fsanitize=thread. Python and torch are as they are: a sanitizer sees what they do only where it goes
through pthread, malloc and the like. What the thread sanitizer reports about them alone is suppressed
(tools/thread_sanitizer.supp names libraries, never a function of ours); how their deletes are ordered it learns from
tools/seen_deletes.cpp. A report with a frame of ours in it is printed, and the exit status is 1, as where a test fails.
`--fast` is what CI runs: `address` over a part of the tests.
docs/decisions/2026-11-22-tests.md lists what cannot run here, with the reasons.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler
from npucompose_replay.executor.compiling import NAME

HERE = Path(__file__).resolve().parent
SUPPRESSIONS = HERE / "thread_sanitizer.supp"
SEEN_DELETES = HERE / "seen_deletes.cpp"
OURS = f"{NAME}.so"

BUILD = "from npucompose_replay.executor import build; build.file()"
"""In a process before: a compiler that was started with a sanitizer's library would not live long."""
COMMON = (
    "packages/replay/tests/replay_tests/executor/test_streams.py",
    "packages/replay/tests/replay_tests/executor/test_cores_of_streams.py",
    "packages/replay/tests/replay_tests/executor/test_thread_orders.py",
    "packages/replay/tests/replay_tests/test_common_memory.py",
    "packages/replay/tests/replay_tests/test_arena.py",
    "packages/replay/tests/replay_tests/test_random_strangers.py",
)


@frozen(kw_only=True)
class Sanitizer:
    name: str
    flags: str
    libraries: tuple[str, ...]
    before: Path | None = None
    """A source whose library is loaded before the sanitizer's."""
    variables: Mapping[str, tuple[str, ...]]
    """{environment variable: its options}; the place of the reports is added."""
    begins: str
    """How a report begins, as a pattern; it ends with the sanitizer's summary."""
    tests: tuple[str, ...]
    fast: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Tests among them that cannot run."""
    calls: tuple[str, ...] = ()
    """What `tools.call_from_threads` is told beside; it is not run where this is empty."""


ADDRESS = Sanitizer(
    name="address",
    # torch's own classes come without what -fsanitize=vptr asks of them.
    flags="-fsanitize=address,undefined -fno-sanitize=vptr -O1 -g1 -fno-omit-frame-pointer",
    libraries=("libasan.so", "libubsan.so"),
    variables={
        # Python and torch leave memory to the end of the process.
        "ASAN_OPTIONS": ("detect_leaks=0", "halt_on_error=0", "exitcode=99", "allocator_may_return_null=1"),
        "UBSAN_OPTIONS": ("print_stacktrace=1", "halt_on_error=0"),
    },
    begins=r"(?:ERROR: AddressSanitizer|runtime error):",
    tests=(
        *COMMON,
        "packages/replay/tests/replay_tests/executor/test_executor.py",
        "packages/replay/tests/replay_tests/executor/test_in_place_orders.py",
        "packages/replay/tests/replay_tests/executor/test_plan_trial.py",
        "packages/replay/tests/replay_tests/test_captured_graph.py",
        "packages/replay/tests/replay_tests/test_faults.py",
        "packages/replay/tests/replay_tests/test_gate.py",
        "packages/replay/tests/replay_tests/test_graph_cache.py",
        "packages/replay/tests/replay_tests/test_held_results.py",
        "packages/replay/tests/replay_tests/test_cached_plans.py",
        "packages/replay/tests/replay_tests/test_random_graphs.py",
        "packages/replay/tests/replay_tests/test_recorded_inputs.py",
        "packages/replay/tests/replay_tests/test_recorded_outputs.py",
        "packages/replay/tests/replay_tests/test_detached.py",
        "packages/replay/tests/replay_tests/semantics/test_odd_tensors.py",
        "packages/replay/tests/replay_tests/semantics/test_threads.py",
    ),
    fast=(
        "packages/replay/tests/replay_tests/test_random_strangers.py",
        "packages/replay/tests/replay_tests/test_recorded_inputs.py",
        "packages/replay/tests/replay_tests/test_gate.py",
        "packages/replay/tests/replay_tests/semantics/test_odd_tensors.py",
    ),
    without=("the_thread_sanitizer", "a_capture_without_memory"),
)
THREAD = Sanitizer(
    name="thread",
    flags="-fsanitize=thread -g -fno-omit-frame-pointer",
    libraries=("libtsan.so",),
    before=SEEN_DELETES,
    variables={
        "TSAN_OPTIONS": (
            "ignore_noninstrumented_modules=0",  # what libraries do through pthread and malloc orders what we do
            "report_signal_unsafe=0",
            "history_size=7",
            "halt_on_error=0",
            "exitcode=0",  # reports are counted here
            f"suppressions={SUPPRESSIONS}",
        )
    },
    begins=r"WARNING: ThreadSanitizer:",
    tests=COMMON,
    without=("fork",),
    calls=("--calls", "100000"),
)
SANITIZERS = {one.name: one for one in (ADDRESS, THREAD)}


class NotHere(Exception):
    """No compiler, or one without the sanitizer's library."""


def environments(sanitizer: Sanitizer, logs: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What a process needs to build the sanitized library, and one that loads it and writes its reports to `logs`."""
    found = compiler()
    if found is None:
        raise NotHere("no C++ compiler is installed")
    libraries = [_asked(found, f"-print-file-name={name}") for name in sanitizer.libraries]
    if not all(Path(library).is_file() for library in libraries):
        raise NotHere(f"{found} has no {' or '.join(sanitizer.libraries)}: it cannot build for the sanitizer")
    place = cache_dir() / f"sanitized-{sanitizer.name}"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    script = _wrapper(place, found, sanitizer.flags)
    builds = {**os.environ, "CXX": str(script), CACHE_VARIABLE: str(place), "OMP_NUM_THREADS": "1"}
    if sanitizer.before:
        libraries.insert(0, _library(place, found, sanitizer.before))
    told = {
        variable: ":".join((*options, f"log_path={logs / 'report'}"))
        for variable, options in sanitizer.variables.items()
    }
    return builds, {**builds, **told, "LD_PRELOAD": " ".join(str(Path(one).resolve()) for one in libraries)}


def _asked(found: str, question: str) -> str:
    return subprocess.run([found, question], capture_output=True, text=True, check=True).stdout.strip()


def _library(place: Path, found: str, source: Path) -> str:
    """The shared library of one small source, without the sanitizer's flags."""
    made = place / f"{source.stem}.so"
    if not made.is_file() or made.stat().st_mtime < source.stat().st_mtime:
        beside = made.with_suffix(f".{os.getpid()}")
        command = [found, "-std=c++17", "-O1", "-shared", "-fPIC", str(source), "-o", str(beside), "-ldl"]
        subprocess.run(command, check=True)
        beside.replace(made)
    return str(made)


def _wrapper(place: Path, found: str, flags: str) -> Path:
    """A compiler as it is, with the sanitizer's flags behind all others."""
    script = place / "sanitizing-compiler"
    text = f'#!/bin/sh\nexec {found} "$@" {flags}\n'
    if not script.is_file() or script.read_text() != text:
        script.write_text(text)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def reports(logs: Path, sanitizer: Sanitizer = THREAD) -> list[str]:
    """Each warning of the sanitizer, in full."""
    texts = [file.read_text(errors="replace") for file in sorted(logs.iterdir())]
    pattern = rf"[^\n]*{sanitizer.begins}.*?(?=\n[^\n]*{sanitizer.begins}|\Z)"
    return [found for text in texts for found in re.findall(pattern, text, re.DOTALL)]


def is_ours(report: str) -> bool:
    """Whether one of the two accesses was made by our library, or by what it called."""
    return OURS in report


def sanitized(
    sanitizer: Sanitizer, command: Sequence[str], timeout: float | None = None
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Python with `command` behind it: (the finished process, the reports with a frame of ours)."""
    with tempfile.TemporaryDirectory() as work:
        logs = Path(work)
        builds, loads = environments(sanitizer, logs)
        subprocess.run([sys.executable, "-c", BUILD], env=builds, cwd=HERE.parent, check=True)
        done = subprocess.run(
            [*without_randomised_addresses(), sys.executable, *command],
            env=loads,
            cwd=HERE.parent,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done, [report for report in reports(logs, sanitizer) if is_ours(report)]


def without_randomised_addresses() -> list[str]:
    """Older sanitizers do not find their way among addresses of newer kernels."""
    setarch = shutil.which("setarch")
    if setarch is None:
        return []
    works = subprocess.run([setarch, "-R", "true"], capture_output=True, check=False).returncode == 0
    return [setarch, "-R"] if works else []


def command_of(sanitizer: Sanitizer, files: Sequence[str]) -> list[str]:
    """The command that runs them."""
    without = " and ".join(f"not {word}" for word in sanitizer.without)
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-k", without, *files]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*SANITIZERS, []], metavar="|".join(SANITIZERS))
    parser.add_argument("--fast", action="store_true")
    given = parser.parse_args()
    chosen = [ADDRESS] if given.fast else [SANITIZERS[name] for name in given.which or SANITIZERS]
    bad = False
    for sanitizer in chosen:
        commands = [command_of(sanitizer, sanitizer.fast if given.fast else sanitizer.tests)]
        if sanitizer.calls and not given.fast:
            commands.append(["-m", "tools.call_from_threads", *sanitizer.calls])
        for command in commands:
            try:
                done, found = sanitized(sanitizer, command)
            except NotHere as error:
                print(f"not run: {error}", file=sys.stderr)
                return 2
            print(done.stdout[-20000:], end="")
            if done.returncode:
                print(done.stderr[-4000:], file=sys.stderr)
            for report in found:
                print(report)
            print(f"{sanitizer.name}: {len(found)} reports with a frame of {OURS}", flush=True)
            bad = bad or done.returncode != 0 or bool(found)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
