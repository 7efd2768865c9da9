"""docs/architecture.md against the sources: layers, folders, and that each step of a walk imports the next."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import npucompose
from airflow_free.outcome import Outcome
from airflow_free.stage import Runner
from airflow_free.store import Store
from npucompose import cli
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.experiment import run
from npucompose.experiment.stages import STAGES
from npucompose.targets.backend import Backend
from tools.layout import base_of, import_folders, product

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import LowerRequest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PRODUCT = ROOT / "src" / "npucompose"
WALKS = {"The main job": 15, "A graph to its recorder": 7, "A stream plan": 8, "A recipe's import": 8}
"""The most files that each may have."""


def folders() -> dict[str, Path]:
    """{as the page names it: a folder with Python in it}."""
    roots = {"airflow_free": ROOT / "airflow_free", "": PRODUCT}
    found = {
        "/".join(filter(None, (name, path.parent.relative_to(root).as_posix()))) + "/": path.parent
        for name, root in roots.items()
        for path in root.rglob("__init__.py")
    }
    return {name.replace("/./", "/"): path for name, path in found.items() if path != PRODUCT}


def walk(title: str) -> list[Path]:
    """The files of a walk, in order."""
    section = PAGE.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    names = re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)
    return [next((p for p in (ROOT / n, PRODUCT / n) if p.is_file()), ROOT / n) for n in names]


@cache
def imported_by(path: Path) -> frozenset[str]:
    """Modules that a file imports anywhere, or names in a text ("module:Class")."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"^(npucompose[\w.]+):\w+$", node.value))
    return frozenset(names)


def module_of(path: Path) -> str:
    base = base_of(path)
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


@cache
def doors() -> tuple[Path, ...]:
    """Files that the packages beside the core register, and that the core finds by name."""
    texts = (path.read_text(encoding="utf-8") for path in ROOT.glob("packages/*/pyproject.toml"))
    names = {name for text in texts for name in re.findall(r'= "([\w.]+):\w+"', text)}
    return tuple(modules()[name] for name in sorted(names))


def called_through() -> set[Path]:
    """Files of the core and its packages on the stack of calls."""
    files = (Path(one.filename) for one in traceback.extract_stack())
    return {file for file in files if any(file.is_relative_to(folder) for folder in product().values())}


def test_the_walk_of_the_main_job_has_each_file_that_calls_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The parent up to where it asks for a worker, and in the worker's place the stage up to the backend."""
    found: list[set[Path]] = []

    def worker(task: object, notify: object) -> Outcome:
        found.append(called_through())
        return Outcome(status="failed", error="looked at", exit_status=3)

    def called(backend: Backend, graph_module: fx.GraphModule, inputs: object) -> object:
        found.append(called_through())
        return graph_module.forward

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "run_in_worker", worker)
    assert cli.run(["mode=reduce-overhead", "passes=stream_plan", "model=add", "--quiet"]) == 3
    monkeypatch.setattr(Backend, "__call__", called)
    session = Session(check(compose(["mode=reduce-overhead", "passes=stream_plan", "model=add"])))
    Runner(store=Store(tmp_path / "store")).run((STAGES.get("compile")(),), {"compile": "0" * 64}, session)
    on_the_way = [names for names in found if names]
    assert len(on_the_way) == 2
    assert {name for names in on_the_way for name in names} - set(walk("The main job")) == set()


def test_the_walk_to_the_recorder_has_each_file_between_the_backend_and_what_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from npucompose_replay.devices.cpu import CpuRecorder

    found: list[set[Path]] = []
    lower = CpuRecorder.lower

    def lowered(self: CpuRecorder, request: LowerRequest) -> object:
        found.append(called_through())
        return lower(self, request)

    monkeypatch.setattr(CpuRecorder, "lower", lowered)
    model, x = nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)
    assert torch.equal(npucompose.compile(model, "mode=reduce-overhead")(x), model(x))
    (names,) = found
    above = {PRODUCT / name for name in ("compiled.py", "targets/compiled_calls.py")}
    assert names - above - set(walk("A graph to its recorder")) == set()


def test_the_layers_are_those_that_the_import_contract_checks() -> None:
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split('name = "imports point one way"', 1)[1]
    layers = re.findall(r'^  "([^"]+)",$', contract.split("]", 1)[0], flags=re.MULTILINE)
    picture = PAGE.split("```text\n", 1)[1].split("```", 1)[0].splitlines()
    whole = [re.sub(r"^airflow_free\..* : .*$", "airflow_free", layer) for layer in layers]
    many = [re.sub(r"(npucompose\.npu\.\w+)\.\w+(?: : \1\.\w+){2,}", r"\1.*", layer) for layer in whole]
    shown = [layer.replace("npucompose.", "") for layer in many]
    assert picture == shown


def test_every_folder_has_its_paragraph_and_no_other_is_named() -> None:
    section = PAGE.split("## The folders\n", 1)[1].split("\n## ", 1)[0]
    assert sorted(re.findall(r"^- `([^`]+/)`: ", section, flags=re.MULTILINE)) == sorted(folders())


@pytest.mark.parametrize("name", sorted(folders()))
def test_every_folder_says_in_two_lines_what_lies_in_it_and_what_does_not(name: str) -> None:
    said = ast.get_docstring(ast.parse((folders()[name] / "__init__.py").read_text(encoding="utf-8")))
    assert said is not None
    assert len([line for line in said.splitlines() if line]) >= 2


@pytest.mark.parametrize("title", WALKS)
def test_each_step_of_a_walk_is_imported_by_the_ones_before_it(title: str) -> None:
    steps = walk(title)
    first = walk("The main job") if title == "A graph to its recorder" else []  # it goes on where that one ends
    assert 3 <= len(steps) <= WALKS[title]
    assert len(set(steps)) == len(steps)
    for at, step in enumerate(steps):
        assert step.is_file(), step
        if at:
            registry = step.parent / "__init__.py"  # of a target or a pass, say: found by name
            imported = any(
                module_of(step) in imported_by(before) for before in (*first, *steps[:at], registry, *doors())
            )
            assert imported, step


def test_every_file_that_the_page_names_is_there() -> None:
    named = {name for name in re.findall(r"`([\w./]+\.py)`", PAGE) if "NAME" not in name}
    assert named
    assert [name for name in sorted(named) if not ((ROOT / name).is_file() or (PRODUCT / name).is_file())] == []


CHANGES = re.findall(
    r"^\| (.+?) \| \[.+?\]\(([^)#]+)[^)]*\) \| (.+?) \|$", PAGE.split("## Ten changes\n", 1)[1], flags=re.MULTILINE
)
"""(what a newcomer wants to change, the page, the files) of each row."""


def test_ten_changes_are_described() -> None:
    assert len(CHANGES) == len(dict.fromkeys(what for what, _, _ in CHANGES)) == 10


@pytest.mark.parametrize(("what", "page", "files"), CHANGES, ids=[what for what, _, _ in CHANGES])
def test_a_change_takes_three_files_at_most_and_its_page_names_each(what: str, page: str, files: str) -> None:
    said = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names = re.findall(r"`([^`]+)`", files)
    assert 1 <= len(names) <= 3
    for name in names:
        there = name if "NAME" not in name else str(Path(name).parent)
        assert any((root / there).exists() for root in (ROOT, PRODUCT)), there
        *_, folder, file = ("", *Path(name).parts)
        written = "/".join(filter(None, (folder, file))) if "NAME" in name else file
        assert re.search(re.escape(written).replace("NAME", r"(<name>|\w+)"), said), f"{page} names no {name}"


@cache
def modules() -> dict[str, Path]:
    """Each file that is imported by a name, of the product and of what lies beside it."""
    beside = (*(ROOT / name for name in ("airflow_free", "tools", "benchmarks")), *import_folders().values())
    return {module_of(path): path for folder in (PRODUCT, *beside) for path in folder.rglob("*.py")}


def in_circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of which each member reaches each other one."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            new = edges.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {one: reached(one) for one in edges}
    groups = {frozenset({a, *(b for b in reach[a] if a in reach.get(b, set()))}) for a in edges}
    return [set(group) for group in groups if len(group) > 1]


def imports(path: Path) -> set[str]:
    """The files that a file imports anywhere, for annotations too; a class that is named in a text comes later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in modules() else node.module for one in inside}
    mine = module_of(path)
    if mine.startswith("benchmarks."):  # scripts, which import their neighbours by name
        found |= {f"benchmarks.{name}" for name in found}
    return found & set(modules()) - {mine}


def test_no_files_import_one_another_in_a_circle_types_included() -> None:
    circles = in_circles({name: imports(path) for name, path in modules().items()})
    assert circles == [], "\n".join(" ".join(sorted(one)) for one in circles)


def test_a_circle_of_imports_is_seen() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
