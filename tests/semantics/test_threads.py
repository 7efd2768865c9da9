"""Many threads call one compiled module: each gets the results of its own call, and nobody's are changed later."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tools import sanitized
from tools.call_from_threads import FRONTS, wrong_results

THREADS = 8
CALLS = 100_000


@pytest.fixture(autouse=True)
def one_thread_in_a_kernel() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()
    torch.set_num_threads(before)


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
    """`make test-threads-sanitized` makes a hundred thousand calls; here it is fewer, in every front."""
    try:
        done, reports = sanitized.sanitized(["--calls", "8000"], timeout=1500)
    except sanitized.NotHere as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 wrong") == len(FRONTS)
    assert reports == []


REPORT = """==================
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7b1c0050d738 by thread T9:
    #0 moved kernels.cpp:218 ({library}+0x6fba1)

SUMMARY: ThreadSanitizer: data race kernels.cpp:218 in moved
==================
"""


def test_a_report_is_ours_when_a_frame_of_our_library_is_in_it(tmp_path):
    (tmp_path / "report.7").write_text(
        REPORT.format(library="npucompose_replay.so") + REPORT.format(library="libgomp.so.1")
    )
    ours, theirs = sanitized.reports(tmp_path)
    assert sanitized.is_ours(ours)
    assert not sanitized.is_ours(theirs)


def test_nothing_of_ours_is_suppressed():
    lines = sanitized.SUPPRESSIONS.read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert all(rule.startswith("called_from_lib:") and "npucompose" not in rule for rule in rules)
