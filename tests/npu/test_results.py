"""The result file says of every claim whether it held, also when it did not, and which ones are not there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.npu.claims import CLAIMS, _ordered
from tests.npu.results import FOUND, TESTS, Results, default_path, result

ON = {"name": "Ascend 910B2/x", "platform": "device"}


def test_every_claim_has_a_name_of_its_own_and_the_36_runs_are_among_them() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("run[") for name in names) == 6 * 3 * 2
    kinds = {name.partition("[")[0] for name in names}
    assert kinds >= {"option_tree", "configuration", "run", "ge", "task updates", "stream order", "ejected"}


def plugin(tmp_path: Path) -> Results:
    options = {"--npu-target": "npu_offline", "--npu-result": str(tmp_path / "there" / "result.json")}
    return Results(SimpleNamespace(getoption=options.get))  # type: ignore[arg-type]


def told(name: str, outcome: Any, when: Any = "call", longrepr: Any = None) -> pytest.TestReport:
    found = json.dumps({"name": name, "says": "…", "evidence": {"captures": 2}})
    return pytest.TestReport(
        nodeid=f"{TESTS}::test_claim[{name}]", location=(TESTS, 1, "test_claim"), keywords={}, outcome=outcome,
        longrepr=longrepr, when=when, duration=1.5, user_properties=[(FOUND, found)],
    )  # fmt: skip


def test_a_claim_that_does_not_hold_is_written_with_its_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.npu.results.device", lambda _: ON)
    results = plugin(tmp_path)
    first, second = CLAIMS[0].name, CLAIMS[1].name
    for report in (told(first, "passed", "setup"), told(first, "passed"), told(second, "failed", longrepr="1 != 2")):
        results.pytest_runtest_logreport(report)
    results.pytest_sessionfinish()
    data = json.loads((tmp_path / "there" / "result.json").read_text())
    assert (data["held"], data["failed"], data["complete"]) == (1, [second], False)
    assert data["missing"] == [claim.name for claim in CLAIMS[2:]]
    assert [claim["verdict"] for claim in data["claims"]] == ["proven", "refuted", *["not run"] * (len(CLAIMS) - 2)]
    assert data["verdicts"] == {"proven": 1, "refuted": 1, "not run": len(CLAIMS) - 2}
    assert data["claims"][2] == {"name": CLAIMS[2].name, "says": CLAIMS[2].says, "verdict": "not run"}
    assert data["claims"][1] == {
        "name": second,
        "says": "…",
        "evidence": {"captures": 2},
        "passed": False,
        "error": "1 != 2",
        "seconds": 1.5,
        "verdict": "refuted",
    }


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever host the tests of this file run on."""
    monkeypatch.setattr("tests.npu.results.visible", lambda: None)


def test_where_a_device_is_visible_and_nothing_ran_every_claim_is_not_run_and_the_session_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.npu.results.visible", lambda: "/dev/davinci0")
    options = {"--npu-target": "npu", "--npu-result": str(tmp_path / "result.json")}
    results = Results(SimpleNamespace(getoption=options.get))  # type: ignore[arg-type]
    results.pytest_collection_modifyitems([SimpleNamespace(nodeid=f"{TESTS}::test_claim[x]")])  # type: ignore[list-item]
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    results.pytest_sessionfinish(session)
    lines: list[str] = []
    results.pytest_terminal_summary(SimpleNamespace(write_line=lambda line, **_: lines.append(line)))
    data = json.loads((tmp_path / "result.json").read_text())
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert lines[0] == "npu: a device is visible (/dev/davinci0) and nothing ran"
    assert data["verdicts"] == {"proven": 0, "refuted": 0, "not run": len(CLAIMS)}
    assert data["device"]["visible"] == "/dev/davinci0"


def test_a_session_that_left_the_claims_out_is_not_asked_for_them(tmp_path: Path) -> None:
    results = plugin(tmp_path)
    item: Any = SimpleNamespace(nodeid=f"{TESTS}::test_claim[x]")
    results.pytest_collection_modifyitems([item])
    results.pytest_deselected([item])
    assert not results.asked_for_claims


def test_where_nothing_was_proven_nothing_is_written_and_the_reason_is_told(tmp_path: Path) -> None:
    results = plugin(tmp_path)
    results.pytest_runtest_logreport(told("x", "skipped", "setup", (TESTS, 1, "Skipped: target=npu needs a device")))
    results.pytest_sessionfinish()
    lines: list[str] = []
    results.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines == ["npu: 1 claims were skipped: target=npu needs a device"]
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_named_after_the_device_and_the_day() -> None:
    data = result("npu", {}, ON)
    path = default_path({**data, "date": "2026-11-21T10:00:00+00:00"})
    assert path.as_posix().endswith("benchmarks/results/npu-Ascend_910B2_x-2026-11-21.json")


@pytest.mark.parametrize(
    ("between", "found"),
    [
        (["record event 2 on stream 5", "wait event 2 on stream 4"], [("5", "4")]),
        (["wait event 2 on stream 4", "record event 2 on stream 5"], []),
        (["record event 2 on stream 5", "wait event 2 on stream 5"], []),
        (["record event 2 on stream 5", "wait event 3 on stream 4"], []),
    ],
)
def test_only_an_event_that_was_recorded_before_on_another_stream_orders(
    between: list[str], found: list[tuple[str, str]]
) -> None:
    other = ["record event 9 on stream 1", "wait event 9 on stream 2"]
    calls = ["capture graph 1", *other, "capture graph 7", *between, "replay graph 7", *other]
    assert _ordered(calls) == found
