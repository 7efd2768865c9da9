"""streams.profile: kernels take the times of an NPU's profile, and the prediction says which rows it used."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from npucompose.errors import ConfigError, PlanError
from npucompose.passes import PASSES
from npucompose.results.streams import ProfileUse
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.profile_table import Interval, Line, ProfileTable, SizeTimes
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.streams.calibrated import MODEL_DOUBT, Feature, of_node, of_row
from npucompose.streams.cost import ResultSizes
from npucompose.streams.problem import Problem
from npucompose.vendor.devices import ATLAS_A2, DeviceModel
from tests.sample_graphs import mm_abs_sub, traced

CAN = Capabilities(target="npu", mode="reduce-overhead", device_model=ATLAS_A2)
CPU = attrs.evolve(ATLAS_A2, name="a CPU", cube=0)
X = torch.randn(64, 64)
BYTES = 64 * 64 * 4


def entry(size: float, us: float, rows: int, spread: float = 0.1) -> tuple[SizeTimes, ...]:
    return (SizeTimes(size=size, low_us=us, middle_us=us, high_us=us * (1 + spread), rows=rows),)


TABLE = ProfileTable(
    soc="Ascend910B1", cann="8.5.0", files=("kernel_details.csv",), rows=40, flops_per_byte=195.0,
    families={
        "product": {"mm": entry(2 * BYTES, 30.0, 9)},
        "pointwise": {"abs": entry(2 * BYTES, 7.0, 6), "add": entry(3 * BYTES, 5.0, 8)},
    },
    lines={name: Line(start_us=2.0, us_per_byte=1e-4) for name in ("product", "pointwise")},
    repeats=Interval(low=0.9, high=1.2, rows=20), new_sizes={"pointwise": Interval(low=0.5, high=2.0, rows=5)},
)  # fmt: skip


@pytest.fixture
def wanted(tmp_path: Path) -> Streams:
    (tmp_path / "times.json").write_text(TABLE.as_text())
    return Streams(profile=str(tmp_path / "times.json"), min_gain=0)


def problem_of(wanted: Streams, model: DeviceModel = ATLAS_A2) -> Problem:
    return Problem.from_graph(traced(mm_abs_sub, X).graph, wanted, attrs.evolve(CAN, device_model=model))


def test_a_profiled_kernel_takes_the_launch_and_its_rows_time_and_keeps_its_cores(wanted: Streams) -> None:
    problem = problem_of(wanted)
    by_name = dict(zip(problem.names, problem.work, strict=True))
    assert by_name["mm"].us == pytest.approx(ATLAS_A2.launch_us + 30)
    assert by_name["abs_1"].us == pytest.approx(ATLAS_A2.launch_us + 7)
    shaped = dict(zip(problem.names, problem_of(Streams(cost="roofline")).work, strict=True))
    for name, work in by_name.items():
        assert (work.cube, work.vector, work.tiles) == (shaped[name].cube, shaped[name].vector, shaped[name].tiles)
        assert work.fixed_us == ATLAS_A2.launch_us
        assert 0 <= work.bandwidth <= 1
    assert problem.cost == "profile"


def test_the_prediction_says_which_rows_of_which_file_it_used(wanted: Streams) -> None:
    graph = traced(mm_abs_sub, X).graph
    apply(graph, wanted, CAN)
    decision = decision_of(graph.owning_module)
    assert decision is not None
    assert decision.prediction is not None
    use = decision.prediction.profile
    assert use is not None
    assert (use.files, use.soc, use.cann, use.digest) == (("kernel_details.csv",), "Ascend910B1", "8.5.0", TABLE.digest)
    assert use.entries == {
        f"mm at {2 * BYTES} bytes": 9,
        f"abs at {2 * BYTES} bytes": 6,
        f"add at {3 * BYTES} bytes": 8,
    }
    assert (use.rows, use.kernels, use.by_shapes) == (23, 4, 0)
    assert use.words == "23 rows of kernel_details.csv (Ascend910B1, CANN 8.5.0) for 4 kernels"
    assert decision.prediction.spread is not None
    assert decision.prediction.spread > MODEL_DOUBT  # sub was never profiled


def test_kernels_of_a_family_without_rows_are_by_their_shapes(wanted: Streams) -> None:
    table = attrs.evolve(
        TABLE, families={"product": TABLE.families["product"]}, lines={"product": TABLE.lines["product"]}
    )
    assert wanted.profile is not None
    Path(wanted.profile).write_text(table.as_text())
    problem = problem_of(wanted)
    assert problem.tabled is not None
    assert problem.tabled.use is not None
    assert (problem.tabled.use.kernels, problem.tabled.use.by_shapes) == (1, 3)
    shaped = dict(zip(problem.names, problem_of(Streams(cost="roofline")).work, strict=True))
    assert [work == shaped[name] for name, work in zip(problem.names, problem.work, strict=True)].count(True) == 3


def test_several_graphs_count_an_entry_once() -> None:
    one = ProfileUse(
        files=("f",), soc="s", cann="c", digest="d", kernels=2, by_shapes=1, rows=5, entries={"mm at 4 bytes": 5}
    )
    both = ProfileUse.together([one, attrs.evolve(one, entries={"mm at 4 bytes": 5, "abs at 2 bytes": 3})])
    assert (both.kernels, both.by_shapes, both.rows) == (4, 2, 8)
    assert both.words.endswith("for 4 kernels, shapes for 2")
    assert ProfileUse.together([one]) == one


def test_a_node_and_a_row_of_the_same_kernel_have_one_feature() -> None:
    graph = traced(mm_abs_sub, X).graph
    sizes = ResultSizes()
    nodes = {node.name: of_node(node, sizes, 195.0) for node in graph.nodes if node.op == "call_function"}
    assert nodes["mm"] == Feature("product", "mm", 2 * BYTES)  # of x @ x, which reads x once
    assert nodes["mm"] == of_row("mm", "MatMulV3", [BYTES], BYTES, 2 * 64**3 / 195.0)
    assert nodes["abs_1"] == of_row("abs", "Abs", [BYTES], BYTES, 0.0)
    assert of_row(None, "ApplyAdamW", [BYTES], BYTES, 0.0).family not in {feature.family for feature in nodes.values()}


def test_a_device_that_is_no_npu_takes_no_times_of_one(wanted: Streams) -> None:
    with pytest.raises(PlanError, match="has times of Ascend910B1, and plans here are for a CPU, which is no NPU"):
        problem_of(wanted, CPU)


def test_a_table_is_checked_before_anything_is_compiled_and_is_part_of_the_key(wanted: Streams) -> None:
    planner = PASSES.get("stream_plan")(streams=wanted)
    planner.check()
    assert planner.source_files() == (wanted.profile,)
    assert PASSES.get("dual_batch_overlap")(streams=wanted).source_files() == (wanted.profile,)
    assert PASSES.get("stream_plan")().source_files() == ()
    assert wanted.profile is not None
    Path(wanted.profile).write_text("{}")
    with pytest.raises(ConfigError, match="is no table of a profile"):
        planner.check()


def test_a_table_beside_another_cost_is_refused() -> None:
    with pytest.raises(
        ValueError, match="'profile' is a table for 'cost: calibrated', and 'cost: roofline' asks for none"
    ):
        Streams(cost="roofline", profile="times.json")
