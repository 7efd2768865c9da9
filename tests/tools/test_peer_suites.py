"""Public tests on the simulated runtime: how they are run and judged, and what is kept of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools import peer_suites
from tools.forked_tests import Outcome, forked, outcomes
from tools.peer_suites import PAGE, RESULTS, UNKNOWN, FailureClass, PeerSuites, Suite

FILE = """
import os, time, unittest

class Some(unittest.TestCase):
    def test_dies(self): os._exit(3)
    def test_fails(self): self.assertEqual(1, 2)
    def test_hangs(self): time.sleep(60)
    def test_passes(self): os.write(1, b"printed")
    def test_raises(self): raise KeyError("missing")
    def test_skips(self): self.skipTest("no reason")
    @unittest.expectedFailure
    def test_succeeds_though(self): pass
"""


def found(file: Path, tmp_path: Path, limit: float = 5.0) -> dict[str, list[str]]:
    """In a fork, because the folder and the modules of a process change."""
    made = forked(
        lambda: {name: [one.kind, one.text] for name, one in outcomes(file, tmp_path / "out", limit)},
        tmp_path / "log", 120,
    )  # fmt: skip
    assert isinstance(made, dict)
    return made


def test_each_test_of_a_file_runs_by_itself(tmp_path: Path) -> None:
    (tmp_path / "some_tests.py").write_text(FILE)
    said = found(tmp_path / "some_tests.py", tmp_path)
    assert {name.removeprefix("Some.test_"): kind for name, (kind, _) in said.items()} == {
        "dies": "died", "fails": "failed", "hangs": "timeout", "passes": "passed", "raises": "failed",
        "skips": "skipped", "succeeds_though": "failed",
    }  # fmt: skip
    assert said["Some.test_fails"][1].endswith("AssertionError: 1 != 2\n")
    assert said["Some.test_skips"][1] == "no reason"
    assert (tmp_path / "out/Some.test_passes.log").read_text().startswith("printed")


def test_a_file_that_cannot_be_imported_is_one_failure(tmp_path: Path) -> None:
    (tmp_path / "some_tests.py").write_text("raise OSError('broken')")
    ((name, (kind, text)),) = found(tmp_path / "some_tests.py", tmp_path).items()
    assert (name, kind, text.splitlines()[-1]) == ("import", "failed", "OSError: broken")


KNOWN = PeerSuites(
    suites={"some": Suite(repository="a/b", commit="0123456789", folder="tests", files=("x.py", "y.py"))},
    classes={
        "first": FailureClass(because="One cause.", patterns=("no kernel", "^died")),
        "second": FailureClass(because="Another.", patterns=("kernel",)),
    },
)


def test_the_first_class_that_fits_explains_a_failure() -> None:
    texts = {"no kernel of x": "first", "a kernel": "second", "anything": UNKNOWN}
    for text, wanted in texts.items():
        assert KNOWN.class_of(Outcome("failed", text)) == wanted
    assert KNOWN.class_of(Outcome("died", "")) == "first"


def test_counts_and_names_are_kept_and_a_failure_without_a_class_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer_suites, "RESULTS", tmp_path / "kept.json")
    monkeypatch.setattr(peer_suites, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(peer_suites, "peer_suites", lambda: KNOWN)
    monkeypatch.setattr(peer_suites.wheel, "locate", lambda: tmp_path)
    monkeypatch.setattr(peer_suites.wheel, "version", lambda _: "9.9")
    ran: dict[str, Any] = {
        "y.py": {"A.b": ["failed", "a kernel"], "A.a": ["passed", ""]},
        "x.py": {"A.c": ["died", ""], "A.d": ["skipped", "?"], "A.e": ["failed", "a kernel"]},
    }
    (tmp_path / "some.json").write_text(json.dumps(ran))
    assert peer_suites.main(["--judge", "--out", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["versions"]["torch_npu"] == "9.9"
    assert kept["suites"]["some"] == {
        "files": {"x.py": {"failed": 2, "skipped": 1}, "y.py": {"failed": 1, "passed": 1}},
        "failures": {"first": ["x.py::A.c"], "second": ["x.py::A.e", "y.py::A.b"]},
    }
    text = (tmp_path / "page.md").read_text()
    assert "| a/b `tests`, 2 files | 01234567 | 1 | 3 | 1 | 5 |" in text
    assert "**second** (2): Another.\nx.py 1, y.py 1." in text
    ran["y.py"]["A.a"] = ["failed", "what is this"]
    (tmp_path / "some.json").write_text(json.dumps(ran))
    assert peer_suites.main(["--judge", "--out", str(tmp_path), "some"]) == 1
    assert "no class: y.py::A.a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [(["others"], "no suite others; there are: torch_npu"), ([], "where is Ascend/pytorch, Ascend/torchair?")],
)
def test_what_is_missing_is_named(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peer_suites.main(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# What is committed.


def test_the_page_says_what_the_results_say_and_every_failure_has_its_class() -> None:
    results, known = json.loads(RESULTS.read_text(encoding="utf-8")), peer_suites.peer_suites()
    assert PAGE.read_text(encoding="utf-8") == peer_suites.page(results, known)
    assert results["suites"].keys() == known.suites.keys()
    for name, suite in results["suites"].items():
        assert suite["files"].keys() == set(known.suites[name].files)
        assert suite["failures"].keys() <= known.classes.keys()
        failed = sum(counts.get("failed", 0) for counts in suite["files"].values())
        assert failed == sum(map(len, suite["failures"].values()))


@pytest.mark.parametrize(
    ("suite", "passed", "tests"), [("torch_npu", 82, 149), ("npugraph_ex", 38, 63), ("torchair", 366, 474)]
)
def test_so_many_public_tests_pass(suite: str, passed: int, tests: int) -> None:
    """The numbers that were to be reached; a result that falls below them is not committed."""
    files = json.loads(RESULTS.read_text(encoding="utf-8"))["suites"][suite]["files"].values()
    counted = sum((Counter(one) for one in files), Counter[str]())
    assert counted["passed"] >= passed
    assert counted.total() == tests
