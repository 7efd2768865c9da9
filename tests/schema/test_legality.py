"""What a mode and a target cannot honour, and what `strict` makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.compose import legality as rules
from npucompose.errors import ConfigError
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Choice, Experiment, Mode
from npucompose.targets.base import ModeSupport
from npucompose.vendor.compiler import LEAVES, CompilerOptions, idle_options, illegal_in_mode, twins, waiting
from npucompose.vendor.option_specs import OptionSpec

COMPILING = ("max-autotune", "reduce-overhead", "npugraph_ex")
NOTHING: frozenset[str] = frozenset()


def asking(**values: Any) -> CompilerOptions:
    """`asking(ge_config__oo_level="O1")`: two underscores are the dot."""
    return CompilerOptions(values={path.replace("__", "."): value for path, value in values.items()})


def legality(
    options: CompilerOptions, *, mode: Any, target: str, honoured: frozenset[str], strict: Any = "mode"
) -> Any:
    """What is made of the compiler's options on a target that honours these."""
    asked = Experiment(mode=Mode(name=mode), target=Choice(name=target), compiler=options, strict=strict)
    device: Any = SimpleNamespace(name=target, support=lambda mode: ModeSupport(options=honoured))
    return list(rules.judged(rules.COMPILER_RULES, rules.LegalityCase(experiment=asked, target=device)))


def another_value(leaf: OptionSpec) -> Any:
    others = [c for c in leaf.choices or () if c != leaf.default]
    if others:
        return others[0]
    plain = {"bool": not leaf.default, "int": 7, "ints": (2, 4), "names": ("mm",), "dict": {"a": 1}, "file": "acl.json"}
    return plain.get(leaf.kind, leaf.example or "x")


CHANGEABLE = [leaf for leaf in LEAVES.values() if leaf.set_by == "compiler" and leaf.choices != (leaf.default,)]


@pytest.mark.parametrize("leaf", CHANGEABLE, ids=lambda leaf: leaf.path)
@pytest.mark.parametrize("mode", COMPILING)
def test_a_changed_option_is_illegal_exactly_where_it_does_not_act(leaf: OptionSpec, mode: str):
    value = another_value(leaf)
    illegal = illegal_in_mode(CompilerOptions(values={leaf.path: value}), mode)
    acts = mode in leaf.modes and value in leaf.choices_in.get(mode, (value,))
    assert (illegal == {}) is acts
    for reason in illegal.values():
        assert f"compiler.{leaf.path}=" in reason
        assert f"has no effect in mode={mode}" in reason
        assert all(m in reason for m in leaf.modes)


def test_no_default_is_illegal_anywhere():
    assert [illegal_in_mode(CompilerOptions(), mode) for mode in COMPILING] == [{}, {}, {}]


def test_the_reason_says_where_the_option_acts():
    assert illegal_in_mode(asking(ge_config__oo_level="O1"), "reduce-overhead") == {
        "ge_config.oo_level": "compiler.ge_config.oo_level=O1 has no effect in mode=reduce-overhead; "
        "it takes effect in: max-autotune."
    }


def test_tiling_sink_acts_in_max_autotune_only():
    sink = CompilerOptions(values={"experimental_config.tiling_schedule_optimize": True})
    assert illegal_in_mode(sink, "max-autotune") == {}
    assert set(illegal_in_mode(sink, "reduce-overhead")) == {"experimental_config.tiling_schedule_optimize"}
    assert set(illegal_in_mode(sink, "npugraph_ex")) == {"experimental_config.tiling_schedule_optimize"}


def test_a_value_that_only_one_mode_takes_names_what_the_other_takes():
    (reason,) = illegal_in_mode(asking(debug__graph_dump__type="pbtxt"), "reduce-overhead").values()
    assert reason == (
        "compiler.debug.graph_dump.type=pbtxt has no effect in mode=reduce-overhead, which takes: py; "
        "it takes effect in: max-autotune."
    )
    assert illegal_in_mode(asking(debug__graph_dump__type="py"), "reduce-overhead") == {}


def test_the_twin_of_the_other_tree_is_named():
    (reason,) = illegal_in_mode(asking(npugraph_ex__clone_input=False), "reduce-overhead").values()
    assert reason.endswith("In mode=reduce-overhead write compiler.debug.aclgraph.clone_input=false.")


def test_an_inverted_twin_is_named_with_the_inverted_value():
    ask = asking(debug__aclgraph__disable_reinplace_inplaceable_ops_pass=True)
    (reason,) = illegal_in_mode(ask, "npugraph_ex").values()
    assert reason.endswith("In mode=npugraph_ex write compiler.npugraph_ex.inplace_pass=false.")


def test_a_twin_that_does_not_act_either_is_not_named():
    (reason,) = illegal_in_mode(asking(npugraph_ex__clone_input=False), "max-autotune").values()
    assert reason.endswith("it takes effect in: npugraph_ex.")


def test_twins_go_both_ways():
    both = twins()
    assert len(both) == 48
    assert all(both[both[path].path].path == path for path in both)


def test_an_option_the_target_does_not_honour_is_listed_and_not_refused():
    assert legality(asking(ge_config__oo_level="O1"), mode="max-autotune", target="cpu", honoured=NOTHING) == [
        Effective(
            option="compiler.ge_config.oo_level",
            requested="O1",
            effective="O3",
            why="compiler.ge_config.oo_level=O1 has no meaning on target=cpu in mode=max-autotune.",
        )
    ]


def test_an_option_that_the_target_honours_is_not_listed():
    ask = asking(debug__aclgraph__clone_input=False)
    honoured = frozenset({"debug.aclgraph.clone_input"})
    assert legality(ask, mode="reduce-overhead", target="cpu", honoured=honoured) == []


def test_what_is_illegal_in_the_mode_is_not_also_a_matter_of_the_target():
    ask = asking(ge_config__oo_level="O1", debug__aclgraph__clone_input=False)
    found = {path: refused_by for path, _, refused_by in idle_options(ask, "reduce-overhead", "cpu", NOTHING)}
    assert found == {"ge_config.oo_level": ("mode", "all"), "debug.aclgraph.clone_input": ("all",)}


def test_all_illegal_options_are_refused_at_once():
    ask = asking(ge_config__oo_level="O1", npugraph_ex__clone_input=False)
    with pytest.raises(ConfigError) as caught:
        legality(ask, mode="reduce-overhead", target="cpu", honoured=NOTHING)
    assert [problem.split("=")[0] for problem in caught.value.problems] == [
        "compiler.ge_config.oo_level",
        "compiler.npugraph_ex.clone_input",
    ]


def test_strict_off_only_reports():
    ask = asking(ge_config__oo_level="O1")
    (entry,) = legality(ask, mode="reduce-overhead", target="cpu", honoured=NOTHING, strict="off")
    assert entry.why.endswith("it takes effect in: max-autotune.")


def test_strict_all_refuses_what_the_target_does_not_honour():
    with pytest.raises(ConfigError, match=r"has no meaning on target=cpu in mode=max-autotune\. \(strict=all\)"):
        legality(asking(ge_config__oo_level="O1"), mode="max-autotune", target="cpu", honoured=NOTHING, strict="all")


def test_an_option_whose_switch_is_off_is_listed():
    ask = asking(dump_config__dump_mode="input")
    honoured = frozenset({"dump_config.dump_mode", "dump_config.enable_dump"})
    (entry,) = legality(ask, mode="max-autotune", target="npu", honoured=honoured)
    assert entry.why == (
        "compiler.dump_config.dump_mode=input takes effect only together with compiler.dump_config.enable_dump, "
        "which is off."
    )
    assert waiting(ask.with_values({"dump_config.enable_dump": True}), "max-autotune") == {}


@pytest.mark.parametrize("strict", ["off", "mode", "all"])
def test_eager_lists_everything_and_refuses_nothing(strict: Any):
    ask = asking(ge_config__oo_level="O1", npugraph_ex__clone_input=False, dump_config__dump_mode="input")
    entries = legality(ask, mode="eager", target="cpu", honoured=NOTHING, strict=strict)
    assert [entry.option for entry in entries] == [f"compiler.{path}" for path in ask.changed()]
    assert all(entry.why.endswith("has no effect: eager compiles nothing.") for entry in entries)


def test_dumping_acts_in_reduce_overhead_although_torchair_warns():
    assert illegal_in_mode(asking(dump_config__enable_dump=True), "reduce-overhead") == {}


WARNED_IN_MAX_AUTOTUNE = {
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": True,
    "experimental_config.aclgraph._aclnn_static_shape_kernel": True,
    "experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir": "kernels",
    "debug.aclgraph.clone_input": False,
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": True,
}
WARNED_IN_ACLGRAPH = {
    "inference_config.dynamic_gears_merge_policy": "product",
    "debug.fx_summary.type": "csv",
    "ge_config.export_compile_stat": "1",
    "export.experimental.auto_atc_config_generated": True,
    "export.experimental.enable_record_nn_module_stack": True,
    "ge_config.enable_single_stream": True,
    "ge_config.oo_level": "O1",
    "ge_config.oo_constant_folding": True,
    "ge_config.oo_dead_code_elimination": False,
    "experimental_config.topology_sorting_strategy": "BFS",
    "experimental_config.cc_parallel_enable": True,
    "experimental_config.enable_ref_data": True,
    "experimental_config.tiling_schedule_optimize": True,
    "experimental_config.enable_view_optimize": False,
    "fusion_config.fusion_switch_file": "fusion.cfg",
    "experimental_config.static_model_ops_lower_limit": 4,
    "ge_config.aicore_num": "24|48",
    "ge_config.optimization_switch": "AddNFusionPass:off",
    "ge_config.multistream_parallel_mode": "cv",
}


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("max-autotune", WARNED_IN_MAX_AUTOTUNE),
        ("reduce-overhead", WARNED_IN_ACLGRAPH),
        ("npugraph_ex", WARNED_IN_MAX_AUTOTUNE | WARNED_IN_ACLGRAPH),
    ],
)
def test_what_torchair_2_13_only_warns_about_is_illegal(mode: str, values: dict[str, Any]):
    assert set(illegal_in_mode(CompilerOptions(values=values), mode)) == set(values)
