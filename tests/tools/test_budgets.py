"""A package that grows beyond its budget is told, with the figure; so is a file that belongs to nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import budgets
from tools.budgets import Package, beyond, measured, packages, table

TEXT = '''"""A module."""

LIMIT, _HIDDEN = 3, 4


def told(x):
    if x:
        return LIMIT
    return _HIDDEN


class _Own: ...
'''
FOUND = packages(
    """
core:
  paths: [src/npucompose]
  tests: [tests]
  at_most: {statements: 8, files: 1, test_lines: 2, names: 2}
  goal: {statements: 4}
engine:
  paths: [src/npucompose/engine, src/npucompose/targets/one.py]
  at_most: {statements: 8, files: 1, native_lines: 1, names: 2}
"""
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    (tmp_path / "airflow_free").mkdir()
    write("src/npucompose/a.py", TEXT)
    write("src/npucompose/engine/src/b.cpp", "int x;\n")
    write("src/npucompose/targets/one.py", "")
    write("tests/test_a.py", "def test_a(): ...\n\n")
    return tmp_path


def test_a_file_belongs_to_the_package_with_the_longest_path(root: Path) -> None:
    figures, nobodys = measured(FOUND, root)
    assert nobodys == []
    assert figures["core"] == {"statements": 8, "files": 1, "native_lines": 0, "test_lines": 2, "names": 2}
    assert figures["engine"] == {"statements": 0, "files": 1, "native_lines": 1, "test_lines": 0, "names": 0}


def test_what_is_as_large_as_it_may_be_is_not_told_and_one_more_is(root: Path) -> None:
    assert beyond(FOUND, measured(FOUND, root)[0]) == []
    with (root / "src" / "npucompose" / "a.py").open("a") as file:
        file.write("told(1)\n")
    (told,) = beyond(FOUND, measured(FOUND, root)[0])
    assert told.startswith("core has 9 statements, and may have 8: take out as much, or raise the number")


def test_a_file_of_nobody_is_told(root: Path) -> None:
    (root / "airflow_free" / "new.py").write_text("")
    assert measured(FOUND, root)[1] == ["airflow_free/new.py"]


def test_the_table_has_each_figure_rounded_up_with_what_it_may_be_and_its_goal(root: Path) -> None:
    lines = table(FOUND, measured(FOUND, root)[0]).splitlines()
    assert lines[0] == "| package | statements | files | lines of C++ | lines of tests | public names |"
    assert lines[2] == "| core | 100 of 8, goal 4 | 5 of 1 | – | 500 of 2 | 50 of 2 |"
    assert lines[3] == "| engine | 0 of 8 | 5 of 1 | 100 of 1 | – | 0 of 2 |"


def test_every_package_has_paths_that_are_there_and_a_budget_for_what_it_has() -> None:
    found = packages(budgets.BUDGETS.read_text(encoding="utf-8"))
    assert [place for one in found for place in (*one.paths, *one.tests) if not (budgets.ROOT / place).exists()] == []
    figures, nobodys = measured(found)
    assert nobodys == []
    for one in found:
        assert isinstance(one, Package)
        assert set(one.at_most) == {what for what, number in figures[one.name].items() if number}, one.name
        assert all(number <= one.at_most[what] for what, number in one.goal.items()), one.name
