"""What README.md and docs/ tell people to type: every command is legal (here), and does what the page says (slow)."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from npucompose.arguments import command_line
from npucompose.compose.check import check
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.report.listing import KINDS as LISTED
from npucompose.targets.npu_offline.wheel import locate
from tests.docs.blocks import ALL, KINDS, PAGES, ROOT, Block, blocks

ELLIPSIS = "…"
SHELL = ("mkdir", "git", "make", "pip", "eval", ".", "mlflow", "wandb", "printf", "ln")
"""Words that lines may begin with beside `npucompose` and `python`."""
MASKS = (
    (r"compiled in [^\n]*", ""),
    (r"\d+(\.\d+)?([µmn]?s\b| [µmn]?s\b| ?[KMG]iB| B\b|x)?", "#"),
    (r"\s+", " "),
    (r"[0-9a-f]{12,}", "#"),
)


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(block, id=block.where) for block in ALL if block.kind in kinds]


def test_every_block_says_what_it_is() -> None:
    unknown = [f"{block.where}: '{block.kind}'" for block in ALL if block.kind not in KINDS]
    assert unknown == []
    assert len(ALL) > 40


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
        choices = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        if group in OPEN_GROUPS:
            assert OPEN_GROUPS[group] in cell
        else:
            assert set(re.findall(r"`([\w-]+)`", cell)) == choices, group


def test_no_fence_is_left_open() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") % 2 == 0, page


@pytest.mark.parametrize("block", of_kind("python", "python part"))
def test_python_can_be_read(block: Block) -> None:
    try:
        ast.parse(block.body)
    except SyntaxError:
        ast.parse(f"[\n{block.body}\n]")  # a line out of the middle of a tuple


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_yaml_can_be_read(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.body), dict)


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", of_kind("sh", "sh elsewhere", "console"))
def test_every_command_is_legal(block: Block, page_folder: Path) -> None:
    for earlier in blocks(ROOT / block.page):
        if earlier.file is not None and earlier.line < block.line:
            put(earlier, page_folder)
    for line in block.commands():
        words = [word for word in shlex.split(line, comments=True) if word != ELLIPSIS]
        if "$(" in line or ELLIPSIS in " ".join(words):
            continue
        words = list(takewhile(lambda word: word not in (">", "|"), words))
        if line.endswith("# exit 2"):
            with pytest.raises(ConfigError):
                look_at(words)
        else:
            look_at(words)


def put(block: Block, folder: Path) -> None:
    assert block.file is not None
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.body)


def look_at(words: list[str]) -> None:
    """Fails where the command line would not be understood."""
    match words:
        case ["make", *rest]:
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {word for word in rest if "=" not in word} <= set(targets)
        case ["python", "run.py", *rest] | ["npucompose", "run", *rest]:
            look_at_run(rest)
        case ["python", "-m", "tools.photograph" | "tools.read_option_trees", *_]:
            assert (ROOT / "tools" / f"{words[2].partition('.')[2]}.py").is_file()
        case ["python", "-m", "pytest", test]:
            assert test.startswith("test_")
        case ["npucompose", *rest]:
            look_at_command(rest)
        case ["python", script]:
            assert script.endswith(".py")
        case [first, *_]:
            assert first in SHELL, words


def look_at_run(words: list[str]) -> None:
    dirs = [value for flag, value in pairwise(words) if flag == "--config-dir"]
    overrides = [word for word in words if "=" in word or word.startswith("~")]
    saved = [word.partition("=")[2] for word in overrides if word.startswith("model.inputs_file=")]
    there = all(Path(name).is_dir() for name in dirs) and all(Path(name).is_file() for name in saved)
    if not there or "target=npu" in overrides:
        return  # what an earlier command writes, and what another machine has, is seen when the page is run
    named: dict[str, str | None] = {value: None for flag, value in pairwise(words) if flag == "--env"}
    composer = Composer(config_dirs=dirs, environment=named)
    if "-m" in words:
        with what_only_lacks_a_package():
            points = SweepPlan.from_overrides(overrides, composer).illegal
            if points:
                raise ConfigError(*(problem for point in points for problem in point.problems))
    else:
        with what_only_lacks_a_package():
            check(composer.compose(overrides))


@contextmanager
def what_only_lacks_a_package() -> Iterator[None]:
    """Is legal."""
    try:
        yield
    except ConfigError as error:
        if not all("pip install 'npucompose[" in problem for problem in error.problems):
            raise


def look_at_command(words: list[str]) -> None:
    arguments = command_line(words[0]).parse_args(words)
    overrides = getattr(arguments, "overrides", [])
    if overrides and words[0] != "run" and not getattr(arguments, "config_dir", []):
        with what_only_lacks_a_package():
            check(Composer().compose(overrides))
    if words[0] == "list":
        assert arguments.kind in (*LISTED, *LISTED.values(), "options", "keys")


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """From top to bottom, in one folder, with one Python namespace: as a reader would who types it all."""
    environment = shell(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.file is not None:
            put(block, tmp_path)
        elif block.kind == "sh":
            for line in block.commands():
                if ELLIPSIS not in line and possible(line):
                    run(line, block, tmp_path, environment)
        elif block.kind == "console":
            for command, wanted in filter(lambda pair: possible(pair[0]), block.printed()):
                assert masked(run(command, block, tmp_path, environment)) == masked(wanted), block.where
        elif block.kind == "python":
            before = Path.cwd()
            os.chdir(tmp_path)
            try:
                exec(compile(block.body, block.where, "exec"), namespace)
            finally:
                os.chdir(before)


def possible(line: str) -> bool:
    """Whether this machine has what a line needs."""
    if "target=npu_offline" not in line and "experiment=fa_path" not in line:
        return True
    try:
        locate()
    except ConfigError:
        return False
    return True


def shell(folder: Path) -> Mapping[str, str]:
    """An environment in which `npucompose`, `python` and `run.py` are those of this checkout."""
    programs = folder / "bin"
    programs.mkdir()
    ours = "import sys; from npucompose.cli import main; sys.exit(main())"
    lines = {
        "npucompose": f'exec "{sys.executable}" -c \'{ours}\' "$@"',
        "python": f'exec "{sys.executable}" "$@"',
    }
    for name, line in lines.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    (folder / "run.py").symlink_to(ROOT / "run.py")
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "COLUMNS": "120",
    }


def run(line: str, block: Block, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    told = re.search(r"#.*\bexit (\d)", line)
    wanted = {int(told[1])} if told else {0}
    if "recipe verify" in line:
        wanted = {0, 1}  # whether a speed-up holds is for a quiet machine to say
    assert done.returncode in wanted, f"{block.where}: {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def masked(text: str) -> str:
    """Numbers, units and the room between words left out: what they are is another machine's business."""
    for pattern, mark in MASKS:
        text = re.sub(pattern, mark, text)
    return text.strip()


def test_a_wrong_command_would_be_seen(page_folder: Path) -> None:
    for words in (["npucompose", "explian"], ["npucompose", "list", "modez"], ["npucompose", "report", "--pareto"]):
        with pytest.raises(ConfigError):
            look_at(words)
    with pytest.raises(Exception, match="Did you mean"):
        look_at(["python", "run.py", "mode=eger"])
    with pytest.raises(ConfigError):
        look_at(["python", "run.py", "-m", "mode=reduce-overhead,max-autotune", "tiling=sink"])
    with pytest.raises(AssertionError):
        look_at(["make", "everything"])
