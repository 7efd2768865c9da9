"""Many threads call one compiled module: each gets the results of its own call, and nobody's are changed later."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from npucompose.machine import compiler
from tools import sanitized
from tools.call_from_threads import FRONTS, wrong_results

THREADS = 8
CALLS = 100_000


pytestmark = pytest.mark.usefixtures("one_quiet_thread")


@pytest.mark.parametrize("front", FRONTS)
def test_eight_threads_get_results_of_their_own(front: str):
    assert wrong_results(front, threads=THREADS, calls=1600) == 0


@pytest.mark.slow
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("streams", [False, True], ids=["one stream", "two streams"])
def test_eight_threads_get_a_hundred_thousand_results_of_their_own(front: str, streams: bool):
    assert wrong_results(front, threads=THREADS, calls=CALLS, streams=streams) == 0


@pytest.mark.slow
def test_the_thread_sanitizer_has_nothing_to_report():
    """`make test-sanitized` makes a hundred thousand calls; here it is fewer, in every front."""
    command = ["-m", "tools.call_from_threads", "--calls", "8000"]
    try:
        done, reports = sanitized.sanitized(sanitized.THREAD, command, timeout=1500)
    except sanitized.NotHere as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 wrong") == len(FRONTS)
    assert reports == []


@pytest.mark.slow
def test_deletes_that_a_reference_count_orders_are_no_race_and_a_late_write_still_is(tmp_path):
    """What tools/seen_deletes.cpp is for; without it the first program is reported."""
    try:
        _, loads = sanitized.environments(sanitized.THREAD, tmp_path / "logs")
    except sanitized.NotHere as error:
        pytest.skip(str(error))
    program = _built(tmp_path)
    alone = {**loads, "LD_PRELOAD": loads["LD_PRELOAD"].split(" ")[-1]}
    assert _races(program, loads, tmp_path / "ordered") == 0
    assert _races(program, alone, tmp_path / "unseen") > 0
    assert _races([*program, "late"], loads, tmp_path / "late") > 0


def _built(work: Path) -> list[str]:
    """The command of the program of the folder `deletes`: its library without the sanitizer, itself with it."""
    sources, built = Path(__file__).parent / "deletes", [str(compiler()), "-std=c++17", "-O1", "-g"]
    library, program = work / "library.so", work / "program"
    subprocess.run([*built, "-shared", "-fPIC", sources / "library.cpp", "-o", library], check=True)
    sanitizing = [*built, "-fsanitize=thread", "-pthread"]
    subprocess.run([*sanitizing, sources / "program.cpp", library, "-o", program], check=True)
    return [*sanitized.without_randomised_addresses(), str(program)]


def _races(command: list[str], environment: Mapping[str, str], logs: Path) -> int:
    logs.mkdir()
    told = f"ignore_noninstrumented_modules=0:exitcode=0:log_path={logs / 'report'}"
    subprocess.run(command, env={**environment, "TSAN_OPTIONS": told}, check=True)
    return len(sanitized.reports(logs))


REPORT = """==================
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7b1c0050d738 by thread T9:
    #0 moved kernels.cpp:218 ({library}+0x6fba1)

SUMMARY: ThreadSanitizer: data race kernels.cpp:218 in moved
==================
"""


def test_a_report_is_ours_when_a_frame_of_our_library_is_in_it(tmp_path):
    (tmp_path / "report.7").write_text(REPORT.format(library=sanitized.OURS) + REPORT.format(library="libgomp.so.1"))
    ours, theirs = sanitized.reports(tmp_path)
    assert sanitized.is_ours(ours)
    assert not sanitized.is_ours(theirs)


ADDRESSED = """=================================================================
==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000014 at pc 0x7f58
READ of size 4 at 0x602000000014 thread T0
    #0 0x7f58 in npucompose::move recording.cpp:12 ({library}+0x6fba1)

SUMMARY: AddressSanitizer: heap-buffer-overflow recording.cpp:12
front.cpp:30:12: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented in type 'int'
    #0 0x7f58 in npucompose::bytes_of front.cpp:30 ({library}+0x1fba1)
"""


def test_reports_of_addresses_and_of_undefined_behaviour_are_found_one_by_one(tmp_path):
    (tmp_path / "report.7").write_text(ADDRESSED.format(library=sanitized.OURS))
    first, second = sanitized.reports(tmp_path, sanitized.ADDRESS)
    assert "heap-buffer-overflow" in first
    assert "runtime error" not in first
    assert "signed integer overflow" in second
    assert sanitized.is_ours(first)
    assert sanitized.is_ours(second)


def test_every_file_that_is_run_under_sanitizers_is_there():
    files = {file for one in sanitized.SANITIZERS.values() for file in (*one.tests, *one.fast)}
    assert all((sanitized.HERE.parent / file).is_file() for file in files)


def test_nothing_of_ours_is_suppressed():
    lines = sanitized.SUPPRESSIONS.read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert all(rule.startswith("called_from_lib:") and "npucompose" not in rule for rule in rules)
