"""conf/compiler under Hydra: an option is overridden without `+`, and CompilerOptions reads what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.compose.tree import compose
from npucompose.vendor.compiler import CompilerOptions


def composed(*overrides: str) -> CompilerOptions:
    found = compose(overrides)
    assert found.problems == ()
    return CompilerOptions.of_tree(found.tree["compiler"])


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


def test_the_npugraph_ex_choice_asks_for_nothing_and_takes_options_of_both_packages():
    assert composed("compiler=npugraph_ex") == CompilerOptions()
    both = ["compiler.ge_config.oo_level=O1", "+compiler.npugraph_ex.clone_input=false"]
    assert composed("compiler=npugraph_ex", *both).changed() == {
        "ge_config.oo_level": "O1",
        "npugraph_ex.clone_input": False,
    }
