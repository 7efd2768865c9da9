"""Whose option tree the engine takes: what the YAML says, what is found, else 2.13.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.compose import torch_npu
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.schema.compiler import CompilerOptions
from npucompose.targets.npu_offline.wheel import Found

DEADLOCK = ("mode=max-autotune", "compiler.debug.deadlock_check=true")


def checked(*overrides: str) -> Checked:
    return check(compose(overrides), with_model=False)


@pytest.fixture(autouse=True)
def finds(monkeypatch: pytest.MonkeyPatch):
    """`finds("2.9.0")`: this machine has that torch_npu; nothing at first."""

    def find(version: str | None) -> None:
        found = None if version is None else Found(tree=Path("somewhere"), version=version, by="the cache")
        monkeypatch.setattr(torch_npu, "find", lambda: found)

    find(None)
    return find


def test_where_nothing_is_found_it_is_2_13_0_and_the_provenance_says_so():
    made = checked(*DEADLOCK)
    assert made.torch_npu.version == "2.13.0"
    assert made.provenance["compiler.torch_npu_version"] == (
        "conf/compiler/default.yaml; null is 2.13.0: no torch_npu was found"
    )


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


def test_an_installed_version_that_is_not_known_takes_the_next_older_tree_and_says_so(finds):
    finds("2.12.0")
    assert checked().torch_npu == torch_npu.TorchNpu(
        version="2.11.0.post3", by="found by the cache as 2.12.0, whose tree is not known"
    )


def test_a_refused_option_comes_with_every_other_mistake():
    with pytest.raises(ConfigError) as caught:
        checked(*DEADLOCK, "compiler.torch_npu_version=2.6.0", "compiler.debug.aclgraph.clone_input=false")
    assert len(caught.value.problems) == 2


def test_an_option_of_another_version_alone_can_be_set_when_that_version_is_chosen():
    option = "compiler.npugraph_ex.debug.aclgraph.clone_input=false"
    made = checked("mode=npugraph_ex", "compiler.torch_npu_version=2.8.0", f"+{option}")
    assert made.experiment.compiler.changed() == {"npugraph_ex.debug.aclgraph.clone_input": False}
    with pytest.raises(
        ConfigError, match=r"2\.13\.0 .* has no such option; versions that have it: 2\.7\.1\.post4, 2\.8"
    ):
        checked("mode=npugraph_ex", f"+{option}")


def test_without_the_plus_the_command_line_is_told_how_to_write_it():
    option = "compiler.npugraph_ex.debug.aclgraph.clone_input=false"
    with pytest.raises(ConfigError, match=r"option of torch_npu 2\.7\.1\.post4, 2\.8\.0\.post4 .* write \+compiler"):
        checked("mode=npugraph_ex", option)


def test_a_mode_that_the_version_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"mode=npugraph_ex: torch_npu 2\.6\.0\.post5 .* has no such package"):
        checked("mode=npugraph_ex", "compiler.torch_npu_version=2.6.0")


def test_a_target_that_runs_the_genuine_classes_takes_no_other_version_than_theirs():
    found = Found(tree=Path("somewhere"), version="2.13.0", by="the cache")
    torch_npu._same("2.13.0", found, "npu_offline")
    with pytest.raises(ConfigError, match=r"target=npu_offline runs the genuine classes of torch_npu 2\.13\.0"):
        torch_npu._same("2.9.0.post6", found, "npu_offline")


@pytest.mark.parametrize("target", ["npu", "npu_offline", "cpu"])
def test_a_version_that_was_asked_for_holds_where_none_is_found(target: str):
    from npucompose.schema.experiment import Choice, Experiment, Mode

    options = CompilerOptions(torch_npu_version="2.9.0")
    asked = Experiment(mode=Mode(name="max-autotune"), target=Choice(name=target), compiler=options)
    found = torch_npu.torch_npu_of(asked, lambda: None)
    assert (found.version, found.by) == ("2.9.0.post6", "compiler.torch_npu_version")
    other = Found(tree=Path("somewhere"), version="2.13.0", by="the cache")
    if target == "cpu":
        assert torch_npu.torch_npu_of(asked, lambda: other).version == "2.9.0.post6"
    else:
        with pytest.raises(ConfigError, match=rf"but target={target} runs the genuine classes of torch_npu 2\.13\.0"):
            torch_npu.torch_npu_of(asked, lambda: other)
