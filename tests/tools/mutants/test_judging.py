"""A mutant in a copy of a tree, the tests that may notice it, the verdict and what is kept of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tools.mutants import covering as tests_by_line
from tools.mutants import draw, judge, objects, results, trees
from tools.mutants.bench import Bench, Run
from tools.mutants.covering import Chosen, Map
from tools.mutants.judge import judged, waves
from tools.mutants.mutation import Mutation, written
from tools.mutants.results import Results, by_area, complaints, equivalents, tally

ROOT = Path(__file__).resolve().parents[3]
SOURCE = """import os
LIMIT = 3


def bounded(x):
    while x > LIMIT:
        x = x - 1
    return x


def spoken(x):
    return f"{x}!" if x else "nothing"


def killed(x):
    if x == 5:
        os.abort()
    return x
"""
TESTS = """import subprocess, sys
from npucompose.a import bounded, killed, spoken

def test_a_bound():
    assert bounded(9) <= 3

def test_a_word_of_a_process():
    code = "from npucompose.a import spoken; print(spoken(1))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1!\\n"

def test_living():
    assert killed(4) == 4
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one module and three tests, with the runner's own modules in it."""
    root = tmp_path_factory.mktemp("project")
    for name, text in {
        "src/npucompose/__init__.py": "", "src/npucompose/a.py": SOURCE, "tests/test_a.py": TESTS,
        "airflow_free/__init__.py": "", "pyproject.toml": "[tool.pytest.ini_options]\n", "tools/__init__.py": "",
        ".gitignore": "__pycache__/\n",
    }.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(
        ROOT / "tools" / "mutants", root / "tools" / "mutants", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@pytest.fixture(scope="module")
def bench(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    place = tmp_path_factory.mktemp("bench")
    with Bench.opened(tree, place, place / "objects", preloaded=()) as bench:
        yield bench


@pytest.fixture(scope="module")
def covering(tree: Path, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Map:
    covering = Map(tmp_path_factory.mktemp("map"), tree)
    assert covering.stale() == ["tests/test_a.py"]
    covering.trace(bench, "tests/test_a.py")
    assert covering.stale() == []
    return covering


def mutant(old: str, new: str, **more: Any) -> Mutation:
    return written("src/npucompose/a.py", SOURCE, old, new, **more)


@pytest.mark.slow
def test_tests_are_chosen_by_what_they_and_their_processes_run(covering: Map):
    def names(old: str, **more: Any) -> set[str]:
        return {t.rpartition("::")[2] for chosen in covering.chosen(mutant(old, old, **more)) for t in chosen.tests}

    assert names("x = x - 1") == {"test_a_bound"}
    assert names('return f"') == {"test_a_word_of_a_process"}
    assert names("LIMIT = 3", at_import=True) == {"test_a_bound", "test_a_word_of_a_process", "test_living"}
    assert covering.unusable() == {}


@pytest.mark.parametrize(
    ("old", "new", "verdict", "by"),
    [
        pytest.param('{x}!"', '{x}?"', "caught", "test_a_word_of_a_process", marks=pytest.mark.slow),
        pytest.param("x == 5", "x == 4", "caught", "test_living", id="the process dies"),
        pytest.param(
            "LIMIT = 3", "LIMIT = ", "caught", "tests/test_a.py", id="cannot be imported", marks=pytest.mark.slow
        ),
        pytest.param("x > LIMIT", "x >= LIMIT", "survived", None, marks=pytest.mark.slow),
    ],
)
def test_a_verdict(bench: Bench, covering: Map, old: str, new: str, verdict: str, by: str | None):
    before = (bench.tree / "src/npucompose/a.py").stat().st_mtime_ns
    found = judged(bench, covering, mutant(old, new, at_import="LIMIT =" in old))
    assert found["verdict"] == verdict, found
    assert by is None or found["by"].endswith(by), found
    assert (bench.tree / "src/npucompose/a.py").read_text() == SOURCE
    assert (bench.tree / "src/npucompose/a.py").stat().st_mtime_ns == before


def test_what_a_test_that_was_never_traced_may_notice_is_open(
    bench: Bench, covering: Map, monkeypatch: pytest.MonkeyPatch
):
    unnoticed = mutant("x = x - 1", "x = x - 2")
    assert judged(bench, covering, unnoticed)["verdict"] == "survived"
    monkeypatch.setattr(Map, "stale", lambda _: ["tests/test_b.py"])
    assert judged(bench, covering, unnoticed)["verdict"] == "undecided"
    assert judged(bench, covering, mutant("x == 5", "x == 4"))["verdict"] == "caught"


@pytest.mark.slow
def test_a_test_that_takes_far_too_long_is_ended(bench: Bench, covering: Map, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tools.mutants.bench.SLACK_S", 0.5)
    found = judged(bench, covering, mutant("x = x - 1", "x = x"))
    assert (found["verdict"], found["by"]) == ("timed out", "tests/test_a.py::test_a_bound")
    assert judged(bench, covering, mutant("x = x - 1", "x = x - 2"))["verdict"] == "survived"


@pytest.mark.slow
def test_a_failure_that_does_not_come_back_is_not_the_mutants(
    bench: Bench, covering: Map, monkeypatch: pytest.MonkeyPatch
):
    genuine, calls = Bench.run, []

    def shaky(self: Bench, files: Any, tests: Any = None, **more: Any) -> Run:
        calls.append(list(tests))
        found = genuine(self, files, tests, **more)
        return evolve(found, failed="tests/test_a.py::test_a_bound") if len(calls) == 1 else found

    monkeypatch.setattr(Bench, "run", shaky)
    found = judged(bench, covering, mutant("x = x - 1", "x = x - 2"))
    assert found["verdict"] == "survived"
    assert found["unsteady"] == ["tests/test_a.py::test_a_bound"]
    assert calls == [["tests/test_a.py::test_a_bound"]] * 2


def test_a_compiled_file_of_a_mutant_is_never_taken_for_the_source(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text("x = 3\n")
    compiled = path.parent / "__pycache__"
    stat = path.stat()
    mutation = written("a.py", "x = 3\n", "3", "4")
    seen = set()
    for number in range(2):
        with trees.mutated(tmp_path, mutation, number):
            assert path.read_text() == "x = 4\n"
            seen.add(int(path.stat().st_mtime))
            compiled.mkdir(exist_ok=True)
            subprocess.run(["touch", os.fspath(Path(trees.importlib.util.cache_from_source(str(path))))], check=True)
    assert len(seen) == 2
    assert int(stat.st_mtime) not in seen
    assert (path.read_text(), path.stat().st_mtime_ns) == ("x = 3\n", stat.st_mtime_ns)
    assert list(compiled.iterdir()) == []


def test_a_copy_has_what_git_would_track_and_nothing_of_before(tree: Path, tmp_path: Path):
    (tmp_path / "old.py").write_text("")
    (tree / "__pycache__").mkdir(exist_ok=True)
    (tree / "__pycache__" / "a.pyc").write_text("")
    trees.copied(tree, tmp_path)
    assert (tmp_path / "src/npucompose/a.py").read_text() == SOURCE
    assert not (tmp_path / "old.py").exists()
    assert not (tmp_path / "__pycache__").exists()


def test_lines_that_moved_are_followed(covering: Map, tree: Path, bench: Bench):
    path = tree / "src/npucompose/a.py"
    text = f"# a line more\n# and one\n{SOURCE}"
    try:
        path.write_text(text)
        moved = written("src/npucompose/a.py", text, "x = x - 1", "x = x")
        assert moved.line == mutant("x = x - 1", "x = x").line + 2
        assert [list(chosen.tests) for chosen in covering.chosen(moved)] == [["tests/test_a.py::test_a_bound"]]
    finally:
        path.write_text(SOURCE)


def test_waves_grow_and_leave_nobody_out():
    chosen = [Chosen(f"tests/{k}.py", {f"tests/{k}.py::t": 2.0}) for k in range(60)]
    found = list(waves(chosen))
    assert [one for wave in found for one in wave] == chosen
    assert [len(wave) for wave in found] == [1, 7, 30, 22]
    assert list(waves([])) == []
    assert [len(wave) for wave in waves([Chosen("a", {"a": 900.0}), Chosen("b", {"b": 1.0})])] == [1, 1]


def test_the_nearest_tests_alone_decide_for_a_mutant_or_leave_it_open():
    chosen = [Chosen(f"tests/{k}.py", {f"tests/{k}.py::t": 2.0}) for k in range(60)]
    runs: list[Any] = []

    class Quiet:
        def run(self, files: Any, tests: Any) -> Run:
            runs.append(tests)
            return Run(failed=None, words="", hung=None, ended={}, seconds=4.0)

    found = judge._by_waves(Quiet(), chosen, 5.0)  # type: ignore[arg-type]
    assert (found["verdict"], found["tests"], len(runs)) == ("undecided", 8, 2)
    assert judge._by_waves(Quiet(), chosen, None)["verdict"] == "survived"  # type: ignore[arg-type]
    assert judge._by_waves(Quiet(), chosen[:8], 5.0)["verdict"] == "survived"  # type: ignore[arg-type]


def entry(verdict: str, package: str = "graphs", key: str = "0") -> dict[str, Any]:
    return {"key": key, "package": package, "verdict": verdict, "by": "tests/a.py::t"}


BELOW = ["all: 94.7 % caught, 95 % are wanted", "the area streams: 94.7 % caught, 95 % are wanted"]


def test_shares_leave_out_what_hung_and_what_no_test_can_tell():
    entries = [entry("caught", key=str(k)) for k in range(18)]
    entries += [entry("survived", key="a"), entry("survived", key="b"), entry("timed out"), entry("not compiled")]
    told = tally(entries, {"b": "a reason"})
    assert told["graphs"].words == "18/19 (94.7 %), 1 timed out, 1 equivalent"
    assert complaints(entries, {"b": "a reason"}) == BELOW
    assert complaints(entries[:19], {}) == BELOW
    assert complaints(entries[:18], {}) == []


def test_a_mutant_that_is_open_is_no_result():
    assert complaints([entry("caught"), entry("undecided")], {}) == ["1 mutants were judged by the nearest tests only"]


def test_of_what_no_test_can_tell_the_nearest_are_asked_alone():
    entries = [*(entry("caught", key=str(k)) for k in range(30)), entry("undecided", key="a")]
    assert tally(entries, {"a": "because"})["graphs"].words == "30/30 (100.0 %), 1 equivalent"
    assert complaints(entries, {"a": "because"}) == []


def test_a_compiled_source_has_the_tests_of_its_folder_and_those_that_call_its_executor(tmp_path: Path):
    folder = tmp_path / "packages" / "replay" / "tests" / "replay_tests"
    cpp = "packages/replay/src/npucompose_replay/executor/src/a.cpp"
    folder.mkdir(parents=True)
    (tmp_path / "packages" / "replay" / "pyproject.toml").touch()
    covering = Map(tmp_path / "map", tmp_path)
    covering.place.mkdir()
    executor: dict[str, Any] = {tests_by_line.NATIVE_CALLS: {"7": [0]}}
    for file, lines in {"executor/test_a.py": {}, "test_b.py": executor, "test_c.py": {"src/x.py": {"7": [0]}}}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
        told = {"tests": {f"{file}::test": ["passed", 1.0]}, "lines": lines}
        covering._path(f"packages/replay/tests/replay_tests/{file}").write_text(json.dumps(told))
    chosen = covering.chosen(evolve(mutant("x = x - 1", "x = x"), path=cpp))
    assert [one.file.rpartition("/")[2] for one in chosen] == ["test_a.py", "test_b.py"]


def test_a_package_below_its_share_is_named():
    entries = [entry("caught", "ops") for _ in range(99)] + [entry("caught"), entry("survived")]
    assert complaints(entries, {}) == [
        "graphs: 50.0 % caught, 90 % are wanted", "the area streams: 50.0 % caught, 95 % are wanted",
    ]  # fmt: skip


def test_an_area_counts_its_packages_together():
    entries = [entry("caught", "passes", key=str(k)) for k in range(18)] + [entry("survived", "graphs")]
    assert {name: one.words for name, one in by_area(entries, {}).items()} == {"streams": "18/19 (94.7 %)"}
    assert sorted(package for packages in draw.AREAS.values() for package in packages) == sorted(draw.PACKAGES)


def test_equivalents_are_few_and_true():
    entries = [entry("caught", key=str(k)) for k in range(9)] + [entry("survived", key="a")]
    assert complaints(entries, {"a": "because"}) == ["1 of 10 mutants are called equivalent, 5 % may be"]
    assert complaints(entries[:9], {"3": "because"}) == ["3 is called equivalent, and tests/a.py::t notices it"]


def test_an_equivalent_mutant_has_a_reason(tmp_path: Path):
    path = tmp_path / "equivalent.yaml"
    path.write_text("- {key: 0a1b2c3d, reason: nobody reads it}\n")
    assert equivalents(path) == {"0a1b2c3d": "nobody reads it"}
    path.write_text("- {key: 0a1b2c3d, reason: ' '}\n")
    with pytest.raises(SystemExit, match="needs its key and a reason"):
        equivalents(path)


def one_caught(folder: Path) -> tuple[Path, Mutation, Results]:
    """A result file to be, the mutant of the only source, and its verdict."""
    (folder / "src/npucompose").mkdir(parents=True)
    (folder / "src/npucompose/a.py").write_text(SOURCE)
    path, mutation = folder / "results.json", mutant("x == 5", "x == 4")
    found = Results.begun(path, 7, afresh=False)
    found.note(folder, mutation, {"verdict": "caught", "by": "t", "seconds": 1.0}, "state")
    return path, mutation, found


def test_a_result_file_is_gone_on_with_while_the_source_stays(tmp_path: Path):
    path, mutation, found = one_caught(tmp_path)
    found.note(tmp_path, mutation, {"verdict": "caught", "by": "t", "words": f"in {tmp_path}", "seconds": 1.0}, "state")
    found.write({"the front": [mutation]}, {})
    assert str(tmp_path) not in path.read_text(), "what a test said names places of this machine"
    assert json.loads(path.read_text())["caught"] == {"the front": "1/1 (100.0 %)", "all": "1/1 (100.0 %)"}
    again = Results.begun(path, 7, afresh=False)
    assert again.holds(tmp_path, mutation)
    (tmp_path / "src/npucompose/a.py").write_text(f"{SOURCE}#\n")
    assert not again.holds(tmp_path, mutation)
    assert not Results.begun(path, 7, afresh=True).entries
    (tmp_path / "src/npucompose/a.py").write_text(SOURCE)
    assert again.holds(tmp_path, mutation)
    for verdict in ("unsteady", "undecided"):
        again.note(tmp_path, mutation, {"verdict": verdict, "seconds": 1.0}, "state")
        assert not again.holds(tmp_path, mutation)
    with pytest.raises(SystemExit, match="made with seed 7"):
        Results.begun(path, 8, afresh=False)


def test_what_is_known_of_other_packages_stays_in_the_file(tmp_path: Path):
    path, mutation, found = one_caught(tmp_path)
    found.write({"the front": [mutation]}, {})
    Results.begun(path, 7, afresh=False).write({"streams": []}, {})
    assert list(Results.begun(path, 7, afresh=False).entries) == [mutation.key]
    Results.begun(path, 7, afresh=False).write({"the front": []}, {})
    assert not Results.begun(path, 7, afresh=False).entries, "it is of the sample no more"


def test_the_state_of_the_sources_sees_every_part(tmp_path: Path):
    parts = ("src/npucompose/a.py", "src/npucompose/b.cpp", "tests/test_a.py", "conf/a.yaml", "pyproject.toml")
    for name in parts:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    seen = {results.state(tmp_path)}
    for name in parts:
        (tmp_path / name).write_text("#")
        seen.add(results.state(tmp_path))
    assert len(seen) == 1 + len(parts)


def test_an_object_is_compiled_again_when_what_it_includes_has_changed(tmp_path: Path):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\necho x >> "{tmp_path}/calls"\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "a.cpp").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text("")

    def compiled() -> int:
        given = (f"-I{tmp_path}", "-c", str(tmp_path / "a.cpp"), "-o", str(tmp_path / "a.o"))
        assert objects.main(str(compiler), str(tmp_path / "store"), *given) == 0
        assert (tmp_path / "a.o").read_text() == "made\n"
        (tmp_path / "a.o").unlink()
        return (tmp_path / "calls").read_text().count("x")

    assert [compiled(), compiled()] == [1, 1]
    (tmp_path / "c.h").write_text("int x;")
    assert [compiled(), compiled()] == [2, 2]


def test_packages_of_the_sample_are_those_of_the_product():
    assert len(draw.PACKAGES) * 40 >= 600


def test_the_nearest_tests_lie_in_the_folder_of_the_source_or_have_its_name():
    far = tests_by_line._far
    cpp = "packages/replay/src/npucompose_replay/executor/src/f.cpp"
    assert far(cpp, "packages/replay/tests/replay_tests/test_a.py") == 0 < far(cpp, "tests/report/test_a.py")
    assert far("airflow_free/store.py", "tests/airflow_free/kinds/test_a.py") == 0
    assert far("src/npucompose/api.py", "tests/test_api.py") < far("src/npucompose/api.py", "tests/report/test_api.py")
    assert far("src/npucompose/cli/lists.py", "tests/cli/test_shows.py") == 0
