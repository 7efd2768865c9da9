"""What a change costs: `python benchmarks/price.py --before COMMIT [--rounds 30] [--out FILE]`.

Two builds of npucompose, each with its own native library in a process of its own, both bound to one core: the commit
before, unpacked into a temporary folder, and the files as they are. In every round each makes a batch of calls, one
after the other, who begins changing from round to round; a ratio is after/before of one round. Printed is the median of
the ratios with a 95 % interval (bootstrap over rounds), for the models detached and through both fronts.

The second table is what a call of a tiny recording costs more than before, in nanoseconds: for one result, and for each
further one (the slope of a line through recordings of 1 to 16 results). Between two commits of which one looks whether
earlier results are still held and the other does not, that is the price of looking.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from npucompose.machine import cores
from npucompose.measure.environment import environment

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("timed_calls.py")
MODELS = ("tiny_ops", "gpt_decode")
WAYS = ("detached", "backend", "compile")
RESULTS = (1, 2, 4, 8, 16)
RESAMPLES = 4000
RATIO_GOAL, RATIO_END = 1.02, 1.04
"""The median at most so much; or the interval contains 1.00 and ends below the second."""
CALL_GOAL_NS, RESULT_GOAL_NS = 100.0, 20.0


class Build:
    """A process that times calls of the npucompose in `tree`."""

    def __init__(self, tree: Path, core: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), str(core)],
            env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "OMP_NUM_THREADS": "1"},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that was asked '{line}' has ended; what it said stands above")
        return float(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@frozen
class Estimate:
    """A median and the ends of its 95 % interval."""

    median: float
    low: float
    high: float

    def shown(self, digits: int) -> str:
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def estimate(rounds: Sequence[Sequence[float]], of: Callable[[Sequence[Sequence[float]]], float]) -> Estimate:
    """`of` all rounds, and of rounds drawn with replacement; the same interval each time for the same rounds."""
    draw = random.Random(0)
    drawn = sorted(of([draw.choice(rounds) for _ in rounds]) for _ in range(RESAMPLES))
    return Estimate(of(rounds), drawn[round(0.025 * RESAMPLES)], drawn[round(0.975 * RESAMPLES) - 1])


def middle_ratio(rounds: Sequence[Sequence[float]]) -> float:
    """Rounds are (before, after)."""
    return median(after / before for before, after in rounds)


def slope(rounds: Sequence[Sequence[float]]) -> float:
    """Rounds are the differences for each of `RESULTS`: the least squares' line through their medians."""
    ys = [median(differences) for differences in zip(*rounds, strict=True)]
    x_mean, y_mean = sum(RESULTS) / len(RESULTS), sum(ys) / len(ys)
    above = sum((x - x_mean) * (y - y_mean) for x, y in zip(RESULTS, ys, strict=True))
    return above / sum((x - x_mean) ** 2 for x in RESULTS)


def first(rounds: Sequence[Sequence[float]]) -> float:
    return median(differences[0] for differences in rounds)


def in_turns(builds: Sequence[Build], way: str, what: str, rounds: int) -> list[tuple[float, float]]:
    """(before, after) of every round, in nanoseconds a call."""
    calls = round(max(build.ask(f"prepare {way} {what}") for build in builds))
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        order = builds if number % 2 else builds[::-1]
        asked = {build: build.ask(f"time {way} {what} {calls}") for build in order}
        if number:  # the first round warms both up
            found.append((asked[builds[0]], asked[builds[1]]))
    return found


@contextmanager
def unpacked(commit: str) -> Iterator[Path]:
    """The files of a commit in a folder that goes away again."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
        if archive.wait():
            raise SystemExit(f"there is no commit '{commit}' here")
        yield Path(folder)


def resolved(commit: str) -> str:
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-parse", commit], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise SystemExit(f"--before: there is no commit '{commit}' here")
    return asked.stdout.strip()


def holds(ratio: Estimate) -> bool:
    return ratio.median <= RATIO_GOAL or (ratio.low <= 1.0 <= ratio.high < RATIO_END)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--models", nargs="*", default=MODELS, metavar="model")
    parser.add_argument("--core", type=int, default=max(cores()), help="where both builds run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write all rounds, as JSON")
    given = parser.parse_args()
    before = resolved(given.before)
    with ExitStack() as stack:
        tree = stack.enter_context(unpacked(before))
        builds = [Build(tree, given.core), Build(ROOT, given.core)]
        for build in builds:
            stack.callback(build.close)
        calls = {
            f"{model}, {way}": in_turns(builds, way, model, given.rounds) for model in given.models for way in WAYS
        }
        results = [in_turns(builds, "outputs", str(count), given.rounds) for count in RESULTS]
    extra = [[after - before for before, after in found] for found in zip(*results, strict=True)]
    ratios = {name: estimate(rounds, middle_ratio) for name, rounds in calls.items()}
    price = {"one result": estimate(extra, first), "each further result": estimate(extra, slope)}
    goals = dict(zip(price, (CALL_GOAL_NS, RESULT_GOAL_NS), strict=True))
    show(given.before, calls, ratios, price, goals)
    if given.out is not None:
        record = {
            "before": before,
            "rounds": given.rounds,
            "environment": asdict(environment()),
            "ns_before_after": {**calls, **{f"{n} results": r for n, r in zip(RESULTS, results, strict=True)}},
            "ratio": {name: asdict(found) for name, found in ratios.items()},
            "ns": {name: asdict(found) for name, found in price.items()},
        }
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    met = all(map(holds, ratios.values())) and all(price[name].median <= goals[name] for name in price)
    return int(not met)


def show(
    before: str,
    calls: dict[str, list[tuple[float, float]]],
    ratios: dict[str, Estimate],
    price: dict[str, Estimate],
    goals: dict[str, float],
) -> None:
    console = Console(width=110)
    table = Table(title=f"a call, after ÷ {before}, median of paired ratios [95 %]")
    for column in ("what", "before µs", "after µs", "ratio", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for name, rounds in calls.items():
        old, new = (f"{median(side) / 1e3:.2f}" for side in zip(*rounds, strict=True))
        table.add_row(name, old, new, ratios[name].shown(3), "met" if holds(ratios[name]) else "MISSED")
    console.print(table)
    table = Table(title="a replay of tiny kernels takes more, ns [95 %]")
    for column in ("for", "ns", "at most", ""):
        table.add_column(column, justify="left" if column in ("for", "") else "right")
    for name, found in price.items():
        table.add_row(name, found.shown(1), f"{goals[name]:g}", "met" if found.median <= goals[name] else "MISSED")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
