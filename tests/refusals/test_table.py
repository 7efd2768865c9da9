"""Every refusal of what a stranger wrote, in one table: an input that is refused by this rule and by no other.

Each row is read twice: as the product is, and with this one statement taken out of it, within limits of time and
memory. Why a value of a script is not known (`Unknown(why=…)`) is no rule: the rule is that its line is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.refusals import devices, foreign, profile_tables, records, scripts, texts
from tests.refusals.case import Case
from tests.refusals.limits import TooMuch, limited
from tests.refusals.table import Table

TABLE = Table(
    packages=("airflow_free", "npucompose"),
    cases=(
        *texts.CASES, *foreign.CASES, *scripts.CASES, *records.CASES, *devices.CASES, *profile_tables.CASES,
    ),
    of_programs=("compile_config", "_of_a_file", "_wants_transformers"),
)  # fmt: skip


@pytest.mark.parametrize("case", TABLE.cases, ids=str)
def test_what_one_rule_refuses_only_that_rule_refuses(case: Case, tmp_path: Path) -> None:
    TABLE.hold(case, tmp_path)


@pytest.mark.parametrize("module", TABLE.modules)
def test_every_rule_of_a_reader_has_a_case(module: str) -> None:
    assert TABLE.without_a_case(module) == []


def test_every_module_that_reads_is_in_the_table_or_named_with_a_reason() -> None:
    TABLE.hold_all_readers()


def hangs() -> None:
    while True:
        pass


def waits() -> None:
    time.sleep(60)


def grows() -> None:
    [bytes(1 << 20) for _ in range(1 << 20)]


@pytest.mark.parametrize(
    ("act", "limit", "kind"),
    [
        (hangs, partial(limited, processor_s=0.2), TooMuch),
        (waits, partial(limited, waiting_s=0.4), TooMuch),
        (grows, partial(limited, memory=64 << 20), MemoryError),
    ],
)
def test_what_hangs_waits_or_grows_is_ended(
    act: Callable[[], None], limit: Callable[[], AbstractContextManager[None]], kind: type[BaseException]
) -> None:
    """One limit each: memory that this process has freed before costs time before more is asked for."""
    begun = time.monotonic()
    with pytest.raises(kind), limit():
        act()
    assert time.monotonic() - begun < 20
