"""No text that others chose reaches a terminal as something that it obeys."""

from __future__ import annotations

import ast
import io
import sys
import traceback
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from airflow_free.progress import Progress
from airflow_free.stage import Event
from npucompose.cli import main
from npucompose.console import console, guarded
from npucompose.errors import visible
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from tools.layout import product

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\u202egnp\u2066d\x00\x7f\r\u200fe\ud800"
OBEYED = frozenset(c for c in HOSTILE if not c.isprintable())


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x200E, 0x202E, 0x2066, 0xFEFF, 0xD800])
def test_nothing_that_a_terminal_obeys_is_left(code: int) -> None:
    shown = visible(f"é{chr(code)}é")
    assert shown.replace("\n", "").isprintable()
    assert (shown == f"é{chr(code)}é") == (chr(code) == "\n")
    assert visible(f"e{chr(code)}") == visible(f"é{chr(code)}").replace("é", "e")


def test_what_may_be_shown_stays() -> None:
    text = "größe 5 µs → 漢字 👍 a\nb"
    assert visible(text) == text


def shown(act: object, **options: object) -> str:
    file = io.StringIO()
    console(file=file, width=200, **options).print(act)
    return file.getvalue()


def test_a_console_shows_text_and_obeys_only_its_own_styles() -> None:
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="red"))
    for thing in (HOSTILE, Text(HOSTILE), table):
        assert not OBEYED & set(shown(thing)), thing
    coloured = shown(Text(HOSTILE, style="red"), force_terminal=True, color_system="standard")
    assert coloured.startswith("\x1b[31m")
    assert coloured.count("\x1b") == 2


def test_marks_of_rich_in_a_text_are_text() -> None:
    assert shown("[red]x[/blue] :smile:").strip() == "[red]x[/blue] :smile:"


def test_a_stage_name_of_a_worker_is_no_mark() -> None:
    file = io.StringIO()
    with Progress(console(file=file, force_terminal=True, width=80)) as progress:
        progress.show(Event(kind="started", stage="[/red]\x1b]0;owned\x07"))
        progress.bars.refresh()  # type: ignore[union-attr]
    assert r"[/red]\x1b]0;o" in file.getvalue()
    assert "\x1b]" not in file.getvalue()


def test_whatever_is_printed_under_guard_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded():
        print(HOSTILE, "a\tb")
        traceback.print_exception(ValueError(HOSTILE))
        sys.stderr.write(HOSTILE)
        with guarded():
            print(HOSTILE)
        console().print(HOSTILE)
    told = capsys.readouterr()
    assert not OBEYED & set(told.out + told.err)
    assert "a\tb" in told.out
    assert (told.out + told.err).count("owned") == 5
    print(HOSTILE.encode("utf-8", "replace").decode())
    assert "\x1b" in capsys.readouterr().out


def test_every_command_is_under_guard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(
            PointEntry(key=f"{n:064x}", status="failed", overrides=(f"model={one}",), error=one)
            for n, one in enumerate((HOSTILE[:-1], "\x1b[2J", "[/red]"))
        )
    (tmp_path / "\x1b[2Jrecipe.yaml").write_text('schema: "\x1b[2J"\n')
    for words in (
        ["report", str(tmp_path)], ["report", str(tmp_path), "--markdown"], ["report", str(tmp_path), "--csv"],
        ["recipe", "show", str(tmp_path / "\x1b[2Jrecipe.yaml")], ["list", "\x1b[2J"], ["report", "\x1b[2J"],
        ["run", "\x1b[2J=1"], ["run", "--config-dir", str(tmp_path), "model=\x1b[2J", "--debug"],
    ):  # fmt: skip
        assert main(words) in (0, 2)
        told = capsys.readouterr()
        assert told.out + told.err
        assert not OBEYED & set(told.out + told.err), words


def test_one_module_makes_consoles() -> None:
    makers = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in product().values()
        for path in folder.rglob("*.py")
        for text in [path.read_text()]
        if "Console" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Console"
    ]
    assert makers == []


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("90", 90)])
def test_into_a_pipe_lines_are_120_wide_unless_columns_says_otherwise(columns, width, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    console().print("word " * 40)
    first = capsys.readouterr().out.splitlines()[0]
    assert width - len("word ") < len(first.rstrip()) <= width
    assert console(width=70).width == 70
