"""README.md and docs/: links, tables, blocks; and (slow) that a page does what it says, typed from top to bottom."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from nursery import command

from tests.docs.blocks import ALL, KINDS, OTHERS, PAGES, ROOT, SHELL, Block, Command, blocks
from tests.docs.commands import NotRun, not_run
from tools.layout import choices

MASKS = (
    (r"compiled in [^\n]*", ""),
    (r"\d+(\.\d+)?([µmn]?s\b| [µmn]?s\b| ?[KMG]iB| B\b|x)?", "#"),
    (r"\s+", " "),
    (r"[0-9a-f]{12,}", "#"),
)
NOT_RUN = {(one.page, one.text): one for one in not_run()}


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(block, id=block.where) for block in ALL if block.kind in kinds]


def test_every_block_says_what_it_is() -> None:
    unknown = [f"{block.where}: '{block.kind}'" for block in ALL if block.kind not in KINDS]
    assert unknown == []
    assert len(ALL) > 100


def test_every_page_is_in_the_index_and_every_link_leads_somewhere() -> None:
    index = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in index] == []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_anchor_is_a_heading() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text()):
            other = (page.parent / target) if target else page
            heads = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: {target}#{anchor}"


OPEN_GROUPS = {
    "mode": "npucompose list modes",
    "model": "npucompose list models",
    "passes": "npucompose list passes",
    "target": "npucompose list targets",
    "streams": "explicit plans",
    "experiment": "presets",
}
"""Groups whose choices the README does not name one by one, and what it says instead."""


def test_the_table_of_choices_is_conf() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {group: cell for group, cell in rows if (ROOT / "conf" / group).is_dir()}
    assert set(named) == {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}
    for group, cell in named.items():
        names = {path.stem for path in choices(group).values()}
        if group in OPEN_GROUPS:
            assert OPEN_GROUPS[group] in cell
        else:
            assert set(re.findall(r"`([\w-]+)`", cell)) == names, group


def test_no_fence_is_left_open() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") % 2 == 0, page


@pytest.mark.parametrize("block", of_kind("python"))
def test_python_can_be_read(block: Block) -> None:
    try:
        ast.parse(block.body)
    except SyntaxError:
        ast.parse(f"[\n{block.body}\n]") if ":" not in block.first else ast.parse(f"{{\n{block.body}\n}}")


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_yaml_can_be_read(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.body), dict)


def listed(block: Block, text: str) -> NotRun | None:
    """What not_run.yaml has of it, where that holds on this machine."""
    one = NOT_RUN.get((block.page, text))
    return None if one is None or one.here else one


RUN = [page for page in (*PAGES, *OTHERS) if any(b.kind in (*SHELL, "python") for b in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in RUN])
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """From top to bottom, in one folder, with one Python namespace: as a reader would who types it all."""
    environment = shell(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.file is not None:
            block.put(tmp_path)
            continue
        if block.kind == "python" and listed(block, block.first) is None:
            before = Path.cwd()
            os.chdir(tmp_path)
            try:
                exec(compile(block.body, block.where, "exec"), namespace)
            finally:
                os.chdir(before)
        for one in block.commands():
            if listed(block, one.text) is None:
                printed = run(one, tmp_path, environment)
                assert one.printed is None or masked(printed) == masked(one.printed), one.where


def shell(folder: Path) -> Mapping[str, str]:
    """An environment in which `npucompose`, `python` and `run.py` are those of this checkout."""
    programs = folder / "bin"
    programs.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "COLUMNS": "120",
    }
    warm = {name: " ".join(command(name, environment=environment)) for name in ("npucompose", "run.py")}
    lines = {
        "npucompose": f'exec {warm["npucompose"]} "$@"',
        "python": f'[ "$1" = run.py ] && shift && exec {warm["run.py"]} "$@"\nexec "{sys.executable}" "$@"',
    }
    for name, line in lines.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    (folder / "run.py").symlink_to(ROOT / "run.py")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    return environment


def run(one: Command, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", one.line],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    wanted = {0, 1} if "recipe verify" in one.line else {one.status}  # a speed-up holds on a quiet machine
    assert done.returncode in wanted, f"{one.where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, f"{one.where}\n{done.stderr}"
    return done.stdout


def masked(text: str) -> str:
    """Numbers, units and the room between words left out: what they are is another machine's business."""
    for pattern, mark in MASKS:
        text = re.sub(pattern, mark, text)
    return text.strip()


def test_the_key_of_the_extensions_page_is_the_example_s() -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "extensions.md") if block.kind == "python")
    assert block.body in (ROOT / "examples" / "extension" / "npucompose_demo" / "key.py").read_text()
