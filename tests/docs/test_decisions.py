"""Records of decisions: one for each subject, short, in the index, with what was rejected and what would change it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
RECORDS = sorted(path for path in (*FOLDER.glob("*.md"), *ROOT.glob("packages/*/docs/decisions/*.md")) if path != INDEX)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
AT_MOST = {"records": 45, "words": 20_000, "words of a record": 700, "records of a package": 14}


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_begins_with_its_decision_and_ends_with_what_would_change_it(record: Path) -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d-[a-z0-9-]+", record.stem)
    title, empty, date, empty_too, text = record.read_text(encoding="utf-8").split("\n", 4)
    assert (title[:2], empty, date, empty_too) == ("# ", "", record.name[:10], "")
    assert text.startswith("**")
    decided, rejected, change = re.split(r"\n\n\*\*(?:Tried and rejected|What would change it\.)\*\*", text)
    assert decided.count("**") >= 4
    assert all(line.startswith(("- ", "  ")) for line in rejected.strip().splitlines()), rejected
    assert change.strip()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_fits_two_screens_and_its_links_lead_somewhere(record: Path) -> None:
    assert words(record) <= AT_MOST["words of a record"]
    text = record.read_text(encoding="utf-8")
    assert all((record.parent / link).exists() for link in LINK.findall(text))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_says_what_holds_and_names_no_record_that_took_its_place(record: Path) -> None:
    assert re.findall(r"(?i)\b(?:superseded|amended)\b", record.read_text(encoding="utf-8")) == []


def test_the_records_are_few_and_short() -> None:
    assert len(RECORDS) <= AT_MOST["records"]
    assert sum(map(words, (INDEX, *RECORDS))) <= AT_MOST["words"]
    packages = [record.relative_to(ROOT).parts[1] for record in RECORDS if record.is_relative_to(ROOT / "packages")]
    assert all(packages.count(package) <= AT_MOST["records of a package"] for package in packages)


def test_the_index_names_every_record_once_by_its_title() -> None:
    index = INDEX.read_text(encoding="utf-8")
    lines = re.findall(r"^- \[([^]]+)\]\((\S+)\)$", index, re.M)
    named = {(FOLDER / link).resolve(): title for title, link in lines}
    assert len(named) == len(lines)
    assert named == {record: record.read_text(encoding="utf-8").splitlines()[0][2:] for record in RECORDS}


def test_no_two_records_have_one_subject() -> None:
    subjects = [record.stem[11:] for record in RECORDS]
    assert len(subjects) == len(set(subjects))


def test_nothing_says_that_cuda_records_no_graphs() -> None:
    """It was said on the first day; docs/cuda.md and the target say otherwise."""
    assert not [path.name for path in RECORDS if "target=cuda has eager and max-autotune only" in path.read_text()]
