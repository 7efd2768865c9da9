"""Where each test of an earlier commit is now: `python -m tools.moved_tests COMMIT` prints a table, old → new.

A test is found again by its name, in the same file, in the file that git says it became, or anywhere; else by its body,
where one new test has a body at least `ALIKE` alike. What is found nowhere is listed last: each needs a reason. Exit
status 1 where something is, 2 where git does not know the commit.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from attrs import frozen

from tools.layout import folders_of_tests
from tools.repositories import git

ROOT = Path(__file__).resolve().parents[1]
ALIKE = 0.75


@frozen
class Test:
    file: str
    name: str
    body: str
    """Without the name, written as ast.unparse does."""

    @property
    def place(self) -> str:
        return f"{self.file}::{self.name}"


def tests_of(file: str, source: str) -> Iterator[Test]:
    """Functions and methods that pytest would run; the cases of a parametrised one are one test."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield Test(file, node.name, "\n".join(ast.unparse(part) for part in node.body))


def found_again(old: Sequence[Test], new: Sequence[Test], renamed: Mapping[str, str]) -> dict[Test, Test | None]:
    """Each old test with the new one that it is; `renamed` is {old file: new file}. A new test is taken once."""
    left = list(new)
    made: dict[Test, Test | None] = dict.fromkeys(old)

    def take(test: Test, fitting: Sequence[Test]) -> None:
        if made[test] is None and fitting:
            made[test] = fitting[0]
            left.remove(fitting[0])

    for test in old:
        take(test, [n for n in left if (n.file, n.name) == (test.file, test.name)])
    for test in old:
        take(test, [n for n in left if (n.file, n.name) == (renamed.get(test.file), test.name)])
    for test in old:
        take(test, [n for n in left if n.name == test.name])
    for test in old:
        if made[test] is None:
            near = sorted(((_alike(test, n), n.place, n) for n in left), reverse=True)[:1]
            take(test, [n for likeness, _, n in near if likeness >= ALIKE])
    return made


def _alike(one: Test, other: Test) -> float:
    matcher = SequenceMatcher(None, one.body, other.body, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="moved_tests", description=__doc__)
    parser.add_argument("commit")
    given = parser.parse_args()
    try:
        names = git(ROOT, "ls-tree", "-r", "--name-only", given.commit, "tests", "packages").splitlines()
    except subprocess.CalledProcessError as error:
        print(error.stderr.strip())
        return 2
    old = [
        t for name in names if name.endswith(".py") for t in tests_of(name, git(ROOT, "show", f"{given.commit}:{name}"))
    ]
    files = sorted(file for folder in folders_of_tests() for file in folder.rglob("*.py"))
    new = [t for file in files for t in tests_of(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))]
    changes = git(
        ROOT, "diff", "--name-status", "--find-renames=40%", "--diff-filter=R", given.commit, "--", "tests", "packages"
    )
    renamed = {was: now for _, was, now in (line.split("\t") for line in changes.splitlines())}
    made = found_again(old, new, renamed)
    for test, now in made.items():
        if now is not None and now.place != test.place:
            print(f"{test.place} → {now.place}")
    gone = [test.place for test, now in made.items() if now is None]
    same = sum(now is not None and now.place == test.place for test, now in made.items())
    print(f"{len(old)} tests, {len(new)} now: {same} where they were, {len(old) - same - len(gone)} moved or renamed")
    print("\n".join(f"gone: {place}" for place in gone))
    return int(bool(gone))


if __name__ == "__main__":
    sys.exit(main())
