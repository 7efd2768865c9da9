"""A CompilerConfig object becomes YAML, as its script does; what has no YAML is refused or listed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from npucompose.errors import ConfigError
from npucompose.npu.torchair.config import node_filter
from npucompose.recipe import of_config
from npucompose.recipe.vendor_options import Unread
from npucompose.schema.experiment import Experiment
from npucompose.vendor.compiler import LEAVES
from tests.recipe.fakes import FakeConfig
from tests.recipe.importing import experiments
from tests.searches import examples


@settings(max_examples=examples(60), deadline=None)
@given(experiments())
def test_a_live_configuration_gives_the_same_tree_as_its_script(experiment: Experiment) -> None:
    package = "npugraph_ex" if experiment.mode.name == "npugraph_ex" else "torchair"
    config = FakeConfig(package)
    config.mode = experiment.mode.name
    for path, value in experiment.compiler.changed().items():
        *groups, name = LEAVES[path].genuine_path.split(".")
        at = config
        for group in groups:
            at = getattr(at, group)
        setattr(at, name, node_filter(value) if LEAVES[path].kind == "names" else value)
    tree = of_config(config)
    assert tree["mode"] == {"name": experiment.mode.name}
    assert tree.get("compiler", {}) == experiment.compiler.as_tree(changed_only=True)


def test_a_live_configuration_with_a_pass_is_refused_or_listed() -> None:
    config = FakeConfig()
    config.post_grad_custom_pre_pass = print
    with pytest.raises(ConfigError, match=r"post_grad_custom_pre_pass.*passes=\[\.\.\.\]"):
        of_config(config)
    unread: list[Unread] = []
    assert of_config(config, unread) == {"mode": {"name": "max-autotune"}}
    assert len(unread) == 1


def test_a_filter_of_somebody_else_is_refused() -> None:
    config = FakeConfig()
    config.debug.data_dump.filter = lambda node: node
    with pytest.raises(ConfigError, match=r"debug\.data_dump\.filter = <function"):
        of_config(config)


def test_an_object_that_is_no_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="a int has none of the options"):
        of_config(3)
