"""Careless one-line changes to the product, and whether `make test` notices them: `python -m tools.mutants`.

A seed draws so many lines of each package and one change for each; every change is made in a copy of the tree, the
tests that run the line are run in a process forked from one that has torch loaded, and the first failure ends it.
Verdicts are kept in the result file as they come: started again, the script goes on where it stopped. Exit status 1
where fewer are caught than wanted, 2 where nothing was judged.

`--again survived` judges those once more, after tests were added; `--known` judges the changes of known.yaml, which
reviews once got through; `--show KEY` prints one change; `--report` only reports.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from attrs import define

from npucompose.machine import compiler
from tools.mutants import draw, python, written
from tools.mutants.bench import Bench
from tools.mutants.covering import Map
from tools.mutants.judge import BUILD, judged
from tools.mutants.mutation import Mutation, digest
from tools.mutants.results import Results, by_area, complaints, equivalents, state, tally

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
KEPT = ROOT / "build" / "mutants"
WITHIN_S = 20.0


@define
class Session:
    """The benches of this machine, and what they found."""

    benches: SimpleQueue[Bench]
    workers: int
    covering: Map

    @classmethod
    @contextlib.contextmanager
    def opened(cls, workers: int) -> Iterator[Session]:
        place = Path(tempfile.gettempdir()) / f"npucompose-mutants-{digest(str(ROOT))}"
        place.mkdir(mode=0o700, exist_ok=True)
        benches: SimpleQueue[Bench] = SimpleQueue()
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context((place / "lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SystemExit(f"mutants of {ROOT} are being judged already, in {place}.") from None
            for number in range(workers):
                bench = stack.enter_context(Bench.opened(ROOT, place / str(number), KEPT / "objects"))
                built = bench.command("-c", BUILD)  # not in the time of the first test that needs it
                if built.returncode and compiler() is not None:  # else each test that needs it would "notice" a mutant
                    raise SystemExit(f"the native replayer cannot be built in {bench.tree}: {built.stderr[-600:]}")
                benches.put(bench)
            yield cls(benches, workers, Map(KEPT / "map", ROOT))

    def each(self, work: Callable[[Bench, Any], None], tasks: Sequence[Any]) -> None:
        """`work` on each task, with a bench of its own; the first error stops what has not begun."""

        def one(task: Any) -> None:
            bench = self.benches.get()
            try:
                work(bench, task)
            finally:
                self.benches.put(bench)

        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(one, task) for task in tasks]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def trace(self, only: str) -> None:
        """Bring the map up to date, for the test files below `only`."""
        files = [file for file in self.covering.stale() if file.startswith(only)]

        def one(bench: Bench, file: str) -> None:
            run = self.covering.trace(bench, file)
            print(f"traced {file}: {len(run.ended)} tests, {run.seconds:.0f} s", flush=True)

        self.each(one, files)
        unusable = self.covering.unusable()
        for test, outcome in unusable.items():
            if outcome != "skipped":
                print(f"of no use here, without any mutant: {test} ({outcome})", flush=True)
        print(f"{len(unusable)} tests are skipped or fail in a copy of the tree", flush=True)


def sampled(
    lines: dict[str, list[list[Mutation]]], seed: int, each: int, results: Results
) -> dict[str, list[Mutation]]:
    """For each package the first mutants that compile, as far as is known."""
    sample = {}
    for name, eligible in lines.items():
        chosen: list[Mutation] = []
        for mutation in draw.drawn(eligible, seed):
            if len(chosen) == each:
                break
            if results.entries.get(mutation.key, {}).get("verdict") != "not compiled" and _compiles(mutation):
                chosen.append(mutation)
        sample[name] = chosen
    return sample


def _compiles(mutation: Mutation) -> bool:
    return not mutation.path.endswith(".py") or python.compiles(mutation.applied((ROOT / mutation.path).read_bytes()))


def judge_sample(given: argparse.Namespace, session: Session, results: Results) -> dict[str, list[Mutation]]:
    """Judge until every mutant of the sample has a verdict: one that does not compile makes room for the next."""
    lines = {
        name: found for name, found in draw.eligible(ROOT).items() if given.packages is None or name in given.packages
    }
    reasons, now, lock = equivalents(EQUIVALENT), state(ROOT), threading.Lock()
    done: set[str] = set()
    while True:
        sample = sampled(lines, given.seed, given.each, results)
        everything = [mutation for mutations in sample.values() for mutation in mutations]
        pending = [m for m in everything if m.key not in done and _is_pending(m, results, given)]
        if not pending:
            return sample

        def one(bench: Bench, mutation: Mutation) -> None:
            # Of what is called equivalent the nearest tests are asked, whether they do notice it.
            within = WITHIN_S if given.within is None and mutation.key in reasons else given.within
            verdict = judged(bench, session.covering, mutation, within)
            with lock:
                done.add(mutation.key)
                _print(results.note(ROOT, mutation, verdict, now))
                results.write(sample, reasons)  # noqa: B023

        session.each(one, pending)


def _is_pending(mutation: Mutation, results: Results, given: argparse.Namespace) -> bool:
    if given.only:
        return mutation.key in given.only
    return not results.holds(ROOT, mutation) or results.entries[mutation.key]["verdict"] == given.again


def judge_known(given: argparse.Namespace, session: Session) -> int:
    """Judge what was written down; 1 where something gets through again."""
    missed = []

    def one(bench: Bench, mutation: Mutation) -> None:
        verdict = judged(bench, session.covering, mutation)
        _print(
            {"key": mutation.key, "place": mutation.place, "change": mutation.change, "kind": mutation.kind, **verdict}
        )
        if verdict["verdict"] != "caught":
            missed.append(mutation)

    found, unfit = written.known(ROOT)
    known = [m for m in found if given.packages is None or draw.package_of(m.path) in given.packages]
    session.each(one, known)
    for complaint in unfit:
        print(f"to be written anew, or taken out: {complaint}")
    print(f"{len(known) - len(missed)} of {len(known) + len(unfit)} written changes are caught")
    return int(bool(missed or unfit))


def _print(entry: dict[str, Any]) -> None:
    by = f"by {entry['by']}: {entry.get('words', '')}" if "by" in entry else f"by {entry.get('tests', 0)} tests"
    what = f"{entry['place']} {entry['kind']}: {entry['change']}"
    print(f"{entry['key']} {entry['verdict']:9} {entry['seconds']:6.1f} s  {what}\n          {by}", flush=True)


def report(results: Results, sample: dict[str, list[Mutation]]) -> int:
    reasons = equivalents(EQUIVALENT)
    results.write(sample, reasons)
    entries = [results.entries[m.key] for found in sample.values() for m in found if m.key in results.entries]
    if not entries:
        print("nothing was judged")
        return 2
    for name, one in tally(entries, reasons).items():
        print(f"{name:20} {one.words}")
    for name, one in by_area(entries, reasons).items():
        print(f"the area {name}: {one.words}")
    for entry in entries:
        if entry["verdict"] in ("survived", "undecided") and entry["key"] not in reasons:
            print(f"{entry['verdict']}: {entry['key']} {entry['place']} {entry['kind']}: {entry['change']}")
    now = state(ROOT)
    older = sum(entry["state"] != now for entry in entries)
    print(f"{len(entries) - older} of {len(entries)} verdicts are of the sources and tests as they are now")
    found = complaints(entries, reasons)
    print("\n".join(found))
    return int(bool(found))


def show(key: str) -> int:
    """Print a mutant as a difference."""
    for mutation in (m for lines in draw.eligible(ROOT).values() for line in lines for m in line):
        if mutation.key == key:
            before = (ROOT / mutation.path).read_bytes()
            old, new = (text.decode().splitlines(keepends=True) for text in (before, mutation.applied(before)))
            sys.stdout.writelines(difflib.unified_diff(old, new, mutation.path, f"{mutation.kind}, {key}"))
            return 0
    print(f"no mutant has the key {key}")
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--each", type=int, default=40, help="mutants of each package")
    parser.add_argument("--packages", nargs="+", choices=list(draw.PACKAGES), metavar="PACKAGE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--afresh", action="store_true", help="forget what the file holds")
    parser.add_argument("--again", choices=("survived", "timed out"), help="judge those once more")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="judge these of the sample")
    parser.add_argument("--tests", default="tests", help="use the test files below this folder only (for trials)")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="with the nearest tests only (for trials)")
    parser.add_argument("--known", action="store_true", help="the changes of known.yaml instead of a sample")
    parser.add_argument("--show", metavar="KEY")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.show:
        return show(given.show)
    results = Results.begun(given.out, given.seed, given.afresh)
    if given.report:
        return report(results, sampled(draw.eligible(ROOT), given.seed, given.each, results))
    with Session.opened(given.workers) as session:
        session.trace(given.tests)
        if given.known:
            return judge_known(given, session)
        sample = judge_sample(given, session, results)
    return report(results, sample)


if __name__ == "__main__":
    sys.exit(main())
