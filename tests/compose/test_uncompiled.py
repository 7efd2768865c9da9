"""Options with which TorchAir compiles nothing: the mode and what acts only on a compiled graph are listed."""

from __future__ import annotations

import fnmatch

import pytest

from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.targets.npu_offline import wheel
from npucompose.vendor.compiler import EVERY_LEAF, CompilerOptions, Uncompiled, _table, uncompiled, ways
from tests.npu.needs import offline

GE, ACL, EX = "max-autotune", "reduce-overhead", "npugraph_ex"


def ineffective(*overrides: str) -> dict[str, str]:
    """{option: why} of an experiment for an NPU."""
    checked = check(compose(["target=npu_offline", *overrides]), with_model=False)
    return {one.option: one.why for one in checked.effective}


def test_a_summary_skips_the_compilation_by_default_and_everything_behind_it() -> None:
    summary = "compiler.debug.fx_summary.type=csv"
    found = ineffective(f"mode={GE}", summary, "compiler.debug.graph_dump.type=pbtxt", "passes=cse", "tiling=sink")
    behind = f"TorchAir compiles nothing with {summary}"
    assert found == {
        "mode.name": f"{summary}: TorchAir compiles nothing, as long as compiler.debug.fx_summary.skip_compile=true "
        "(its default), and runs eagerly: the graph of AOTAutograd",
        "compiler.debug.graph_dump.type": behind,
        "compiler.experimental_config.tiling_schedule_optimize": behind,
        "passes.cse": behind,
    }
    assert ineffective(f"mode={GE}", summary, "compiler.debug.fx_summary.skip_compile=false") == {}


@pytest.mark.parametrize(
    ("mode", "asked", "idle"),
    [
        (GE, ["debug.data_dump.type=npy", "debug.graph_dump.type=py"], ["debug.graph_dump.type"]),
        (ACL, ["debug.data_dump.type=npy", "debug.aclgraph.clone_input=false"], ["debug.aclgraph.clone_input"]),
        (ACL, ["dump_config.enable_dump=true"], None),
        (ACL, ["dump_config.enable_dump=true", "dump_config.data_dump_stage=original"], []),
        (GE, ["debug.run_eagerly=true", "debug.graph_dump.type=py", "ge_config.oo_level=O1"], ["ge_config.oo_level"]),
        (
            ACL,
            [
                "debug.run_eagerly=true",
                "debug.aclgraph.remove_cat_ops=false",
                "debug.aclgraph.enable_output_clone=true",
            ],
            ["debug.aclgraph.enable_output_clone"],
        ),
        (EX, ["npugraph_ex.dump_tensor_data=true"], None),
        (EX, ["npugraph_ex.dump_tensor_data=true", "npugraph_ex.data_dump_stage=original"], []),
        (EX, ["npugraph_ex.force_eager=true", "npugraph_ex.inplace_pass=false"], []),
        (
            EX,
            ["npugraph_ex.force_eager=true", "npugraph_ex.super_kernel_optimize=true"],
            ["npugraph_ex.super_kernel_optimize"],
        ),
        (
            EX,
            [
                "npugraph_ex.force_eager=true",
                "npugraph_ex.super_kernel_optimize=true",
                "npugraph_ex.static_kernel_compile=true",
            ],
            [],
        ),
    ],
)
def test_each_way_leaves_the_options_that_torchair_reads_before_it(
    mode: str, asked: list[str], idle: list[str] | None
) -> None:
    found = ineffective(f"mode={mode}", *(f"compiler.{one}" for one in asked))
    assert set(found) == (set() if idle is None else {"mode.name", *(f"compiler.{path}" for path in idle)})


@pytest.mark.parametrize("mode", [ACL, GE])
def test_passes_run_where_torchair_s_hooks_are_called(mode: str) -> None:
    assert "passes.cse" not in ineffective(f"mode={mode}", "compiler.debug.run_eagerly=true", "passes=cse")
    assert "passes.cse" in ineffective(f"mode={mode}", "compiler.debug.data_dump.type=npy", "passes=cse")


def test_a_graph_that_is_not_compiled_is_not_cached_but_one_that_would_be_captured_is() -> None:
    cached = (f"mode={ACL}", "compile.cache=true")
    assert "compile.cache" in ineffective(*cached, "compiler.debug.data_dump.type=npy")
    assert "compile.cache" not in ineffective(*cached, "compiler.debug.run_eagerly=true")


def test_strict_all_refuses_what_would_only_be_listed() -> None:
    with pytest.raises(ConfigError) as refused:
        ineffective(f"mode={EX}", "compiler.npugraph_ex.force_eager=true", "strict=all")
    assert refused.value.problems[0].startswith("mode.name: compiler.npugraph_ex.force_eager=true: TorchAir compiles")


@pytest.mark.parametrize("target", ["cpu", "null_device"])
def test_where_torchair_does_not_run_its_options_say_nothing_of_the_mode(target: str) -> None:
    checked = check(compose([f"target={target}", "mode=max-autotune", "compiler.debug.run_eagerly=true"]))
    assert "mode.name" not in [one.option for one in checked.effective]


@pytest.mark.parametrize("way", ways(), ids=lambda way: f"{next(iter(way.when))} {way.modes[0]}")
def test_each_row_names_options_that_there_are_in_its_modes(way: Uncompiled) -> None:
    patterns = [*way.acts, *(one for more in way.acts_with.values() for one in more), *_table()["everywhere"]]
    known = [path for path, leaf in EVERY_LEAF.items() if set(way.modes) & set(leaf.modes)]
    in_ge_alone = {"debug.fx_summary.*", "experimental_config.npu_fx_pass"}
    for pattern in patterns:
        of_this_package = pattern.startswith("npugraph_ex.") == (way.modes == (EX,))
        assert fnmatch.filter(known, pattern) or pattern in in_ge_alone or not of_this_package
    for path in (*way.when, *way.acts_with):
        assert path in known
    values = {path: value for path, value in way.when.items() if value is not None}
    values |= {path: EVERY_LEAF[path].choices[0] for path, value in way.when.items() if value is None}  # type: ignore[index]
    assert [uncompiled(CompilerOptions(values=values), mode) for mode in way.modes] == [way] * len(way.modes)


@offline
@pytest.mark.parametrize("way", ways(), ids=lambda way: f"{next(iter(way.when))} {way.modes[0]}")
def test_each_row_s_lines_are_where_the_wheel_asks_for_its_option(way: Uncompiled) -> None:
    """With the lines of another place the table would be a memory."""
    dynamo = wheel.locate() / "torch_npu" / "dynamo"
    file, _, lines = way.source.partition(",")[0].partition(":")
    first, _, last = lines.partition("-")
    text = "\n".join((dynamo / file).read_text().splitlines()[int(first) - 1 : int(last)])
    asked = next(iter(way.when)).removeprefix("npugraph_ex.")
    named = {"debug.fx_summary.type": "fx_summary.enabled", "debug.data_dump.type": "data_dump.enabled"}
    assert named.get(asked, asked.removeprefix("debug.")) in text
