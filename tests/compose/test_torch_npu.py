"""Whose option tree the engine takes: what the YAML says, what is found, else 2.13.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.compose import check as checking
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Choice, Experiment, Mode
from npucompose.targets.npu_offline import option_trees
from npucompose.targets.npu_offline.option_trees import live_tree
from npucompose.targets.npu_offline.wheel import UnpackedWheel
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.versions import genuine_tree

DEADLOCK = ("mode=max-autotune", "compiler.debug.deadlock_check=true")


def checked(*overrides: str) -> Checked:
    return check(compose(overrides), with_model=False)


@pytest.fixture(autouse=True)
def finds(monkeypatch: pytest.MonkeyPatch):
    """`finds("2.9.0")`: this machine has that torch_npu; nothing at first."""

    def find(version: str | None) -> None:
        found = None if version is None else UnpackedWheel(tree=Path("somewhere"), version=version, by="the cache")
        monkeypatch.setattr(checking, "find", lambda: found)

    find(None)
    return find


def test_where_nothing_is_found_it_is_2_13_0_and_the_provenance_says_so():
    made = checked(*DEADLOCK)
    assert made.torch_npu.version == "2.13.0"
    assert made.provenance["compiler.torch_npu_version"] == ("default; null is 2.13.0: no torch_npu was found")


def test_what_is_found_decides(finds):
    finds("2.6.0.post5")
    with pytest.raises(
        ConfigError, match=r"torch_npu 2\.6\.0\.post5 \(found by the cache\) has no such option"
    ) as caught:
        checked(*DEADLOCK)
    assert "compiler.torch_npu_version=" in str(caught.value)


def test_what_the_yaml_says_wins_over_what_is_found(finds):
    finds("2.6.0.post5")
    made = checked(*DEADLOCK, "compiler.torch_npu_version=2.9.0")
    assert made.torch_npu.version == "2.9.0.post6"
    assert made.provenance["compiler.torch_npu_version"] == "command line"


def test_a_version_whose_wheel_cannot_be_read_takes_the_next_older_tree_and_says_that_it_is_assumed(finds):
    finds("2.12.5")
    made = checked("compiler.ge_config.oo_level=O1", "mode=max-autotune")
    assert made.torch_npu.version == "2.12.5"
    assert made.provenance["compiler.torch_npu_version"].endswith(
        "null is 2.12.5: found by the cache; its tree was not read, that of 2.12.0.post3 is assumed"
    )


def test_an_option_that_only_newer_trees_know_is_unknown_and_not_refused(finds):
    finds("2.9.5")
    asked = ("mode=max-autotune", "compiler.ge_config.multistream_parallel_mode=cv", "target=null_device")
    (doubt,) = [one for one in checked(*asked).effective if one.why.startswith("unknown whether")]
    assert "torch_npu 2.9.5" in doubt.why
    assert (doubt.option, doubt.requested) == ("compiler.ge_config.multistream_parallel_mode", "cv")
    with pytest.raises(ConfigError, match=r"unknown whether torch_npu 2\.9\.5 has it"):
        checked(*asked, "strict=all")


@pytest.mark.usefixtures("warm_readers")
def test_the_tree_of_the_wheel_that_is_found_is_read_from_its_own_files(
    torch_npu_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where its version is in the table, and says another number of leaves."""
    from tests.schema.test_conformance import rewritten, with_own_configs

    configs = with_own_configs(torch_npu_tree, tmp_path / "wheel")
    before = "self.oo_level = OptionValue("
    rewritten(configs / "ge_config.py", before, f"self.added = OptionValue(None); {before}")
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    leaves = live_tree(tmp_path / "wheel")
    assert leaves is not None
    assert len(leaves) == 104
    monkeypatch.setattr(option_trees, "read_tree", lambda tree: pytest.fail("read twice"))
    assert live_tree(tmp_path / "wheel") == leaves


def test_files_that_are_those_of_a_known_version_have_its_tree_whatever_the_wheel_says(torch_npu_tree: Path):
    leaves = live_tree(torch_npu_tree)
    assert leaves is not None
    assert {leaf.path: leaf for leaf in leaves} == genuine_tree("2.13.0")
    assert live_tree(torch_npu_tree / "torch_npu") is None


def test_a_refused_option_comes_with_every_other_mistake():
    with pytest.raises(ConfigError) as caught:
        checked(*DEADLOCK, "compiler.torch_npu_version=2.6.0", "compiler.debug.aclgraph.clone_input=false")
    assert len(caught.value.problems) == 2


def test_an_option_of_another_version_alone_can_be_set_when_that_version_is_chosen():
    option = "compiler.npugraph_ex.debug.aclgraph.clone_input=false"
    made = checked("mode=npugraph_ex", "compiler.torch_npu_version=2.8.0", f"+{option}")
    assert made.experiment.compiler.changed() == {"npugraph_ex.debug.aclgraph.clone_input": False}
    with pytest.raises(
        ConfigError,
        match=r"2\.13\.0 .* has no such option; versions that have it: 2\.7\.1\.post4, 2\.8.*, 2\.10\.0",
    ):
        checked("mode=npugraph_ex", f"+{option}")


def test_without_the_plus_the_command_line_is_told_the_same():
    option = "compiler.npugraph_ex.debug.aclgraph.clone_input=false"
    with pytest.raises(ConfigError, match=r"no such option; versions that have it: 2\.7\.1\.post4, 2\.8.*, 2\.10\.0"):
        checked("mode=npugraph_ex", option)
    checked("mode=npugraph_ex", option, "compiler.torch_npu_version=2.8.0")


def test_a_mode_that_the_version_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"mode=npugraph_ex: torch_npu 2\.6\.0\.post5 .* has no such package"):
        checked("mode=npugraph_ex", "compiler.torch_npu_version=2.6.0")


def test_a_target_that_runs_the_genuine_classes_takes_no_other_version_than_theirs():
    found = UnpackedWheel(tree=Path("somewhere"), version="2.13.0", by="the cache")
    fitting, other = (
        Experiment(
            mode=Mode(name="max-autotune"),
            target=Choice(name="npu_offline"),
            compiler=CompilerOptions(torch_npu_version=version),
        )
        for version in ("2.13.0", "2.9.0")
    )
    assert checking.torch_npu_of(fitting, lambda: found, runs=True).version == "2.13.0"
    with pytest.raises(ConfigError, match=r"target=npu_offline runs the genuine classes of torch_npu 2\.13\.0"):
        checking.torch_npu_of(other, lambda: found, runs=True)


@pytest.mark.parametrize("target", ["npu", "npu_offline", "cpu"])
def test_a_version_that_was_asked_for_holds_where_none_is_found(target: str):
    options = CompilerOptions(torch_npu_version="2.9.0")
    asked = Experiment(mode=Mode(name="max-autotune"), target=Choice(name=target), compiler=options)
    found = checking.torch_npu_of(asked, lambda: None)
    assert (found.version, found.by) == ("2.9.0.post6", "compiler.torch_npu_version")
    other = UnpackedWheel(tree=Path("somewhere"), version="2.13.0", by="the cache")
    if target == "cpu":
        assert checking.torch_npu_of(asked, lambda: other).version == "2.9.0.post6"
    else:
        with pytest.raises(ConfigError, match=rf"but target={target} runs the genuine classes of torch_npu 2\.13\.0"):
            checking.torch_npu_of(asked, lambda: other, runs=True)
