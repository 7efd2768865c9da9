"""What is said of a wheel: its options, whether they were set, whether it was executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.targets.npu_offline import option_trees
from npucompose.vendor.versions import genuine_tree


@pytest.mark.parametrize(
    ("version", "said"), [("2.13.0", option_trees.SET_AND_READ), ("9.9.9", "not tried on this version")]
)
def test_options_were_set_on_known_versions_alone(
    version: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option_trees, "live_tree", lambda tree: tuple(genuine_tree("2.13.0").values()))
    monkeypatch.setattr(option_trees, "learn", lambda version, leaves: None)
    # private: a wheel like no other
    monkeypatch.setattr(option_trees, "_beside_the_reference", lambda version: "")
    monkeypatch.setattr(option_trees, "torch_wanted", lambda tree: "2.99.0")
    lines = list(option_trees.claims_on(tmp_path, version))
    assert f"setting options: {said}" in lines
    assert any(line.startswith("execution: proven") for line in lines) == (version == "2.13.0")


def test_a_tree_of_a_known_version_says_so_in_full(torch_npu_tree: Path) -> None:
    first, *_ = option_trees.claims_on(torch_npu_tree, "2.13.0")
    leaves = genuine_tree("2.13.0")
    flat = sum(path.startswith(option_trees.PREFIX) for path in leaves)
    wanted = f"{len(leaves)} leaves ({len(leaves) - flat} of torchair, {flat} of npugraph_ex)"
    assert first == f"option tree: read from it: {wanted}"


@pytest.mark.parametrize(
    ("version", "alike"),
    [("2.6.0.post5", "a tree of its own"), ("2.9.0.post6", "the tree of 2.12.0"), ("2.14.0", "the tree of 2.13.0")],
)
def test_a_version_is_said_to_have_the_tree_of_the_newest_that_has_the_same(version: str, alike: str) -> None:
    # private: what is said of an older wheel, without one
    assert option_trees._beside_the_reference(version).startswith(f"option tree: it is {alike}")


def test_a_tree_is_read_also_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Path) -> None:
        raise PermissionError("nobody may write here")

    leaves = tuple(genuine_tree("2.13.0").values())
    monkeypatch.setattr(option_trees, "sources_digest", lambda tree: "a digest of nobody's")
    monkeypatch.setattr(option_trees, "read_tree", lambda tree: leaves)
    monkeypatch.setattr(option_trees.private, "make", refused)
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path))
    assert option_trees.live_tree(tmp_path) == leaves
    assert list(tmp_path.iterdir()) == []
