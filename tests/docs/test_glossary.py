"""docs/glossary.md: the words that are not used any more are not used, where a plain search decides it."""

from __future__ import annotations

import functools
import re

import pytest

from tests.docs.blocks import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SUFFIXES = {".py", ".md", ".yaml", ".cpp", ".h", ".txt", ".jinja", ".html", ".js", ".toml"}
FOLDERS = ("src", "benchmarks", "examples", "packages", "airflow_free", "docs", "conf", "tests")
EXCEPT = ("docs/glossary.md", "benchmarks/results/", "tests/docs/test_glossary.py")
"""Where the words are named, and results of before."""
RETIRED = {
    "crew": r"(?i)\bcrews?\b",
    "hearing": r"(?i)\bHearing\b",
    "Known, Begun, Found, Drawn": r"(?m)^\s*class (Known|Begun|Found|Drawn|Told|Lives|Crew|Hearing|Seat)\b",
    "leaf (of the options)": r"(?m)^\s*class Leaf\b",
    "genuine (as a name)": r"(?m)^\s*class Genuine",
    "in our words": r"(?i)(?<!_)in_our_words\b",
    "undisturbed": r"(?i)\bundisturbed\b(?!\.py)",
    "alone": r"(?i)\balone\.Trial\b",
    "house": r"(?i)\bthe house\b(?!\.)",
    "a proven compiled graph": r"(?i)\bproven compiled graph\b",
    "stand-in": r"(?i)\bstand-in\b|(?<!under)standin(?!g)",
    "detached replay": r"(?i)\bdetached replay\b",
    "does it sink": r"(?i)\bdoes it sink\b",
    "allowed is nothing": r"(?i)\ballowed is nothing\b",
    "× eager": r"× eager\b",
    "what would have avoided it": r"(?i)\bwould have avoided\b",
    "will it sink": r"(?i)\bwill it sink\b",
    "needs your word for it": r"(?i)\byour word for it\b",
    "None names …": r"\bNone names\b",
    "that no other one beats": r"(?i)\bthat no other one beats\b",
    "as in the dark": r"(?i)\bas in the dark\b",
    "2 µs of 5 µs": r"(?<=\d )[µm]s of \d|as_time\([^()]*\)\} of \{as_time",
    "RESULT_ROOMS": r"\bRESULT_ROOMS\b",
}
"""{word of the table: what to look for}; a word that is a common one too (room, kept, point) is for readers to see."""


def texts() -> dict[str, str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    pages = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *found)}
    return {
        name: path.read_text(encoding="utf-8", errors="replace")
        for name, path in pages.items()
        if not name.startswith(EXCEPT)
    }


PHRASE = re.compile(r"(?:\(\?i\))?\\b([\w -]+)\\b")
"""A pattern that finds nothing where its words are not: `in` is faster than a search that ignores case."""
lowered = functools.cache(str.lower)


@pytest.fixture(scope="module")
def everything() -> dict[str, str]:
    return texts()


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_not_used(word: str, everything: dict[str, str]) -> None:
    pattern = re.compile(RETIRED[word])
    phrase = PHRASE.fullmatch(RETIRED[word])
    there = everything if phrase is None else {n: t for n, t in everything.items() if phrase[1].lower() in lowered(t)}
    assert sorted(name for name, text in there.items() if pattern.search(text)) == []


def test_every_retired_word_stands_in_the_table_with_what_to_write() -> None:
    table = GLOSSARY.read_text(encoding="utf-8").partition("## Not used any more")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    assert all(len(row) == 5 and row[2].strip() for row in rows)
    assert [word for word in RETIRED if not any(word in row[1] for row in rows)] == []


def test_every_term_has_a_meaning_and_stands_once() -> None:
    terms = GLOSSARY.read_text(encoding="utf-8").partition("## Not used any more")[0]
    rows = [line.strip("| ").split(" | ") for line in terms.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row != ["term", "meaning"]]
    assert all(len(row) == 2 and all(row) for row in rows)
    assert len(rows) > 80
    assert len({row[0] for row in rows}) == len(rows)
