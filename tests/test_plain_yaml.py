"""YAML is read as plain data, or refused with the line that is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve

from npucompose import input_safety
from npucompose.compose.conf import conf_dir
from npucompose.errors import ConfigError
from npucompose.input_safety import InputLimits, load_yaml, plain_data, read_text
from tools.layout import choices

WIDE = InputLimits(most_values=1_000, deepest=5, aliases=True)
PACKAGED = InputLimits(most_values=20_000, deepest=12, aliases=True)
NARROW = InputLimits(most_values=1_000, deepest=5, aliases=False)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", None),
        ("[1, 0x10, 1_000, -2.5, .inf, yes, ~, t, '1']", [1, 16, 1000, -2.5, float("inf"), True, None, "t", "1"]),
        ("1: a\nnull: b\n", {1: "a", None: "b"}),
        ("day: 2020-01-01", {"day": "2020-01-01"}),
        ("a: !!str 12\nb: ! 12", {"a": "12", "b": "12"}),
        ("a: &x {k: 1}\nb: *x", {"a": {"k": 1}, "b": {"k": 1}}),
        ("a: &x {k: 1, l: 1}\nb: {<<: *x, k: 2}", {"a": {"k": 1, "l": 1}, "b": {"k": 2, "l": 1}}),
        ("[&x {k: 1}, &y {k: 2, m: 3}, {<<: [*x, *y]}]", [{"k": 1}, {"k": 2, "m": 3}, {"k": 1, "m": 3}]),
        ("a: <<", {"a": "<<"}),
        ("text: |\n  two\n  lines\n", {"text": "two\nlines\n"}),
    ],
)
def test_plain_data_is_what_yaml_means(text: str, data: Any) -> None:
    assert plain_data(text, "x", WIDE) == data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "x:3: the key 'a' stands in line 1 already."),
        ("b:\n  c: 1\n  'c': 2\n", "x:3: the key 'c' stands in line 2 already."),
        ("1: a\ntrue: b\n", "x:2: the key True stands in line 1 already."),
        ("a: [[[[[1]]]]]", "x:1: nested more than 5 deep."),
        ("[" * 100_000, "x:1: nested more than 5 deep."),
        ("a: !!python/object/apply:os.system [id]", "x:1: the tag tag:yaml.org,2002:python/object"),
        ("a: !!binary aGk=", "x:1: the tag tag:yaml.org,2002:binary is not read: plain values only."),
        ("a: !!int text", "x:1: 'text' is no int that can be held."),
        (f"a: {'9' * 5000}", "x:1: 999999999999… (5,000 characters) is no int that can be held."),
        ("{[1]: 2}", "x:1: a key must be a plain value, not a list or a mapping."),
        ("a: &k [1]\n*k : 2", "x:2: a key must be a plain value, not a list or a mapping."),
        ("a: *b", "x:1: *b stands for nothing that was read before it."),
        ("&a [*a]", "x:1: *a stands for nothing that was read before it."),
        ("a: 1\n---\nb: 2", "x:2: a second document begins; a file holds one."),
        ('a: "\\x1b[31m"', "x:1: the text holds \\x1b"),
        ('a: "\\0"', "x:1: the text holds \\x00"),
        ("'\u202e': 1", "x:1: the text holds \\u202e"),
        ("{<<: 1}", "x:1: the merge key << takes a mapping or a list of mappings."),
        ("a: [1,", "is not YAML: did not find expected"),
        ("a: \ud800", "x is not YAML: "),
        (f"a: [{', '.join('1' * 1000)}]", "x holds more than 1,000 values, its aliases written out."),
        ("[&a [1,1,1,1,1,1,1,1], &b [*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b], [*c,*c,*c,*c,*c]]", "1,000 values"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plain_data(text, "x", WIDE)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["a: &x 1", "a: &x [1]", "a: &x {b: 1}", "a: *x", "<<: {a: 1}"])
def test_a_recipe_has_no_aliases_and_no_merge_keys(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x:1: .* not read"):
        plain_data(text, "x", NARROW)


def test_our_own_files_read_as_pyyaml_reads_them() -> None:
    files = [conf_dir() / "config.yaml", *choices().values()]
    assert len(files) > 50
    for file in files:
        text = file.read_text()
        assert plain_data(text, file.name, PACKAGED) == yaml.safe_load(text)


@pytest.mark.parametrize("most", [5_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_a_huge_mapping_is_refused_before_it_is_read_to_its_end(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert input_safety.RECIPE.most_values == 500_000
    monkeypatch.setattr(input_safety, "RECIPE", evolve(input_safety.RECIPE, most_values=most))
    file = tmp_path / "recipe.lock.yaml"
    pairs = "".join(f"  k{n}: {n}\n" for n in range(most // 2 + 1_000))
    file.write_text(f"schema: 1\nexperiment:\n{pairs}  no: [yaml")
    with pytest.raises(ConfigError, match=rf"holds more than {most:,} values\."):
        load_yaml(file)


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_a_device_and_a_folder_are_not_read(path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} is no file"):
        read_text(Path(path), most_bytes=10)


def test_what_is_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("0123456789")
    assert read_text(file, most_bytes=10) == "0123456789"
    with pytest.raises(ConfigError, match="has 10 bytes; a file of more than 9 is not read"):
        read_text(file, most_bytes=9)
