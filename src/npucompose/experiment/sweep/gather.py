"""The runs that `npucompose report DIR…` is asked about: run folders, sweep folders, stores with a ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from airflow_free.ledger import FILE_NAME
from npucompose.errors import ConfigError
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.sweep.run import POINTS, PointEntry, PointLedger
from npucompose.input_safety import read_text
from npucompose.report import json as report_json
from npucompose.report.compare import RIGHT, RunLine, Timed, best, with_front
from npucompose.report.comparison import ComparedRun
from npucompose.results.record import Figures, Report
from npucompose.table.structure import flat


@frozen(kw_only=True)
class Gathered:
    """Lines in order, no more than were asked for, and how many there are of each status in all."""

    lines: tuple[RunLine, ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """What was not read although nobody named a place, and why."""


OUTPUTS = Path("outputs")
"""Where Hydra makes the folders of single runs: `outputs/<date>/<time>`."""
MOST_SINGLE = 200
"""So many of them are read where nobody names a place, the newest."""


def gather(places: Sequence[Path], *, sort: str, descending: bool = False, limit: int | None = None) -> Gathered:
    """Runs in the order of a figure, those without it last; ConfigError for a place where nothing was run.

    Without `places` it is what was run here: the default store's sweeps, and single runs. A ledger sorts by itself,
    however many points it has.
    """
    single, notes = ([], []) if places else _single_runs()
    places = places or _stores(single)
    if not single and len(places) == 1 and (places[0] / FILE_NAME).is_file():
        return evolve(_of_ledger(places[0], sort, descending, limit), notes=tuple(notes))
    lines = with_front([*single, *(line for place in places for line in _lines(place))])
    with_it = [line for line in lines if _value(line, sort) is not None]
    with_it.sort(key=lambda line: _value(line, sort), reverse=descending)
    ordered = [*with_it, *(line for line in lines if _value(line, sort) is None)]
    counts = Counter(line.status for line in lines)
    return Gathered(lines=tuple(ordered[:limit]), counts=counts, notes=tuple(notes))


def _stores(single: Sequence[RunLine]) -> tuple[Path, ...]:
    """The default store, where a sweep was run; ConfigError where nothing was run here at all."""
    root = default_store().root
    if not (root / FILE_NAME).is_file() and not single:
        raise ConfigError(
            f"nothing was run here: no sweep ({root / FILE_NAME}) and no single run ({OUTPUTS}/…/"
            f"{report_json.FILE_NAME}). Name the folder of a run or a sweep: npucompose report DIR."
        )
    return (root,) if (root / FILE_NAME).is_file() else ()


def _single_runs() -> tuple[list[RunLine], list[str]]:
    """The newest single runs in the working folder, named by their folders; what could not be read."""
    found, notes = [], []
    paths = sorted(OUTPUTS.rglob(report_json.FILE_NAME))
    if len(paths) > MOST_SINGLE:
        notes.append(f"the newest {MOST_SINGLE} of {len(paths)} runs in {OUTPUTS}: npucompose report {OUTPUTS} has all")
    for path in paths[-MOST_SINGLE:]:
        try:
            found.append(_of_report(path, path))
        except ConfigError as error:
            notes.append(f"not read: {error}")
    return found, notes


def _of_ledger(place: Path, sort: str, descending: bool, limit: int | None) -> Gathered:
    with PointLedger.read(place) as ledger:
        found = ledger.entries(by=sort, descending=descending, limit=limit)
        front = best(
            {
                key: Timed(_work(model, target, overrides), *figures)
                for key, overrides, (model, target, *figures) in ledger.timed(RIGHT)
            }
        )
        lines = zip(_of_entries(found, ledger), found, strict=True)
        shown = tuple(evolve(line, front=entry.key in front) for line, entry in lines)
        return Gathered(lines=shown, counts=ledger.counts())


DECIDES_WORK = ("model.", "experiment=", "+experiment=")
"""Beginnings of the overrides that say what is computed, beside the model's name."""


def _work(model: str | None, target: str | None, overrides: Iterable[str]) -> str:
    """`_work("mlp", "cpu", ("mode=eager", "model.size=8"))` is `mlp on cpu, model.size=8`."""
    said = [text for text in overrides if text.startswith(DECIDES_WORK)]
    return ", ".join([f"{model} on {target}", *sorted(said)])


def with_reports(lines: Sequence[RunLine]) -> tuple[ComparedRun, ...]:
    """Each line with its report, where that still lies there."""
    return tuple(ComparedRun(line=line, report=_report_of(line)) for line in lines)


def _report_of(line: RunLine) -> Report | None:
    if line.folder is None or not (line.folder / report_json.FILE_NAME).is_file():
        return None
    return report_json.load(line.folder)


def _value(line: RunLine, name: str) -> Any:
    return line.status if name == "status" else getattr(line.figures, name)


def _lines(place: Path) -> list[RunLine]:
    if (place / FILE_NAME).is_file():
        with PointLedger.read(place) as ledger:
            return _of_entries(ledger.entries(), ledger)
    if (place / POINTS).is_file():
        return _of_sweep(place)
    reports = [place] if place.is_file() else sorted(place.rglob(report_json.FILE_NAME))
    if not reports:
        raise ConfigError(f"nothing was run in {place}: no {report_json.FILE_NAME}, no {POINTS} and no {FILE_NAME}.")
    return [_of_report(path, place) for path in reports]


def _of_sweep(place: Path) -> list[RunLine]:
    """The points of a sweep that have ended, be it in this folder, in an earlier sweep or as illegal."""
    try:
        text = read_text(place / POINTS, report_json.MOST_BYTES)
        keys = [str(point["key"]) for point in json.loads(text)["points"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{place / POINTS} is not the list of jobs of a sweep: {error}.") from error
    with PointLedger.open(default_store().root) as ledger:
        ends = ledger.ends(keys)
        return _of_entries([ends[key] for key in dict.fromkeys(keys) if key in ends], ledger)


def _of_entries(entries: Sequence[PointEntry], ledger: PointLedger) -> list[RunLine]:
    """Named by the overrides that not every one of them has."""
    counts = Counter(text for entry in entries for text in entry.overrides)
    everywhere = {text for text, times in counts.items() if times == len(entries) > 1}
    return [
        RunLine(
            name=" ".join(text for text in entry.overrides if text not in everywhere),
            status=entry.status,
            figures=entry.figures,
            error=entry.error,
            work=_work(entry.figures.model, entry.figures.target, entry.overrides),
            folder=ledger.path.parent / entry.run_dir if entry.run_dir is not None else None,
        )
        for entry in entries
    ]


def _of_report(path: Path, place: Path) -> RunLine:
    report = report_json.load(path)
    folder = path.parent
    name = str(folder) if folder in (place, place.parent) else str(folder.relative_to(place))
    figures = Figures.from_report(report)
    model = report.experiment.get("model")
    options = {k: v for k, v in flat(model).items() if k != "name"} if isinstance(model, Mapping) else {}
    said = [f"model.{key}={json.dumps(value)}" for key, value in options.items() if value not in ([], {}, None)]
    return RunLine(
        name=name,
        status=report.status,
        figures=figures,
        error=report.error,
        work=_work(figures.model, figures.target, said),
        folder=folder,
    )
