"""What the command line makes of errors that nobody foresaw, and whose option tree `list options` shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_free.errors import InvalidRequest, OrchestratorError
from npucompose import cli
from npucompose.cli import statuses
from npucompose.errors import ConfigError
from npucompose.vendor import versions
from npucompose.vendor.versions import REFERENCE


def found(version: str) -> Any:
    return SimpleNamespace(version=version, by="TORCH_NPU_WHEEL", tree=None)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InvalidRequest("unknown stage 'x'"), 2, "npucompose: unknown stage 'x'"),
        (OrchestratorError("no process"), 3, "npucompose: no process"),
        (ConfigError("one", "two"), 2, "npucompose: one\nnpucompose: two"),
        (KeyError("x"), 3, "npucompose: internal error, please report it: KeyError: 'x' (--debug shows where)"),
        (PermissionError(13, "Permission denied", "/a/b"), 2, "/a/b"),
    ],
)
def test_an_error_ends_with_its_status_and_no_traceback(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert statuses._report(error, debug=False) == status
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert statuses._report(error, debug=True) == status
    assert type(error).__name__ in capsys.readouterr().err


@pytest.mark.parametrize(
    ("here", "version", "said"),
    [
        (None, None, f"the options of torch_npu {REFERENCE}: no torch_npu was found here."),
        (found(REFERENCE), None,
         f"the options of torch_npu {REFERENCE}, found by TORCH_NPU_WHEEL, as its own classes declare them."),
        (found("2.6.0.post5"), "2.6.0.post5",
         "the options of torch_npu 2.6.0.post5, found by TORCH_NPU_WHEEL, as its own classes declare them."),
    ],
)  # fmt: skip
def test_the_options_that_are_listed_are_those_of_what_is_found_here(
    here: Any, version: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npucompose.compose.check.found_here", lambda: here)
    assert cli._tree_shown() == (version, said)


def test_a_version_that_nobody_has_read_is_shown_as_it_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.compose.check.found_here", lambda: found("99.0.0"))
    read = versions.assumed("99.0.0")
    assert read is not None
    version, said = cli._tree_shown()
    assert said == (
        f"the options of torch_npu 99.0.0, found by TORCH_NPU_WHEEL, assumed to be those of {read}, for they could not "
        "be read."
    )
    assert (version is None) == (versions.tree_of("99.0.0") == versions.tree_of(REFERENCE))


@pytest.mark.parametrize(("words", "stream"), [([], "out"), (["--json"], "err"), (["--yaml"], "err")])
def test_whose_options_are_listed_is_said_beside_what_a_program_reads(
    words: list[str], stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("npucompose.compose.check.found_here", lambda: None)
    assert cli.main(["list", "options", "--under", "debug.aclgraph", *words]) == 0
    printed = capsys.readouterr()
    said = f"npucompose: the options of torch_npu {REFERENCE}: no torch_npu was found here."
    assert (said in printed.out, said in printed.err) == (stream == "out", stream == "err")


@pytest.mark.parametrize("words", [["--under", "inductor"], ["--torch-npu", REFERENCE]])
def test_where_the_version_is_asked_for_or_is_of_no_account_nothing_is_said_of_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "options", *words]) == 0
    assert "was found here" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [["--yaml"], ["--under", "debug"], ["--torch-npu", REFERENCE]])
def test_what_is_for_options_is_refused_of_other_lists(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "passes", *words]) == 2
    said = capsys.readouterr().err
    assert "are for `npucompose list options`" in said
    assert "not for 'passes'." in said
