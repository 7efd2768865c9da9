"""`npucompose report [DIR…]`: runs beside each other, or what differs between two."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from airflow_free.sweep.gather import Gathered, gather
from npucompose.errors import ConfigError
from npucompose.report import compare
from npucompose.report import json as report_json
from npucompose.report.words import STATUS_WORDS
from npucompose.schema.figures import MEASURED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("places", nargs="*", metavar="DIR", help="runs, sweeps, stores (default: the store here)")
    parser.add_argument("--diff", action="store_true", help="what differs between two runs, and who said so")
    parser.add_argument("--sort", default="p50_us", choices=(*MEASURED, "status"), help="by which figure")
    parser.add_argument("--descending", action="store_true", help="the largest first")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="so many lines; 0: all (default: 50)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="for a pull request")
    form.add_argument("--csv", action="store_true", help="for a spreadsheet")
    parser.set_defaults(act=report)


def report(arguments: argparse.Namespace) -> int:
    """Print; the exit status is 0 whatever the runs came to."""
    places = [Path(place) for place in arguments.places]
    if arguments.diff:
        return _diff(places, arguments)
    found = gather(places, sort=arguments.sort, descending=arguments.descending, limit=arguments.limit or None)
    if arguments.markdown:
        print(compare.as_markdown(found.lines), end="")
    elif arguments.csv:
        print(compare.as_csv(found.lines), end="")
    else:
        console = Console()
        console.print(compare.as_table(found.lines))
        console.print(_summary(found), highlight=False)
    return 0


def _summary(found: Gathered) -> str:
    total = sum(found.counts.values())
    counts = ", ".join(f"{found.counts[s]} {words}" for s, words in STATUS_WORDS.items() if s in found.counts)
    return f"{len(found.lines)} of {total} runs: {counts}"


def _diff(places: list[Path], arguments: argparse.Namespace) -> int:
    if len(places) != 2:
        raise ConfigError(f"--diff compares two runs; given {len(places)}.")
    if arguments.csv:
        raise ConfigError("--diff is a table of words: --markdown, or neither.")
    found = compare.differences(*(report_json.load(place) for place in places))
    if not found:
        print("Nothing differs.")
    elif arguments.markdown:
        print(compare.difference_markdown(found), end="")
    else:
        Console().print(compare.difference_text(found), end="", soft_wrap=True)
    return 0
