"""Every command that README.md and docs/ print: each is legal (here), is run as printed (test_pages.py) or is listed in
not_run.yaml with the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from npucompose.cli.arguments import every_command
from npucompose.errors import ConfigError
from tests.docs.blocks import ALL, OTHERS, PAGES, ROOT, SHELL, Command, blocks
from tests.docs.commands import HAS, look_at, not_run, prepare, simple

COMMANDS = tuple(command for block in ALL for command in block.commands())
NOT_RUN = not_run()
EXAMPLE = "examples/extension/README.md"
"""Its choices are those of a package that is not installed here; tests/examples composes them."""
SPAN = re.compile(r"`((?:npucompose|python|make|pip|pytest) [^`]+)`")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def pages(*chosen: Path) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in chosen]


def test_the_pages_print_commands() -> None:
    assert len(COMMANDS) > 130
    assert {"make run", "python run.py experiment=decode"} <= {command.text for command in COMMANDS}
    continued = [command.text for command in COMMANDS if command.block.page == "docs/tutorial_own_model.md"]
    assert "npucompose new model my_block" in continued


@pytest.mark.parametrize("page", pages(*PAGES, *OTHERS))
def test_no_command_escapes_the_parser(page: Path) -> None:
    """A fence that is no block, in another style or with another word, and a prompt outside of every fence."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)
    assert len(fences) == 2 * sum(not block.hidden for block in blocks(page))
    assert re.findall(r"^\s*\$ .*", FENCED.sub("", text), re.MULTILINE) == []


@pytest.mark.parametrize("page", pages(*{ROOT / block.page: None for block in ALL if block.kind in SHELL}))
def test_every_command_of_a_page_is_legal(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program, its flags and its overrides, in a folder with what the page has shown before it."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.file is not None:
            block.put(tmp_path)
        for command in block.commands():
            legal(command)


def legal(command: Command) -> None:
    for words in simple(command.text):
        if command.block.page == EXAMPLE:
            words = [*words, "…"]
        if command.status == 2:
            with pytest.raises(ConfigError):
                look_at(words)
        else:
            try:
                look_at(words)
            except (ConfigError, AssertionError) as error:
                raise AssertionError(f"{command.where}: {error}") from error
        prepare(words, command.text)


@pytest.mark.parametrize("page", pages(*PAGES, *OTHERS[-4:]))
def test_every_command_in_a_sentence_is_legal(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for span in SPAN.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"(?<= )\[([^\]=]*)\]", r"\1", " ".join(span.split()))  # [--out FILE]: may be left out
        for words in simple(re.sub(r"\|\S+", "", text)):
            if words[0] == "npucompose" and len(words) == 2:
                assert words[1] in every_command(), f"{page.name}: `{span}`"
                continue
            value = ["VALUE"] if words[-1] in ("--config-dir", "--env") else []
            try:
                look_at([*words, *value, "…"])
            except (ConfigError, AssertionError) as error:
                raise AssertionError(f"{page.name}: `{span}`: {error}") from error


def test_what_is_not_run_is_printed_somewhere_and_has_a_reason() -> None:
    printed = {(command.block.page, command.text) for command in COMMANDS}
    python = {(block.page, block.first) for block in ALL if block.kind == "python" and block.file is None}
    gone = [
        f"{one.page}: {one.text}" for one in NOT_RUN if (one.page, one.text) not in (python if one.python else printed)
    ]
    assert gone == []
    assert [one.text for one in NOT_RUN if len(one.why) < 15 or one.needs not in (None, *HAS)] == []
    assert len({(one.page, one.text) for one in NOT_RUN}) == len(NOT_RUN)


def test_what_stands_for_something_else_is_not_run() -> None:
    """`…` and `git clone …` cannot be typed."""
    listed = {(one.page, one.text) for one in NOT_RUN}
    assert [c.where for c in COMMANDS if "…" in c.text and (c.block.page, c.text) not in listed] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("npucompose explian", "unknown command"),
        ("npucompose list modez", "unknown kind"),
        ("npucompose report --pareto", "unknown option --pareto"),
        ("python run.py --fsat mode=eager", "unknown option --fsat"),
        ("python run.py mode=eger", "Did you mean 'eager'"),
        ("npucompose run --dry-run mode=eager | head -n 3 && npucompose run mode=eger", "Did you mean 'eager'"),
        ('eval "$(npucompose completion bahs)"', "unknown shell"),
        ("python run.py -m mode=reduce-overhead,max-autotune tiling=sink", "has no effect in mode=reduce-overhead"),
        ("npucompose recipe eject mode=eger --out x.py", "Did you mean 'eager'"),
        ("pip install 'npucompose[everything]'", "everything"),
        ("python -m benchmarks.streams --olny headline", "knows no --olny"),
        ("make everything", "make"),
        ("cmake ..", "cmake"),
    ],
)
def test_a_wrong_command_is_seen(line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, AssertionError), match=words):
        _ = [look_at(one) for one in simple(line)]
