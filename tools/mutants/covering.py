"""Which test runs which line, and how long it takes: found once for each test file, by coverage.py, and kept.

What a test's subprocesses run counts as run by the test. A test file is traced again when it has changed; lines of the
product that have moved since are followed by their text.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, frozen

from tools.layout import folders_of_tests
from tools.mutants import draw
from tools.mutants.bench import Bench, Run
from tools.mutants.mutation import Mutation
from tools.mutants.told import TRACED_TEST

SETTINGS = f"""[run]
core = ctrace
parallel = True
context = ${{{TRACED_TEST}-}}
patch =
  _exit
  fork
"""
NATIVE_CALLS = "packages/replay/src/npucompose_replay/executor/native.py"
"""Whoever runs a function of that file runs C++."""
UNSEEN = {
    "packages/replay/src/npucompose_replay/executor/src/": "packages/replay/tests/replay_tests/executor/",
    "packages/devtools/src/npucompose_devtools/device_kit/kit_files/": "packages/devtools/tests/device_kit/",
}
"""{sources that run where coverage.py does not look, compiled or as copies elsewhere: tests that run them}."""
FARTHEST = 100
"""Folders from a package to the tests of another."""
IMPORTING = -1
"""Stands for no test: what runs while modules are imported, and what a module or a session of tests shares."""


@frozen
class Chosen:
    """The tests of one file that may notice a mutant, with their seconds."""

    file: str
    tests: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.tests.values())


@define
class Map:
    """What is known so far, in `place`: one JSON file for each test file, and the sources they were traced with."""

    place: Path
    root: Path

    def stale(self) -> list[str]:
        """The test files to be traced: new ones and changed ones, the longest known first."""
        found = [file for file in test_files(self.root) if self._kept(file).get("digest") != _digest(self.root / file)]
        return sorted(found, key=lambda file: -(self.root / file).stat().st_size)

    def trace(self, bench: Bench, file: str) -> Run:
        """Run a test file and keep what it covers. Tests that fail, also untraced, are of no use and kept as such."""
        work = bench.tree.parent / "trace"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        sources = "".join(f"\n  {bench.tree / folder}" for folder in draw.SOURCES)
        settings = work / "coveragerc"
        settings.write_text(f"{SETTINGS}source ={sources}\ndata_file = {work / 'data'}\n")
        run = bench.run([file], trace=settings, all_of_them=True)
        told = dict(run.ended)
        if run.failed is not None or run.hung is not None:  # perhaps it was the tracing
            told |= bench.run([file], all_of_them=True).ended
        tests = list(told)
        kept = {
            "digest": _digest(bench.tree / file),
            "tests": {test: [outcome, seconds] for test, (outcome, seconds) in told.items()},
            "lines": _lines(work, bench.tree, tests),
        }
        kept["sources"] = {path: self._keep_source(bench.tree / path) for path in kept["lines"]}
        path = self._path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(kept))
        path.with_suffix(".part").replace(path)
        self._kept.cache_clear()
        shutil.rmtree(work)
        return run

    def chosen(self, mutation: Mutation) -> list[Chosen]:
        """The tests that run the mutated statement: those of its folder and name first, then the quickest files."""
        found = [Chosen(file, tests) for file in test_files(self.root) if (tests := self._tests(file, mutation))]
        stem = Path(mutation.path).stem

        def rank(chosen: Chosen) -> tuple[Any, ...]:
            return _far(mutation.path, chosen.file), stem not in chosen.file, chosen.seconds, chosen.file

        return sorted(found, key=rank)

    def unusable(self) -> dict[str, str]:
        """Tests that do not pass in a copy of the tree without a mutant, or were skipped: outcome by name."""
        all_tests = (
            (test, told[0])
            for file in test_files(self.root)
            for test, told in self._kept(file).get("tests", {}).items()
        )
        return {test: outcome for test, outcome in all_tests if outcome != "passed"}

    def _tests(self, file: str, mutation: Mutation) -> dict[str, float]:
        kept = self._kept(file)
        native = not mutation.path.endswith(".py")
        by_line = kept.get("lines", {}).get(NATIVE_CALLS if native else mutation.path, {})
        if any(mutation.path.startswith(source) and file.startswith(tests) for source, tests in UNSEEN.items()):
            numbers = set(range(len(kept.get("tests", {}))))
        elif native:
            numbers = {n for covering in by_line.values() if IMPORTING not in covering for n in covering}
        else:
            lines = self._then(file, mutation)
            numbers = {n for line in lines for n in by_line.get(str(line), ())}
        if numbers and not native and (mutation.at_import or IMPORTING in numbers):
            numbers = set(range(len(kept["tests"])))
        tests = list(kept.get("tests", {}).items())
        return {tests[n][0]: tests[n][1][1] for n in sorted(numbers - {IMPORTING}) if tests[n][1][0] == "passed"}

    def _then(self, file: str, mutation: Mutation) -> list[int]:
        """The lines of the mutated statement, by the numbers they had when the test file was traced."""
        lines = range(mutation.first, mutation.last + 1)
        then = self._kept(file).get("sources", {}).get(mutation.path)
        if then is None or then == _digest(self.root / mutation.path):
            return list(lines)
        moved = _moved(self.place / "sources" / then, self.root / mutation.path)
        # A line that was not there is covered by whoever covers the nearest one above it.
        return [moved.get(line) or max((moved[n] for n in moved if n < line), default=1) for line in lines]

    def _keep_source(self, path: Path) -> str:
        kept = self.place / "sources" / _digest(path)
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(path.read_bytes())
        return kept.name

    def _path(self, file: str) -> Path:
        return self.place / f"{file.removesuffix('.py').replace('/', '.')}.json"

    @functools.cache  # noqa: B019
    def _kept(self, file: str) -> dict[str, Any]:
        path = self._path(file)
        return json.loads(path.read_text()) if path.is_file() else {}

    def __hash__(self) -> int:
        return id(self)


def test_files(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix() for top in folders_of_tests(root) for path in top.rglob("test_*.py")
    )


def _far(path: str, file: str) -> int:
    """How far a test file is from a source, in folders: 0 where `tests` has the source's own folder, or its name."""
    if path.startswith("packages/") or file.startswith("packages/"):
        return FARTHEST * (path.split("/")[:2] != file.split("/")[:2])
    source = Path(path.removeprefix("src/").removeprefix("npucompose/"))
    folders = tuple(part for part in source.parts[:-1] if part != "src")
    place = Path(file).relative_to("tests")
    if not folders or (place.parts[0] == "cli" and folders[0] != "cli"):
        return int(place.parent.name not in ("", "cli") or not place.name.startswith(f"test_{source.stem}"))
    depths = range(len(folders), -1, -1)
    return len(folders) - next(depth for depth in depths if place.parts[:depth] == folders[:depth])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@functools.lru_cache(maxsize=256)
def _moved(then: Path, now: Path) -> dict[int, int]:
    """From line numbers now to those of then, for the lines that are the same."""
    before, after = then.read_text().splitlines(), now.read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return {b + k + 1: a + k + 1 for a, b, size in matcher.get_matching_blocks() for k in range(size)}


def _lines(work: Path, tree: Path, tests: list[str]) -> dict[str, dict[str, list[int]]]:
    """For each source its lines that were run, with the numbers of the tests that ran them."""
    import coverage

    number = {test: k for k, test in enumerate(tests)}
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in work.glob("data.*"):
        data = coverage.CoverageData(basename=str(path))
        data.read()
        for source in data.measured_files():
            name = Path(source).relative_to(tree).as_posix()
            for line, contexts in data.contexts_by_lineno(source).items():
                found[name][str(line)].update(_numbers(contexts, number))
    return {name: {line: sorted(numbers) for line, numbers in lines.items()} for name, lines in found.items()}


def _numbers(contexts: list[str], number: Mapping[str, int]) -> Iterator[int]:
    for context in contexts:
        # A process that a test started and that forked has its test's name twice.
        yield number.get(context.rpartition("|")[2], IMPORTING)
