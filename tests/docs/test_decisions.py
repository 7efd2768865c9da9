"""docs/decisions: one dated file a decision, each in the index; what was superseded names what took its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
LINK = re.compile(r"\]\(([^)#:\s]+)\)")
MARK = re.compile(r"^\*(Superseded|Amended)([^*]*)\*$", re.M)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_a_title_its_date_and_text(record: Path) -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d-[a-z0-9-]+", record.stem)
    title, empty, date, empty_too, text = record.read_text(encoding="utf-8").split("\n", 4)
    assert (title[:2], empty, date, empty_too) == ("# ", "", record.name[:10], "")
    assert text.startswith("**")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_mark_names_a_record_that_is_not_older(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert text.count("\n*Superseded") + text.count("\n*Amended") == len(MARK.findall(text))
    for _, rest in MARK.findall(text):
        links = LINK.findall(rest)
        assert links or " below" in rest, rest
        assert all((FOLDER / link).is_file() and link[:10] >= record.name[:10] for link in links), rest


def test_the_index_names_every_record_once_by_its_date_and_says_which_are_superseded() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- (\S+) \[[^]]+\]\((\S+)\)(.*)$", index, re.M)
    assert [name for _, name, _ in lines] == sorted((name for _, name, _ in lines), key=lambda name: name[:10])
    assert sorted(name for _, name, _ in lines) == [record.name for record in RECORDS]
    for date, name, note in lines:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert (date, "superseded" in note) == (name[:10], "*Superseded" in text), name
    assert all((FOLDER / link).exists() for link in LINK.findall(index))


def test_nothing_says_that_cuda_records_no_graphs() -> None:
    """It was said on the first day; docs/cuda.md and the target say otherwise."""
    assert not [path.name for path in RECORDS if "target=cuda has eager and max-autotune only" in path.read_text()]
