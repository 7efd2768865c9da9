"""Which torch_npu version has which option: the committed data against our table, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

import npucompose.vendor.versions as versions_module
from npucompose.errors import ConfigError
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES, CompilerOptions
from npucompose.vendor.option_specs import OptionSpec, VendorOption, kind_of, stored_path
from npucompose.vendor.versions import (
    Span,
    _covers,
    _described,
    assumed,
    doubted,
    every_leaf,
    genuine_tree,
    having,
    known,
    learn,
    mode_refused,
    nearest,
    order_of,
    refused,
    tree_of,
    versions,
)


def test_thirteen_versions_are_known_oldest_first():
    assert versions() == (
        "2.5.1", "2.5.1.post1", "2.6.0.post5", "2.7.1.post4", "2.8.0.post4", "2.9.0.post6", "2.10.0", "2.10.0.post7",
        "2.11.0.post3", "2.12.0", "2.12.0.post3", "2.13.0", "2.14.0",
    )  # fmt: skip
    assert list(versions()) == sorted(versions(), key=order_of)


def test_the_table_is_the_tree_of_2_13_0():
    assert tree_of("2.13.0") == LEAVES


@pytest.mark.parametrize(
    ("version", "torchair", "npugraph_ex"),
    [
        ("2.5.1", 45, 0), ("2.5.1.post1", 51, 0), ("2.10.0", 71, 42), ("2.10.0.post7", 73, 30), ("2.12.0", 72, 29),
        ("2.12.0.post3", 73, 30), ("2.6.0.post5", 66, 0), ("2.7.1.post4", 71, 42), ("2.8.0.post4", 71, 42),
        ("2.9.0.post6", 72, 29),
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
def test_a_leaf_of_other_versions_is_described_as_torchairs_own(leaf: OptionSpec):
    assert leaf.path.startswith("npugraph_ex.")
    assert having(stored_path(leaf)) == ("2.7.1.post4", "2.8.0.post4", "2.10.0")
    assert leaf.doc
    assert leaf.modes == ("npugraph_ex",)
    assert leaf.kind == "code" or leaf.checked(leaf.default) == leaf.default
    assert leaf.needs is None or leaf.needs in every_leaf()


def test_a_release_means_itself_or_where_only_post_releases_are_known_the_newest_of_them():
    assert known("2.9.0") == "2.9.0.post6"
    assert known("2.10.0") == "2.10.0"
    assert known("2.10.0.post7") == "2.10.0.post7"
    assert (len(genuine_tree("2.10.0")), len(genuine_tree("2.10.0.post7"))) == (113, 103)
    with pytest.raises(ConfigError, match=r"unknown torch_npu version '2\.10'.*Choices: 2\.5\.1"):
        known("2.10")


@pytest.mark.parametrize(
    ("given", "tree"),
    [("2.13.0", "2.13.0"), ("2.9.0.post2", "2.8.0.post4"), ("2.12.1", "2.12.0.post3"), ("2.1.0", "2.5.1"),
     ("3.0.0", "2.14.0"), ("2.13.0+gitabc", "2.13.0"), ("2.14.0rc1", "2.13.0"), ("2.10.0.post2", "2.10.0")],
)  # fmt: skip
def test_a_version_that_nobody_has_read_takes_the_next_older_tree(given: str, tree: str):
    assert nearest(given) == tree
    assert assumed(given) == (None if given == tree else tree)


def test_an_option_that_only_newer_trees_have_is_unknown_where_the_tree_is_assumed():
    asked = {"ge_config.multistream_parallel_mode": "cv", "debug.deadlock_check": True}
    assert refused(asked, "2.9.5") == ()
    assert [one.path for one in doubted(asked, "2.9.5")] == ["ge_config.multistream_parallel_mode"]
    (doubt,) = doubted(asked, "2.9.5")
    assert doubt.why == (
        "unknown whether torch_npu 2.9.5 has it: its tree was not read, that of 2.9.0.post6 is assumed; versions that "
        "have it: 2.10.0.post7, 2.11.0.post3, 2.12.0.post3, 2.13.0, 2.14.0"
    )
    assert doubted(asked, "2.9.0") == (), "that tree was read"
    assert len(refused(asked, "2.9.0")) == 1


def test_an_option_that_has_gone_before_is_refused_under_an_assumed_tree_too():
    gone = {"npugraph_ex.debug.aclgraph.clone_input": False}
    assert len(refused(gone, "2.13.7")) == 1
    assert doubted(gone, "2.13.7") == ()


@pytest.fixture
def forgetting() -> Iterator[None]:
    """What a test learns is forgotten."""
    every = dict(every_leaf())
    yield
    versions_module._LIVE.clear()
    tree_of.cache_clear()
    every_leaf().clear()
    every_leaf().update(every)


def test_the_tree_of_a_wheel_that_was_read_is_the_tree_of_its_version(forgetting: None):
    reference = genuine_tree("2.13.0")
    level = attrs.evolve(reference["ge_config.oo_level"], allowed=("O1", "O2", "O3"), default="O2")
    others = [leaf for path, leaf in reference.items() if path not in ("ge_config.oo_level", "debug.deadlock_check")]
    learn("2.15.0", [*others, level, genuine("ge_config.brand_new", kind="IntRangeValue", default=3, least=2, most=9)])
    assert assumed("2.15.0") is None
    assert len(tree_of("2.15.0")) == 103
    assert tree_of("2.15.0")["ge_config.oo_level"].default == "O2"
    assert tree_of("2.13.0")["ge_config.oo_level"].default == "O3"
    options = CompilerOptions.of_tree({"ge_config": {"brand_new": 5, "oo_level": "O3"}})
    assert options.changed() == {"ge_config.oo_level": "O3", "ge_config.brand_new": 5}
    assert refused(options.changed(), "2.15.0") == ()
    assert "versions that have it: 2.15.0" in refused(options.changed(), "2.13.0")[0]
    assert len(refused({"debug.deadlock_check": True}, "2.15.0")) == 1


def test_a_wheel_whose_tree_is_the_known_one_teaches_nothing(forgetting: None):
    learn("2.13.0", list(genuine_tree("2.13.0").values()))
    assert versions_module._LIVE == {}


def test_an_option_that_a_version_lacks_is_refused_and_the_versions_that_have_it_are_named():
    (problem,) = refused({"debug.deadlock_check": True}, "2.6.0", "found by the cache")
    assert problem == (
        "compiler.debug.deadlock_check=true: torch_npu 2.6.0.post5 (found by the cache) has no such option; "
        "versions that have it: 2.9.0.post6, 2.10.0.post7, 2.11.0.post3, 2.12.0, 2.12.0.post3, 2.13.0, 2.14.0."
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


def genuine(path: str, **more: Any) -> VendorOption:
    return VendorOption(**{"path": path, "kind": "OptionValue", "default": None, **more})


def described(path: str, **more: Any) -> OptionSpec:
    return _described(genuine(path, **more))


TABLE = [leaf for path, leaf in LEAVES.items() if path.split(".")[0] in ("debug", "dump_config", "experimental_config")]


def test_a_leaf_that_is_in_no_table_takes_what_its_class_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.vendor.versions.having", lambda path: ("1.0", "2.0"))
    new = described("debug.brand_new", kind="IntRangeValue", default=3, least=2)
    assert (new.kind, new.default, new.least, new.choices, new.modes) == (
        "int",
        3,
        2,
        None,
        ("max-autotune", "reduce-overhead"),
    )
    assert (new.path, new.genuine, new.twin, new.needs) == ("debug.brand_new", "debug.brand_new", None, None)
    assert new.source == "torch_npu/dynamo/torchair/configs/ of torch_npu 2.0"
    assert new.doc == "described nowhere that we know of"
    ex = described("npugraph_ex.brand._path", allowed=("a", "b"), default="a")
    assert (ex.path, ex.genuine, ex.choices, ex.modes) == (
        "npugraph_ex.brand.path",
        "brand._path",
        ("a", "b"),
        ("npugraph_ex",),
    )
    assert ex.source.startswith("torch_npu/dynamo/npugraph_ex/configs/")
    assert described("x.flag", allowed=(True, False), default=True).kind == "bool"
    assert described("x.flag", allowed=(True, False), default=True).choices is None


def test_a_leaf_that_a_wheel_widens_takes_the_values_of_both() -> None:
    leaf = attrs.evolve(LEAVES["debug.graph_dump.type"], choices=("py", "txt"))
    wider = versions_module._widened(leaf, genuine(leaf.path, allowed=("txt", "pbtxt"), default="txt"))
    assert (wider.choices, wider.default) == (("py", "txt", "pbtxt"), "txt")


def test_a_leaf_of_a_known_name_is_described_as_torchairs_and_acts_in_its_own_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("npucompose.vendor.versions.having", lambda path: ("2.0",))
    like = LEAVES["debug.graph_dump.type"]
    ex = described("npugraph_ex.debug.graph_dump.type", allowed=("py",))
    assert (ex.doc, ex.kind, ex.modes, ex.choices, ex.choices_in) == (like.doc, "str", ("npugraph_ex",), ("py",), {})
    path = described("npugraph_ex.debug.graph_dump._path")
    assert (path.path, path.genuine, path.written) == (
        "npugraph_ex.debug.graph_dump.path",
        "debug.graph_dump._path",
        True,
    )
    assert path.needs == "npugraph_ex.debug.graph_dump.type", "there it is, too"
    lock = described("npugraph_ex.other.deadlock_check", default=False, allowed=(True, False))
    assert lock.doc == LEAVES["debug.deadlock_check"].doc
    clone = described("npugraph_ex.debug.aclgraph.clone_input", default=True, allowed=(True, False))
    assert (clone.twin, clone.twin_inverted) == (None, False)
    work = _described(genuine("npugraph_ex.aoe_config.work_path", default="./"))
    assert work.needs is None, "what it needs is in no version of that package"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"allowed": (True, False)}, "bool"), ({"allowed": (False, True), "kind": "IntRangeValue"}, "bool"),
        ({"allowed": (True, False, "auto")}, "str"), ({"kind": "IntRangeValue"}, "int"),
        ({"kind": "IntListValue"}, "ints"), ({"kind": "DictOptionValue"}, "dict"),
        ({"kind": "MustExistedPathValue"}, "dir"), ({"kind": "FileValue"}, "file"),
        ({"kind": "MustExistedFileAddr"}, "file"), ({"kind": "CallableValue"}, "code"), ({"kind": "plain"}, "str"),
    ],
)  # fmt: skip
def test_the_class_of_a_genuine_leaf_says_its_kind(given: dict[str, Any], kind: str) -> None:
    assert kind_of(genuine("x", **given)) == kind


def test_the_list_of_allowed_values_is_read_as_a_tuple() -> None:
    found = VendorOption.from_dict({"path": "p", "kind": "OptionValue", "default": 1, "allowed": [1, 2]})
    assert found.allowed == (1, 2)
    assert VendorOption.from_dict({"path": "p", "kind": "plain", "default": 1}).allowed is None


def test_a_leaf_lives_from_a_version_to_a_version() -> None:
    order = versions()
    for since, until in ((0, 2), (1, 1), (3, None)):
        span = Span(since=order[since], until=None if until is None else order[until], leaf=genuine("x"))
        last = len(order) - 1 if until is None else until
        assert [_covers(span, at) for at in range(len(order))] == [since <= at <= last for at in range(len(order))]
    assert having("debug.deadlock_check") == tuple(name for name in order[5:] if name != "2.10.0")
    assert having("nothing.of.that.name") == ()


def test_the_sentence_says_where_the_version_comes_from() -> None:
    assert refused({"debug.deadlock_check": True}, "2.13.0") == ()
    (alone,) = refused({"debug.deadlock_check": True}, "2.6.0")
    assert "torch_npu 2.6.0.post5 has no such option" in alone
    assert refused({"ge_config.oo_level": "O1", "debug.deadlock_check": True}, "2.6.0") == (alone,)
    mode = str(mode_refused("npugraph_ex", "2.6.0", "by me"))
    assert mode.startswith(
        "mode=npugraph_ex: torch_npu 2.6.0.post5 (by me) has no such package; versions that have it: 2.7.1"
    )
    assert str(mode_refused("npugraph_ex", "2.6.0")).startswith("mode=npugraph_ex: torch_npu 2.6.0.post5 has no")
