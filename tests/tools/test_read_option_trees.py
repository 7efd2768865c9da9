"""Folding the option trees of several versions into one data file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.errors import FetchError
from npucompose.vendor.option_specs import VendorOption
from npucompose.vendor.versions import DATA, genuine_tree, versions
from tools.read_option_trees import declared, folded, in_order, wheel_in, written


def level(*allowed: str, default: str = "O3") -> VendorOption:
    return VendorOption(path="ge_config.oo_level", kind="OptionValue", default=default, allowed=allowed)


def spans_of(*trees: VendorOption | None) -> list[tuple[str, str | None]]:
    """(since, until) of the one leaf, None where a version lacks it; versions are 1.0, 2.0, …"""
    named = {f"{at}.0": [leaf] if leaf else [] for at, leaf in enumerate(trees, 1)}
    data = folded(named, dict.fromkeys(named, "digest"))
    return [(span["since"], span["until"]) for span in data["leaves"]["ge_config.oo_level"]]


def test_a_leaf_that_never_changes_is_one_span():
    assert spans_of(level("O1"), level("O1"), level("O1")) == [("1.0", None)]


def test_a_leaf_that_goes_says_until_when():
    assert spans_of(level("O1"), level("O1"), None) == [("1.0", "2.0")]


def test_a_leaf_that_comes_back_is_two_spans():
    assert spans_of(level("O1"), None, level("O1")) == [("1.0", "1.0"), ("3.0", None)]


@pytest.mark.parametrize("other", [level("O1", "O2"), level("O1", default="O1")])
def test_another_value_or_default_opens_a_span(other: VendorOption):
    assert spans_of(level("O1"), other, other) == [("1.0", "1.0"), ("2.0", None)]


def test_versions_are_ordered_by_number():
    assert in_order(["2.13.0", "2.9.0.post6", "2.9.0"]) == ["2.9.0", "2.9.0.post6", "2.13.0"]


def test_only_what_a_class_declares_is_written():
    assert declared(level("O1")) == {"kind": "OptionValue", "default": "O3", "allowed": ["O1"]}
    assert declared(VendorOption(path="x", kind="plain", default=None)) == {"kind": "plain", "default": None}


def test_the_committed_file_is_what_its_own_trees_fold_into():
    committed = json.loads(DATA.read_text())
    data = folded({version: list(genuine_tree(version).values()) for version in versions()}, committed["sources"])
    assert data == committed
    assert written(committed) == DATA.read_text()


def test_a_wheel_that_is_not_in_the_folder_is_named(tmp_path: Path):
    with pytest.raises(FetchError, match=r"holds no torch_npu-2\.13\.0-\*\.whl"):
        wheel_in(tmp_path, "2.13.0")
