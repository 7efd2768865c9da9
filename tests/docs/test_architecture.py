"""docs/architecture.md against the sources: layers, folders, and that each step of a walk imports the next."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tools.layout import base_of, import_folders

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PRODUCT = ROOT / "src" / "npucompose"
WALKS = {"The main job": 8, "A stream plan": 8, "A recipe's import": 5}
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
    assert 3 <= len(steps) <= WALKS[title]
    assert len(set(steps)) == len(steps)
    for at, step in enumerate(steps):
        assert step.is_file(), step
        if at:
            registry = step.parent / "__init__.py"  # of a target or a pass, say: found by name
            assert any(module_of(step) in imported_by(before) for before in (*steps[:at], registry)), step


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([\w./]+\.py)`", PAGE))
    assert named
    assert [name for name in sorted(named) if not ((ROOT / name).is_file() or (PRODUCT / name).is_file())] == []


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
