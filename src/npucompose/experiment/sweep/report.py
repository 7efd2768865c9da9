"""`npucompose report [DIR…]`: runs beside each other, or what differs between two; of run folders, sweep folders and
stores with a ledger.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from airflow_free.errors import OrchestratorError
from npucompose import commands
from npucompose.console import console
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.experiment.sweep.gather import Gathered, gather, with_reports
from npucompose.report import compare, comparison
from npucompose.report import json as report_json
from npucompose.report.terminal import render
from npucompose.report.words import STATUS_WORDS

UNBROKEN = 4000
"""Columns of a table that goes into a pipe or a file: no terminal breaks its lines, and `grep` and `cut` want them."""


def act(arguments: argparse.Namespace) -> int:
    """Print, or write the page; the exit status is 0 whatever the runs came to."""
    places = [Path(place) for place in arguments.places]
    if arguments.json and not arguments.diff:
        raise ConfigError("--json is for --diff: each run's report.json is JSON already, --csv is the table.")
    if arguments.diff:
        return _diff(places, arguments)
    found = _gathered(places, arguments)
    if arguments.html is not None:
        return _write_page(found, arguments.html)
    if arguments.full:
        return _show_whole(found)
    if arguments.markdown:
        print(compare.as_markdown(found.lines), end="")
    elif arguments.csv:
        print(compare.as_csv(found.lines), end="")
        return 0
    else:
        terminal = console(width=None if sys.stdout.isatty() else UNBROKEN)
        terminal.print(compare.as_table(found.lines))
        terminal.print(_summary(found), highlight=False)
    if sentence := _verdict(found):
        print(f"\n{sentence}")
    if len(places) == 2 and all(place.is_file() or (place / report_json.FILE_NAME).is_file() for place in places):
        print()
        _print_differences(_differences_of(places), arguments)
    return 0


def _gathered(places: list[Path], arguments: argparse.Namespace) -> Gathered:
    """What is asked for may be anybody's: where it cannot be read, what was asked for is wrong."""
    try:
        found = gather(places, sort=arguments.sort, descending=arguments.descending, limit=arguments.limit or None)
    except ConfigError:
        raise
    except (NpuComposeError, OrchestratorError) as error:
        raise ConfigError(str(error)) from error
    for note in found.notes:
        print(f"npucompose: {note}", file=sys.stderr)
    return found


def _verdict(found: Gathered) -> str | None:
    """Which of two runs is faster, where there are two of the same work."""
    if len(found.lines) != 2:
        return None
    one, other = (run.report for run in with_reports(found.lines))
    return comparison.verdict(one, other) if one is not None and other is not None else None


def _show_whole(found: Gathered) -> int:
    """Each run as it was, one after the other; of those that left no report, their line."""
    terminal = console()
    for run in with_reports(found.lines):
        if run.report is None:
            terminal.print(compare.as_table([run.line]))
            continue
        render(run.report, terminal, None if run.line.folder is None else run.line.folder / report_json.FILE_NAME)
    return 0


def _write_page(found: Gathered, path: Path) -> int:
    commands.write(path, comparison.render(with_reports(found.lines), found.counts), "--html")
    print(f"{_summary(found)}\n  {path}")
    return 0


def _summary(found: Gathered) -> str:
    total = sum(found.counts.values())
    counts = ", ".join(f"{found.counts[s]} {words}" for s, words in STATUS_WORDS.items() if s in found.counts)
    return f"{len(found.lines)} of {total} runs: {counts}"


def _diff(places: list[Path], arguments: argparse.Namespace) -> int:
    if len(places) != 2:
        raise ConfigError(f"--diff compares two runs; given {len(places)}.")
    if arguments.csv or arguments.html is not None:
        raise ConfigError("--diff is a table of words: --markdown, --json, or neither.")
    _print_differences(_differences_of(places), arguments)
    return 0


def _differences_of(places: list[Path]) -> tuple[comparison.RunDifference, ...]:
    one, other = (report_json.load(place) for place in places)
    return comparison.differences(one, other)


def _print_differences(found: tuple[comparison.RunDifference, ...], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(comparison.as_json(found))
    elif not found:
        print("Nothing differs.")
    elif arguments.markdown:
        print(comparison.difference_markdown(found), end="")
    else:
        console().print(comparison.difference_text(found), end="", soft_wrap=True)
