"""The option table, and CompilerOptions as the value made from it."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.vendor.compiler import LEAVES, CompilerOptions
from npucompose.vendor.option_specs import ELSEWHERE, OptionSpec
from npucompose.vendor.versions import NPUGRAPH_EX_LEAVES, TORCHAIR

LETTERS = string.ascii_letters + string.digits + string.punctuation + " "
TEXT = st.text(LETTERS)
SETTABLE = [leaf for leaf in LEAVES.values() if leaf.set_by == "compiler"]
NO_FILES = [leaf for leaf in SETTABLE if leaf.kind not in ("dir", "file")]


def problems_of(tree: Any, path: str = "compiler") -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        CompilerOptions.of_tree(tree, path)
    return caught.value.problems


def tree_of(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        at = tree
        for group in groups:
            at = at.setdefault(group, {})
        at[name] = value
    return tree


def values_of(leaf: OptionSpec) -> st.SearchStrategy[Any]:
    """Any value that the leaf takes."""
    if leaf.choices is not None:
        return st.sampled_from(leaf.choices)
    words = {
        "bool": st.booleans(),
        "int": st.integers(leaf.least or 0, 2**63 - 1).filter(lambda v: v not in leaf.refused),
        "str": st.from_regex(re.compile(leaf.pattern or "[a-z:0-9]+", re.ASCII), fullmatch=True, alphabet=LETTERS),
        "ints": st.lists(st.integers(), max_size=4),
        "names": st.lists(st.text(LETTERS, min_size=1), max_size=4),
        "dict": st.dictionaries(TEXT, st.one_of(st.integers(), TEXT, st.booleans(), st.none()), max_size=3),
    }
    return words.get(leaf.kind, st.text(LETTERS, min_size=1))


def test_both_trees_have_every_leaf_of_the_genuine_ones():
    assert len(TORCHAIR) == 73
    assert len(NPUGRAPH_EX_LEAVES) == 30
    assert len(LEAVES) == 103


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=lambda leaf: leaf.path)
def test_every_leaf_is_documented_sourced_and_takes_its_own_default(leaf: OptionSpec):
    assert leaf.doc
    assert "\n" not in leaf.doc
    assert leaf.source
    assert leaf.modes or leaf.path in ("export.weight_name", "export.inputs_name")
    assert leaf.set_by == "compiler" or leaf.set_by in ELSEWHERE
    assert leaf.kind == "code" or leaf.checked(leaf.default) == leaf.default
    assert leaf.needs is None or leaf.needs in LEAVES
    assert leaf.twin is None or LEAVES[leaf.twin].kind == leaf.kind
    assert leaf.twin is None or leaf.twin_inverted == (LEAVES[leaf.twin].default != leaf.default)


def test_nothing_asked_is_nothing_changed():
    options = CompilerOptions()
    assert options.changed() == {}
    assert options["ge_config.oo_level"] == "O3"
    assert CompilerOptions.of_tree(options.as_tree()) == options


def test_defaults_spelled_out_are_the_same_value():
    assert CompilerOptions.of_tree({"ge_config": {"oo_level": "O3"}}) == CompilerOptions()


def test_a_changed_option_is_found_under_its_path():
    options = CompilerOptions.of_tree({"debug": {"aclgraph": {"clone_input": False}}})
    assert options["debug.aclgraph.clone_input"] is False
    assert options.changed() == {"debug.aclgraph.clone_input": False}
    assert options.as_tree(changed_only=True) == {"debug": {"aclgraph": {"clone_input": False}}}


def test_with_values_changes_and_resets():
    sink = "experimental_config.tiling_schedule_optimize"
    options = CompilerOptions().with_values({sink: True})
    assert options[sink] is True
    assert options.with_values({sink: False}) == CompilerOptions()


def test_with_values_checks_what_it_is_given():
    with pytest.raises(ConfigError, match="unknown option 'tiling'"):
        CompilerOptions().with_values({"experimental_config.tiling": True})


@given(st.sampled_from(NO_FILES).flatmap(lambda leaf: st.tuples(st.just(leaf.path), values_of(leaf))))
def test_every_allowed_value_survives_yaml_json_and_back(path_and_value: tuple[str, Any]):
    path, value = path_and_value
    options = CompilerOptions.of_tree(tree_of({path: value}))
    for changed_only in (True, False):
        written = json.loads(json.dumps(options.as_tree(changed_only)))
        assert CompilerOptions.of_tree(written) == options


@given(st.sampled_from(SETTABLE), st.one_of(st.floats(), st.binary(), st.just(["x", 1.5])))
def test_a_value_of_no_possible_type_is_refused_with_the_full_path(leaf: OptionSpec, value: Any):
    (problem,) = problems_of(tree_of({leaf.path: value}))
    assert problem.startswith(f"compiler.{leaf.path} takes {leaf.allowed()}; given ")


def test_all_mistakes_are_reported_at_once():
    found = problems_of(
        {
            "ge_config": {"oo_level": "O2", "aicore": "24|48"},
            "npugraph_ex": {"capture_limit": 0},
            "dump_config": {"dump_path": "/no/such/folder"},
        }
    )
    assert found == (
        "compiler.ge_config.oo_level takes O1 | O3; given O2 (str).",
        "unknown option 'aicore' @ compiler.ge_config. Did you mean 'aicore_num'? Choices: enable_single_stream, "
        "oo_level, oo_constant_folding, oo_dead_code_elimination, export_compile_stat, aicore_num, "
        "optimization_switch, multistream_parallel_mode.",
        "compiler.npugraph_ex.capture_limit takes an integer >= 1; given 0 (int).",
        "compiler.dump_config.dump_path names a folder that does not exist: /no/such/folder.",
    )


def test_a_near_value_is_suggested():
    (problem,) = problems_of({"npugraph_ex": {"capture_error_mode": "Global"}})
    assert problem.endswith("given Global (str). Did you mean 'global'?")


def test_an_option_at_the_wrong_level_is_told_where_it_lives():
    (problem,) = problems_of({"oo_level": "O1"})
    assert problem.startswith("unknown option 'oo_level' @ compiler. Did you mean compiler.ge_config.oo_level?")


def test_a_name_in_both_trees_is_told_of_both():
    (problem,) = problems_of({"clone_input": False})
    assert "compiler.debug.aclgraph.clone_input or compiler.npugraph_ex.clone_input" in problem


def test_a_group_given_a_value_says_what_is_in_it():
    (problem,) = problems_of({"fusion_config": 5})
    assert problem == "compiler.fusion_config takes a mapping of options; given 5. Options there: fusion_switch_file."
    (whole,) = problems_of(5)
    assert whole.startswith("compiler takes a mapping of options; given 5. Options there: debug, aoe_config, export, ")
    (of_another,) = problems_of({"npugraph_ex": {"debug": 5}})
    assert of_another.startswith(
        "compiler.npugraph_ex.debug takes a mapping of options; given 5. Options there: graph_"
    )
    assert of_another.endswith("aph_dump, data_dump, fx_summary, run_eagerly, aclgraph.")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("mode", "reduce-overhead", "write mode="),
        ("npugraph_ex.mode", "npugraph_ex", "write mode="),
        ("post_grad_custom_pre_pass", "f", "write passes="),
        ("npugraph_ex.post_grad_custom_post_pass", "f", "write passes="),
    ],
)
def test_what_is_set_elsewhere_is_refused_with_where(path: str, value: Any, words: str):
    (problem,) = problems_of(tree_of({path: value}))
    assert problem.startswith(f"compiler.{path} is not set under compiler: ")
    assert words in problem


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("experimental_config.frozen_parameter", 1),
        ("experimental_config.frozen_parameter", "true"),
        ("debug.aclgraph.static_capture_size_limit", True),
        ("debug.aclgraph.static_capture_size_limit", "64"),
        ("debug.aclgraph.static_capture_size_limit", 2**63),
        ("experimental_config.static_model_ops_lower_limit", 1),
        ("experimental_config.static_model_ops_lower_limit", -2),
        ("ge_config.oo_level", None),
        ("ge_config.aicore_num", "24"),
        ("ge_config.optimization_switch", "AddNFusionPass:of"),
        ("dump_config.dump_step", "1,2"),
        ("dump_config.dump_config_path", "acl.txt"),
        ("npugraph_ex._vllm_aclnn_static_kernel_sym_range", [1, "2"]),
        ("npugraph_ex.super_kernel_optimize_options", {"early_start": {1}}),
        ("npugraph_ex.super_kernel_optimize_options", {"aggressive_opt_strategies": {1: 2}}),
        ("debug.data_dump.filter", "mm"),
        ("debug.data_dump.filter", ["mm", 3]),
        ("aclgraph_config.use_custom_pool", ""),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: Any):
    (problem,) = problems_of(tree_of({path: value}))
    assert problem.startswith(f"compiler.{path} takes ")


@pytest.mark.parametrize(
    ("path", "value", "kept"),
    [
        ("ge_config.export_compile_stat", 1, "1"),
        (
            "npugraph_ex.super_kernel_optimize_options",
            {"dcci_disable_on_kernel": (".*",), "aggressive_opt_strategies": {"event_breaker_bypass": 1}},
            {"aggressive_opt_strategies": {"event_breaker_bypass": 1}, "dcci_disable_on_kernel": [".*"]},
        ),
        ("aoe_config.aoe_mode", 2, "2"),
        ("dump_config.dump_step", 5, "5"),
        ("dump_config.dump_step", "0|3-5|10", "0|3-5|10"),
        ("ge_config.aicore_num", "24|48", "24|48"),
        ("ge_config.optimization_switch", "A:off;B:on", "A:off;B:on"),
        ("npugraph_ex._vllm_aclnn_static_kernel_sym_range", [2, 4], (2, 4)),
        ("ge_config.oo_constant_folding", False, False),
        ("debug.data_dump.filter", ["mm", "aten.add*"], ("mm", "aten.add*")),
    ],
)
def test_a_value_is_kept_as_the_genuine_class_wants_it(path: str, value: Any, kept: Any):
    assert CompilerOptions.of_tree(tree_of({path: value})).changed() == {path: kept}


def test_a_long_wrong_dump_step_is_refused_without_backtracking():
    problems_of({"dump_config": {"dump_step": "1" * 5000 + "x"}})


def test_only_changed_paths_have_to_exist(tmp_path: Path):
    switches = tmp_path / "fusion.cfg"
    tree = {"fusion_config": {"fusion_switch_file": str(switches)}, "dump_config": {"dump_path": "./"}}
    assert problems_of(tree) == (
        f"compiler.fusion_config.fusion_switch_file names a file that does not exist: {switches}.",
    )
    switches.write_text("{}")
    options = CompilerOptions.of_tree(tree)
    switches.unlink()
    assert CompilerOptions(values=options.changed()) == options, "a recorded value can be read where the file is not"


def test_the_path_of_the_tree_is_in_every_problem():
    found = problems_of({"ge_config": {"oo_level": "O2"}, "x": 1, "mode": "npugraph_ex"}, "recipe.compiler")
    assert all("recipe.compiler" in problem for problem in found)
    assert len(found) == 3


def test_settable_dump_paths_keep_the_genuine_attribute_name():
    assert LEAVES["debug.graph_dump.path"].genuine_path == "debug.graph_dump._path"
    assert LEAVES["npugraph_ex.capture_limit"].genuine_path == "capture_limit"
    kernel = LEAVES["experimental_config.aclgraph._super_kernel_optimize"]
    assert kernel.genuine_path == kernel.path


def test_the_schema_loads_no_torch():
    code = (
        "import sys, npucompose.vendor.compiler, npucompose.vendor.compiler\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
