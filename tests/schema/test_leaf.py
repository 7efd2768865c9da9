"""One leaf of TorchAir's trees: what it takes, what it keeps of it, and which paths have to exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npucompose.vendor.option_specs import INT64_MAX, Kind, OptionSpec, shown


def leaf(kind: Kind, default: Any = None, **more: Any) -> OptionSpec:
    return OptionSpec(
        path="npugraph_ex.group.one", kind=kind, default=default, doc="d", source="s", modes=("m",), **more
    )


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("bool", True, True), ("bool", False, False), ("int", 0, 0), ("int", -3, -3),
        ("int", INT64_MAX + 1, INT64_MAX + 1),
        ("str", "", ""), ("str", 12, "12"), ("ints", [], ()), ("ints", (3, 1), (3, 1)),
        ("names", ["b", "a"], ("b", "a")), ("dict", {"b": 1.5, "a": None}, {"a": None, "b": 1.5}),
        ("dict", {"t": "x", "f": False}, {"f": False, "t": "x"}),
        ("dict", {"b": [".*", (1,)], "a": {"d": None, "c": []}}, {"a": {"c": [], "d": None}, "b": [".*", [1]]}),
        ("path", "p", "p"), ("dir", "p", "p"), ("file", "p", "p"), ("pool", "p", "p"),
        *((kind, None, None) for kind in ("bool", "int", "str", "ints", "names", "dict", "path", "pool", "code")),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_kept_in_its_own_form(kind: Kind, value: Any, kept: Any) -> None:
    found = leaf(kind).checked(value)
    assert found == kept
    assert type(found) is type(kept)
    if isinstance(kept, dict):
        assert list(found) == list(kept), "equal mappings are written equally"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bool", 1), ("bool", 0), ("bool", "true"), ("int", True), ("int", 1.0), ("int", "1"), ("str", True),
        ("str", 1.5), ("str", ["a"]), ("ints", "12"), ("ints", 3), ("ints", [1, True]), ("ints", [1, None]),
        ("names", "mm"),
        ("names", ["a", ""]), ("names", [1]), ("dict", [1]), ("dict", {1: "a"}), ("dict", {"a": {1}}),
        ("dict", {"a": {1: "b"}}), ("dict", {"a": [len]}), ("path", ""), ("dir", 3), ("file", ["f"]), ("pool", ""),
        ("code", "f"), ("code", len),
    ],
)  # fmt: skip
def test_a_value_of_another_form_is_refused_with_its_type(kind: Kind, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^takes .*; given .* \(" + type(value).__name__ + r"\)$"):
        leaf(kind).checked(value)


def test_null_is_taken_only_where_it_is_the_default() -> None:
    with pytest.raises(ValueError, match=r"^takes an integer; given null \(null\)$"):
        leaf("int", 3).checked(None)


@pytest.mark.parametrize(
    ("limits", "fits", "refused"),
    [
        ({"kind": "int", "default": 5, "least": 2}, (2, 5, INT64_MAX), (1, -1, INT64_MAX + 1)),
        ({"kind": "int", "default": 5, "least": 0, "refused": (1, 3)}, (0, 2, 4), (1, 3, -1)),
        ({"kind": "str", "default": "a", "choices": ("a", "b")}, ("a", "b"), ("c", "A", "")),
        ({"kind": "str", "default": "", "pattern": r"\d+|"}, ("", "12"), ("1x", "x1", "\u0663", "1\n")),
        ({"kind": "file", "default": None, "suffix": ".json"}, ("a.json",), ("a.jsonx", "json", "a.txt")),
    ],
)
def test_a_leaf_s_limits_hold_to_the_last_value(limits: Any, fits: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    one = leaf(**limits)
    assert [one.checked(value) for value in fits] == list(fits)
    for value in refused:
        with pytest.raises(ValueError, match=r"^takes "):
            one.checked(value)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"kind": "str", "default": "a", "choices": ("a", 2, None)}, "a | 2 | null"),
        ({"kind": "str", "choices": ("a", "b")}, "a | b | null"),
        ({"kind": "int", "default": 5, "least": 0, "refused": (1, 3)}, "an integer >= 0 other than 1 and 3"),
        ({"kind": "file", "suffix": ".json"}, "an existing file ending in .json | null"),
        ({"kind": "str", "default": "", "example": "0|3"}, "text like 0|3"),
        ({"kind": "dir", "default": "./", "written": True}, "a folder in the run directory, or an absolute path"),
        ({"kind": "dir", "default": "./"}, "an existing folder"),
    ],
)
def test_what_a_leaf_takes_is_said_in_words(limits: Any, words: str) -> None:
    assert leaf(**limits).allowed() == words


def test_a_leaf_is_stored_under_its_own_name_without_its_package() -> None:
    assert leaf("int").genuine_path == "group.one"
    assert leaf("int", genuine="group._one").genuine_path == "group._one"


def test_a_path_that_has_to_exist_is_missed(tmp_path: Path) -> None:
    file, nowhere = tmp_path / "f", tmp_path / "nowhere"
    file.write_text("")
    folders, files = leaf("dir", "./"), leaf("file")
    assert folders.missing(str(tmp_path)) is None
    assert folders.missing(str(file)) == f"names a folder that does not exist: {file}"
    assert folders.missing(str(nowhere)) == f"names a folder that does not exist: {nowhere}"
    assert files.missing(str(file)) is None
    assert files.missing(str(tmp_path)) == f"names a file that does not exist: {tmp_path}"
    assert leaf("path").missing(str(nowhere)) is None, "a path may be missing"


def test_nobody_looks_for_a_default_nor_for_a_folder_that_is_made_when_it_is_needed(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert leaf("dir", nowhere).missing(nowhere) is None
    assert leaf("file").missing(None) is None
    made = leaf("dir", "./", written=True)
    assert made.missing("dumps") is None
    assert made.missing(nowhere) == f"names a folder that does not exist: {nowhere}"


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "null"), (True, "true"), (False, "false"), ("", "''"), ("O1", "O1"), (2.5, "2.5"), (0, "0"),
     ([2, "a", None], "[2, a, null]"), ((True, ("",)), "[true, ['']]"), ((), "[]")],
)  # fmt: skip
def test_a_value_is_shown_as_yaml_has_it(value: Any, words: str) -> None:
    assert shown(value) == words
