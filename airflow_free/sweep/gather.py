"""The runs that `npucompose report DIR…` is asked about: run folders, sweep folders, stores with a ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from airflow_free.store import Store
from airflow_free.sweep.ledger import FILE_NAME, Entry, Ledger
from airflow_free.sweep.run import POINTS
from npucompose.errors import ConfigError
from npucompose.report import json as report_json
from npucompose.report.compare import Line
from npucompose.schema.figures import Figures


@frozen(kw_only=True)
class Gathered:
    """Lines in order, no more than were asked for, and how many there are of each status in all."""

    lines: tuple[Line, ...]
    counts: Mapping[str, int]


def gather(places: Sequence[Path], *, sort: str, descending: bool = False, limit: int | None = None) -> Gathered:
    """Runs in the order of a figure, those without it last; ConfigError for a place where nothing was run.

    Without `places` it is the default store. A ledger sorts by itself, however many points it has.
    """
    places = places or (Store.default().root,)
    if len(places) == 1 and (places[0] / FILE_NAME).is_file():
        with Ledger.open(places[0]) as ledger:
            found = ledger.entries(by=sort, descending=descending, limit=limit)
            return Gathered(lines=tuple(_of_entries(found)), counts=ledger.counts())
    lines = [line for place in places for line in _lines(place)]
    with_it = [line for line in lines if _value(line, sort) is not None]
    with_it.sort(key=lambda line: _value(line, sort), reverse=descending)
    ordered = [*with_it, *(line for line in lines if _value(line, sort) is None)]
    return Gathered(lines=tuple(ordered[:limit]), counts=Counter(line.status for line in lines))


def _value(line: Line, name: str) -> Any:
    return line.status if name == "status" else getattr(line.figures, name)


def _lines(place: Path) -> list[Line]:
    if (place / FILE_NAME).is_file():
        with Ledger.open(place) as ledger:
            return _of_entries(ledger.entries())
    if (place / POINTS).is_file():
        return _of_sweep(place)
    reports = [place] if place.is_file() else sorted(place.rglob(report_json.FILE_NAME))
    if not reports:
        raise ConfigError(f"nothing was run in {place}: no {report_json.FILE_NAME}, no {POINTS} and no {FILE_NAME}.")
    return [_of_report(path, place) for path in reports]


def _of_sweep(place: Path) -> list[Line]:
    """The points of a sweep that have ended, be it in this folder, in an earlier sweep or as illegal."""
    try:
        keys = [str(point["key"]) for point in json.loads((place / POINTS).read_text(encoding="utf-8"))["points"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{place / POINTS} is not the list of points of a sweep: {error}.") from error
    with Ledger.open(Store.default().root) as ledger:
        ends = ledger.of(keys)
    return _of_entries([ends[key] for key in dict.fromkeys(keys) if key in ends])


def _of_entries(entries: Sequence[Entry]) -> list[Line]:
    """Named by the overrides that not every one of them has."""
    counts = Counter(text for entry in entries for text in entry.overrides)
    everywhere = {text for text, times in counts.items() if times == len(entries) > 1}
    return [
        Line(
            name=" ".join(text for text in entry.overrides if text not in everywhere),
            status=entry.status,
            figures=entry.figures,
            error=entry.error,
        )
        for entry in entries
    ]


def _of_report(path: Path, place: Path) -> Line:
    report = report_json.load(path)
    name = str(path.parent) if path.parent in (place, place.parent) else str(path.parent.relative_to(place))
    return Line(name=name, status=report.status, figures=Figures.of(report), error=report.error)
