"""A worker's environment: what Python, torch and devices read, and what a person names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from npucompose.experiment.environment import ALSO, PASSED, also_passing, worker_environment

OURS = {"OMP_NUM_THREADS", "ASCEND_HOME_PATH", "HF_HUB_OFFLINE"}
THEIRS = {"MY_ROOT", "MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "GIT_ASKPASS"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def a_person_s_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OURS, *THEIRS, "HF_HUB_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv(ALSO, raising=False)


def test_what_torch_and_devices_read_passes_and_a_person_s_own_does_not() -> None:
    passed = worker_environment({"GIVEN": "1"})
    assert passed["PATH"] == os.environ["PATH"]
    assert {*OURS, "GIVEN"} <= set(passed)
    assert not THEIRS & set(passed)


def test_a_secret_does_not_pass_with_its_family() -> None:
    assert "HF_HUB_TOKEN" not in worker_environment({})


def test_a_person_names_what_else_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALSO, "MY_*, ,HF_HUB_TOKEN")
    assert {"MY_ROOT", "MY_TOKEN", "HF_HUB_TOKEN"} <= set(worker_environment({}))


def test_what_the_command_line_sets_for_the_job_passes_while_it_runs() -> None:
    with also_passing(["MY_ROOT"]):
        assert "MY_ROOT" in worker_environment({})
    assert "MY_ROOT" not in worker_environment({})
    assert ALSO not in os.environ


def test_the_page_lists_every_pattern() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for family, patterns in PASSED.items():
        row = re.search(rf"^\| {re.escape(family)} \|(.*)\|$", page, re.MULTILINE)
        assert row is not None, family
        assert re.findall(r"`([^`]+)`", row[1]) == list(patterns)
