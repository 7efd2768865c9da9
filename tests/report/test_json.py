from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import attrs
import pytest
from report_examples import EXAMPLES, FULL

from npucompose.errors import ConfigError
from npucompose.report import json as report_json
from npucompose.results.measured import TimeSamples
from npucompose.results.record import EXIT_STATUS, STATUSES, Report
from tests.answers import answer

DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_report_survives_its_journey_through_the_file(name: str, tmp_path: Path) -> None:
    path = report_json.write(EXAMPLES[name], tmp_path)
    assert path == tmp_path / "report.json"
    assert answer(path.read_text(), indent=1)
    assert report_json.load(path) == EXAMPLES[name]
    assert report_json.load(tmp_path) == EXAMPLES[name]
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_report_of_any_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report_json.write(FULL, tmp_path)
    monkeypatch.setattr(report_json, "MOST_BYTES", path.stat().st_size)
    assert report_json.load(path) == FULL
    monkeypatch.setattr(report_json, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"a file of more than .* is not read"):
        report_json.load(path)


def test_a_field_of_a_later_version_is_left_out(tmp_path: Path) -> None:
    path = report_json.write(FULL, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert report_json.load(path) == FULL


def changed(**changes: Any) -> str:
    return json.dumps({**FULL.as_dict(), **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a report"),
        ("[]", "a mapping is wanted, not a list"),
        (changed()[:200], "is not a report"),
        (changed(schema=99), "'schema' is 99"),
        (changed(status="okay"), "unknown status 'okay'. Did you mean 'ok'?"),
        (changed(reused="no"), "'reused' must be true or false: 'no' @ report"),
        (changed(memory={"pool_bytes": "3"}), "'pool_bytes' must be an integer or null: '3' @ report.memory"),
        (changed(memory=3), "'memory' must be a mapping: 3 @ report"),
        (changed(graphs={"a": 1}), "'graphs' must be a list: {'a': 1} @ report"),
        (changed(numerics={"reference": "eager"}), "'bitwise' is missing @ report.numerics"),
    ],
)
def test_a_file_that_is_no_report_is_refused_with_words(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        report_json.load(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_report_is_refused_with_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no report\.json at"):
        report_json.load(tmp_path)


def test_every_status_has_its_exit_status() -> None:
    assert set(EXIT_STATUS) == set(STATUSES)
    assert FULL.exit_status == 0


def fields_of(cls: type[Any], path: str = "") -> Iterator[str]:
    """Dotted names of a record class: `passes.name` for the name of each entry of passes."""
    hints = get_type_hints(cls)
    for field in attrs.fields(cls):
        name = f"{path}{field.name}"
        yield name
        for inner in classes_in(hints[field.name]):
            if inner is not TimeSamples:  # baselines: "the five fields above"
                yield from fields_of(inner, f"{name}.")


def classes_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and attrs.has(hint):
        yield hint
    else:
        for argument in get_args(hint):
            yield from classes_in(argument)


def test_the_document_names_every_field_and_no_other() -> None:
    documented = re.findall(r"^\| `([\w.]+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == set(fields_of(Report))


def test_the_document_names_every_status() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"`{status}`" in text for status in STATUSES)


def test_a_report_is_plain_json() -> None:
    def check(value: Any) -> None:
        if isinstance(value, Mapping):
            assert all(type(name) is str for name in value)
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)
        else:
            assert value is None or type(value) in (str, int, float, bool)

    check(FULL.as_dict())
