"""npucompose's ledger: what its entries hold, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_args

from attrs import field, frozen

from airflow_free import ledger
from airflow_free.sweep import Point
from npucompose.results.record import MEASURED, Figures, Status
from npucompose.table.structure import structure

TIMED = ("p50_us", "pool_bytes", "peak_rss_bytes", "compile_s")


@frozen(kw_only=True)
class Entry(ledger.Entry):
    status: Status
    figures: Figures = field(factory=Figures)

    @staticmethod
    def illegal(point: Point[Any], problems: Sequence[str] = ()) -> Entry:
        error = "; ".join(problems or point.problems)
        return Entry(key=point.key, status="illegal", overrides=point.overrides, error=error)


class Ledger(ledger.Ledger[Entry]):
    entry: ClassVar[type[Any]] = Entry
    figures: ClassVar[type[Any]] = Figures
    statuses: ClassVar[tuple[str, ...]] = get_args(Status)
    sortable: ClassVar[tuple[str, ...]] = (*MEASURED, "ended", "status")

    @staticmethod
    def structure(kind: type[Any], tree: Mapping[str, object]) -> Any:
        return structure(kind, tree)

    def timed(self, statuses: Sequence[Status]) -> Iterator[tuple[Any, ...]]:
        """(key, overrides, (model, target, and TIMED)) of every point of these statuses that was timed."""
        return self.rows(("model", "target"), TIMED, statuses)
