"""What a word on the command line may become."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from npucompose.cli import completion
from npucompose.cli.arguments import ArgumentParser


def parser() -> argparse.ArgumentParser:
    made = ArgumentParser(prog="p")
    commands = made.add_subparsers()
    one = commands.add_parser("one")
    one.add_argument("overrides", nargs="*")
    one.add_argument("--kind", choices=("a", "b"))
    one.add_argument("--out")
    one.add_argument("--flag", "-f", action="store_true")
    one.add_argument("--config-dir", "-cd", action="append")
    two = commands.add_parser("two").add_subparsers()
    two.add_parser("deep").add_argument("kind", choices=(1, 2))
    two.add_parser("deeper")
    return made


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ("one", "two")),
        ([""], ("one", "two")),
        (["o"], ("one",)),
        (["two", ""], ("deep", "deeper")),
        (["two", "deep", ""], ("1", "2")),
        (["three", "deep", ""], ("one", "two")),
        (["one", "--"], ("--help", "--kind", "--out", "--flag", "--config-dir")),
        (["one", "--kind", ""], ("a", "b")),
        (["one", "--out", ""], ()),
        (["one", "--flag", "seed"], ("seed=",)),
        (["one", "--kind", "a", "mode=ea"], ("mode=eager",)),
        (["one", "++mode=ea"], ("++mode=eager",)),
        (["one", "passes=[cse,dead"], ("passes=[cse,dead_code",)),
        (["one", "stric"], ("strict=",)),
        (["one", "compile.fullgraph=t"], ("compile.fullgraph=true",)),
        (["one", "compiler.debug.graph_d"], ("compiler.debug.graph_dump.",)),
        (["one", "no.such=x"], ()),
    ],
)
def test_a_word_may_become(words: list[str], wanted: tuple[str, ...]) -> None:
    assert completion.candidates(parser(), words) == wanted


def test_folders_of_ones_own_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mode" / "zebra.yaml").touch()
    (tmp_path / "a_file").touch()
    for flag in ("--config-dir", "-cd"):
        own = ["one", flag, str(tmp_path)]
        assert completion.candidates(parser(), [*own, "mode=z"]) == ("mode=zebra",)
        assert completion.candidates(parser(), [*own, "mi"]) == ("mine=",)
        assert completion.candidates(parser(), [*own, "a_f"]) == ()
    assert completion.candidates(parser(), ["one", "--config-dir", "/no such", "mode=z"]) == ()
    assert completion.candidates(parser(), ["one", "--out", str(tmp_path), "mode=z"]) == ()


@pytest.mark.parametrize(
    ("takes", "words"),
    [
        ("true | false | null", ("true", "false", "null")),
        ("integer", ()),
        ("O1 | O3", ("O1", "O3")),
        ("a list of text", ()),
        ("a | ", ()),
        ("number | null", ()),
    ],
)
def test_a_list_of_values_is_read_from_the_table(takes: str, words: tuple[str, ...]) -> None:
    assert completion._listed(takes) == words
