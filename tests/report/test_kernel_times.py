"""What the doctor says of tables of kernel times: how old they are, and whether the machine was busy."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from npucompose.report.doctor import CALIBRATE, KernelTimes, as_age, in_words
from npucompose.schema.cost_table import BUSY

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (-5, "0 minutes"), (0.9, "0 minutes"), (1, "1 minute"), (59, "59 minutes"), (60, "1 hour"), (119, "1 hour"),
        (23 * 60 + 59, "23 hours"), (24 * 60, "1 day"), (50 * 60, "2 days"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_the_largest_unit_that_it_reaches(minutes: float, words: str) -> None:
    assert as_age(timedelta(minutes=minutes)) == words


def test_a_table_is_told_with_its_age_its_spread_and_whether_the_machine_was_busy() -> None:
    created = (NOW - timedelta(hours=5)).isoformat()
    quiet = KernelTimes(threads=2, created=created, spread=BUSY)
    assert quiet.words(NOW) == f"2 threads: 5 hours old, spread {BUSY:.0%}"
    busy = KernelTimes(threads=1, created=created, spread=BUSY + 0.01)
    assert busy.words(NOW).startswith("1 thread: 5 hours old, spread ")
    assert busy.words(NOW).endswith(f"(the machine was busy: `{CALIBRATE}`)")
    assert in_words(()) == f"none yet; `{CALIBRATE}` measures them"
    assert in_words((quiet, busy)).count("; ") == 1
