"""Refusals of what devices, servers and protocols left: an input for each rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import refused_artefacts
import refused_deployments
import refused_device_files
import refused_protocols
import refused_traces

from tests.refusals.case import Case
from tests.refusals.table import Table

TABLE = Table(
    packages=("npucompose_devtools",),
    cases=(
        *refused_artefacts.CASES,
        *refused_deployments.CASES,
        *refused_device_files.CASES,
        *refused_protocols.CASES,
        *refused_traces.CASES,
    ),
)


@pytest.mark.parametrize("case", TABLE.cases, ids=str)
def test_what_one_rule_refuses_only_that_rule_refuses(case: Case, tmp_path: Path) -> None:
    TABLE.hold(case, tmp_path)


@pytest.mark.parametrize("module", TABLE.modules)
def test_every_rule_of_a_reader_has_a_case(module: str) -> None:
    assert TABLE.without_a_case(module) == []


def test_every_module_that_reads_is_in_the_table_or_named_with_a_reason() -> None:
    TABLE.hold_all_readers()
