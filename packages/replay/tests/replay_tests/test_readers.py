"""What the package reads is its own: no module of it reads what a stranger wrote."""

from __future__ import annotations

from tests.refusals.table import Table

TABLE = Table(
    packages=("npucompose_replay",),
)


def test_every_module_that_reads_is_in_the_table_or_named_with_a_reason() -> None:
    TABLE.hold_all_readers()
