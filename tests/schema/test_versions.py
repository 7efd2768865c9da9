"""Which torch_npu version has which option: the committed data against our table, and what is refused."""

from __future__ import annotations

import pytest

from npucompose.errors import ConfigError
from npucompose.schema.compiler import EVERY_LEAF, LEAVES, CompilerOptions
from npucompose.schema.genuine import stored_path
from npucompose.schema.leaf import Leaf
from npucompose.schema.versions import (
    every_leaf,
    genuine_tree,
    having,
    known,
    mode_refused,
    nearest,
    refused,
    tree_of,
    versions,
)


def test_seven_versions_are_known_oldest_first():
    assert versions() == (
        "2.6.0.post5", "2.7.1.post4", "2.8.0.post4", "2.9.0.post6", "2.11.0.post3", "2.13.0", "2.14.0",
    )  # fmt: skip


def test_the_table_is_the_tree_of_2_13_0():
    assert tree_of("2.13.0") == LEAVES


@pytest.mark.parametrize(
    ("version", "torchair", "npugraph_ex"),
    [
        ("2.6.0.post5", 66, 0), ("2.7.1.post4", 71, 42), ("2.8.0.post4", 71, 42), ("2.9.0.post6", 72, 29),
        ("2.11.0.post3", 73, 30), ("2.13.0", 73, 30), ("2.14.0", 73, 30),
    ],
)  # fmt: skip
def test_every_leaf_of_every_version_is_in_its_tree(version: str, torchair: int, npugraph_ex: int):
    tree = tree_of(version)
    ex = [path for path in tree if path.startswith("npugraph_ex.")]
    assert (len(tree) - len(ex), len(ex)) == (torchair, npugraph_ex)
    assert {stored_path(leaf) for leaf in tree.values()} == set(genuine_tree(version))


def test_no_default_differs_between_versions():
    """CompilerOptions keeps what differs from the one default that it knows: with two, it would have to know which."""
    for version in versions():
        assert {path: leaf.default for path, leaf in tree_of(version).items()} == {
            path: EVERY_LEAF[path].default for path in tree_of(version)
        }


@pytest.mark.parametrize(
    "leaf", [leaf for path, leaf in every_leaf().items() if path not in LEAVES], ids=lambda x: x.path
)
def test_a_leaf_of_other_versions_is_described_as_torchairs_own(leaf: Leaf):
    assert leaf.path.startswith("npugraph_ex.")
    assert having(stored_path(leaf)) == ("2.7.1.post4", "2.8.0.post4")
    assert leaf.doc
    assert leaf.modes == ("npugraph_ex",)
    assert leaf.kind == "code" or leaf.checked(leaf.default) == leaf.default
    assert leaf.needs is None or leaf.needs in every_leaf()


def test_a_release_means_its_known_post_release():
    assert known("2.9.0") == "2.9.0.post6"
    with pytest.raises(ConfigError, match=r"unknown torch_npu version '2\.10\.0'.*Choices: 2\.6\.0\.post5"):
        known("2.10.0")


@pytest.mark.parametrize(
    ("installed", "tree"),
    [("2.13.0", "2.13.0"), ("2.9.0.post2", "2.9.0.post6"), ("2.12.0", "2.11.0.post3"), ("2.1.0", "2.6.0.post5"),
     ("3.0.0", "2.14.0"), ("2.13.0+gitabc", "2.13.0")],
)  # fmt: skip
def test_an_installed_version_takes_the_nearest_known_tree(installed: str, tree: str):
    assert nearest(installed) == tree


def test_an_option_that_a_version_lacks_is_refused_and_the_versions_that_have_it_are_named():
    (problem,) = refused({"debug.deadlock_check": True}, "2.6.0", "found by the cache")
    assert problem == (
        "compiler.debug.deadlock_check=true: torch_npu 2.6.0.post5 (found by the cache) has no such option; "
        "versions that have it: 2.9.0.post6, 2.11.0.post3, 2.13.0, 2.14.0."
    )


def test_the_name_that_the_version_has_for_it_is_said_inverted_where_it_is():
    (flat,) = refused({"npugraph_ex.inplace_pass": False}, "2.8.0")
    assert flat.endswith("It writes compiler.npugraph_ex.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true.")
    (nested,) = refused({"npugraph_ex.debug.aclgraph.clone_input": False}, "2.9.0")
    assert nested.endswith("It writes compiler.npugraph_ex.clone_input=false.")


def test_a_value_that_a_version_does_not_take_is_refused():
    (problem,) = refused({"npugraph_ex.debug.graph_dump.type": "txt"}, "2.7.1")
    assert problem == "compiler.npugraph_ex.debug.graph_dump.type=txt: torch_npu 2.7.1.post4 takes py | null there."


def test_a_mode_that_a_version_lacks_is_refused():
    assert mode_refused("npugraph_ex", "2.7.1") is None
    assert mode_refused("reduce-overhead", "2.6.0") is None
    assert "versions that have it: 2.7.1.post4" in str(mode_refused("npugraph_ex", "2.6.0"))


def test_options_say_which_version_they_are_for_and_survive_their_tree():
    tree = {"torch_npu_version": "2.8.0", "npugraph_ex": {"dump_config": {"dump_mode": "input"}}}
    options = CompilerOptions.of_tree(tree)
    assert options.torch_npu_version == "2.8.0.post4"
    assert options.changed() == {"npugraph_ex.dump_config.dump_mode": "input"}
    assert CompilerOptions.of_tree(options.as_tree()) == options
    assert CompilerOptions.of_tree(options.as_tree(changed_only=True)) == options
    assert "clone_input" not in options.as_tree()["npugraph_ex"], "2.8.0 has no such leaf"
    assert options.with_values({"ge_config.oo_level": "O1"}).torch_npu_version == "2.8.0.post4"


@pytest.mark.parametrize("given", [2.13, 213, "2.13", "latest", ["2.13.0"]])
def test_what_is_no_version_is_refused(given: object):
    with pytest.raises(ConfigError, match=r"^(compiler\.torch_npu_version takes|unknown torch_npu version)"):
        CompilerOptions.of_tree({"torch_npu_version": given})
