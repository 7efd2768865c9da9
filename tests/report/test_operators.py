"""`npucompose list operators` and docs/npu_operators.md say what the tables of the wheels have."""

from __future__ import annotations

import json

import pytest

from npucompose.cli import main
from npucompose.report.operators import about, counts, page, rows
from npucompose.vendor.wheel_operators import operators
from tools.operators_page import PAGE, VERSIONS


def test_the_page_is_what_the_program_writes() -> None:
    assert PAGE.read_text() == page(VERSIONS), "python -m tools.operators_page writes it"


def test_each_operator_of_either_version_has_one_line() -> None:
    names = {name for version in VERSIONS for name in operators(version).names}
    assert len([line for line in PAGE.read_text().splitlines() if line.startswith("| `")]) == len(names)


def test_operators_are_listed_by_the_beginning_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "operators", "--json", "--under", "aten.gelu_", "--target-version", "2.6.0.post5"]) == 0
    printed = capsys.readouterr()
    found = {row["operator"]: row for row in json.loads(printed.out)}
    assert found["aten.gelu_.default"]["kernel"] == "cpu"
    assert found["aten.gelu_.default"]["because"] == "aten::gelu.out"
    assert "torch_npu 2.6.0.post5, torch 2." in printed.err
    (row,) = rows("aten.gelu_.default", "2.13.0")
    assert (row["kernel"], row["converter"]) == ("composite", "raises")


def test_a_name_that_begins_no_operator_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "operators", "--under", "aten.gellu"]) == 2
    assert "unknown operator 'aten.gellu' @ --under" in capsys.readouterr().err


def test_the_counts_are_those_of_the_rows() -> None:
    table = operators("2.13.0")
    found = counts(table)
    assert sum(part["operators"]["all"] for part in found.values()) == len(table.names)
    assert all(
        sum(part[name].values()) == part["operators"]["all"] for part in found.values() for name in ("kernel", "meta")
    )
    assert about("2.12.1").startswith("torch_npu 2.12.1 (assumed: the tables of 2.12.0.post3), torch 2.13.0")
