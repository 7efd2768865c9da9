"""conf/compiler under Hydra: an option is overridden without `+`, and CompilerOptions reads what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from npucompose.schema.compiler import CompilerOptions

CONF = Path(__file__).parents[2] / "conf"


def composed(*overrides: str) -> CompilerOptions:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=["+compiler=default", *overrides])
    tree: Any = OmegaConf.to_container(config.compiler, resolve=True)
    return CompilerOptions.of_tree(tree)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("compiler.ge_config.oo_level=O1", "ge_config.oo_level", "O1"),
        ("compiler.ge_config.export_compile_stat=0", "ge_config.export_compile_stat", "0"),
        ("compiler.ge_config.aicore_num=24|48", "ge_config.aicore_num", "24|48"),
        ("compiler.dump_config.dump_step='0|3-5'", "dump_config.dump_step", "0|3-5"),
        ("compiler.npugraph_ex.capture_limit=2", "npugraph_ex.capture_limit", 2),
        (
            "compiler.npugraph_ex._vllm_aclnn_static_kernel_sym_range=[2,4]",
            "npugraph_ex._vllm_aclnn_static_kernel_sym_range",
            (2, 4),
        ),
        (
            "compiler.experimental_config.aclgraph._super_kernel_optimize_options={dcci_disable_on_kernel: ['.*']}",
            "experimental_config.aclgraph._super_kernel_optimize_options",
            {"dcci_disable_on_kernel": [".*"]},
        ),
    ],
)
def test_an_override_on_the_command_line_arrives(override: str, path: str, value: Any):
    assert composed(override).changed() == {path: value}


def test_the_default_choice_asks_for_nothing():
    assert composed() == CompilerOptions()


def test_the_npugraph_ex_choice_has_no_torchair_options():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert compose(overrides=["+compiler=npugraph_ex"]).compiler.npugraph_ex.clone_input is True
        with pytest.raises(ConfigCompositionException):
            compose(overrides=["+compiler=npugraph_ex", "compiler.ge_config.oo_level=O1"])
