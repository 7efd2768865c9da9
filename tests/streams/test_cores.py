"""Limits of cores in a plan: a scope of its own inside the stream's, for devices that have such limits."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from npucompose.api import checked
from npucompose.errors import ConfigError, PlanError
from npucompose.graphs.effects import core_limits, has_only_limits, stream_labels
from npucompose.passes.scopes import CoreLimit, SuperKernel
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import CoreRegion, Cores, Match, PlanEntry, Streams, SuperKernelRegion
from npucompose.streams import apply, decision_of, plan_of, validate
from npucompose.streams.problem import Problem, schedule
from npucompose.vendor.devices import Calibration
from tests.npu.needs import offline, run
from tests.sample_graphs import CAN, mm_abs_sub, node, traced

LIMITED = attrs.evolve(CAN, core_limits=True)
PLAN = "streams.plan=[{stream:s,match:{target:aten.abs},cores:{aicore:8,vectorcore:16}},{stream:s,match:{target:aten.sub},cores:{aicore:8,vectorcore:16}}]"  # noqa: E501


def planned(can: Capabilities, *cores: Cores | None, stream: str = "s") -> torch.fx.GraphModule:
    """abs and sub on one stream, each entry with its limit."""
    targets = ("aten.abs", "aten.sub")
    entries = tuple(
        PlanEntry(stream=stream, match=Match(target=target), cores=limit)
        for target, limit in zip(targets, cores, strict=True)
    )
    module = traced(mm_abs_sub, torch.randn(4, 4))
    apply(module.graph, Streams(kind="explicit", plan=entries), can)
    return module


def test_the_limit_stands_in_a_scope_of_its_own_inside_the_stream_s() -> None:
    limit = Cores(aicore=8, vectorcore=16)
    graph = planned(LIMITED, limit, limit).graph
    labels, limits = stream_labels(graph), core_limits(graph)
    for name in ("abs_1", "sub"):
        assert (labels[node(graph, name)], limits[node(graph, name)]) == ("s", limit)
    assert node(graph, "mm") not in limits
    scopes = [n.args[0] for n in graph.nodes if "scope_enter" in str(n.target)]
    assert scopes == [["_user_stream_label"], ["_op_aicore_num", "_op_vectorcore_num"]]
    validate(graph, can=LIMITED)
    assert plan_of(graph).nodes == {"mm": "default", "abs_1": "s", "sub": "s", "add": "default"}


def test_a_planned_graph_stays_as_it_is() -> None:
    limit = Cores(aicore=8, vectorcore=16)
    module = planned(LIMITED, limit, limit)
    before = str(module.graph)
    apply(module.graph, Streams(), LIMITED)
    assert str(module.graph) == before


@pytest.mark.parametrize(
    ("cores", "words"),
    [
        ((Cores(aicore=8, vectorcore=16), None), "gives stream 's' no limit, an earlier entry 8 cube and 16"),
        ((Cores(aicore=25, vectorcore=16),) * 2, "asks for 25 cube and 16 vector cores; Atlas A2, nominal has 24 cube"),
        ((Cores(aicore=8, vectorcore=49),) * 2, "asks for 8 cube and 49 vector cores"),
    ],
)
def test_a_limit_that_the_device_or_another_entry_contradicts_is_refused(
    cores: tuple[Cores | None, ...], words: str
) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        planned(LIMITED, *cores)
    assert caught.value.code == "cores"


def test_where_a_device_has_no_such_limit_it_is_listed_and_refused_only_when_asked() -> None:
    chosen = ["model=mm_abs_sub", "passes=stream_plan", "streams.kind=explicit", PLAN]
    told = [one for one in checked(chosen).effective if one.option == "streams.plan[0].cores"]
    assert [(one.requested, one.effective) for one in told] == [({"aicore": 8, "vectorcore": 16}, None)]
    with pytest.raises(ConfigError, match=r"streams.plan\[1\].cores: limits of cores have no meaning on target=cpu"):
        checked([*chosen, "strict=all"])
    limit = Cores(aicore=8, vectorcore=16)
    assert core_limits(planned(CAN, limit, limit).graph) == {}


def test_the_default_stream_takes_no_limit_here() -> None:
    with pytest.raises(ValueError, match="limit its cores with the pass core_limit"):
        PlanEntry(stream="default", match=Match(target="aten.abs"), cores=Cores(aicore=1, vectorcore=1))


BIG = torch.empty(1024, 1024, device="meta")


def two_products(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x) + torch.mm(x, x.t())


def limited_source(limit: Cores, *names: str) -> torch.fx.GraphModule:
    """Products whose model says on how many cores they run."""
    module = traced(two_products, BIG)
    regions = tuple(CoreRegion(aicore=limit.aicore, vectorcore=limit.vectorcore, match=Match(name=n)) for n in names)
    CoreLimit(regions=regions).rewrite(module.graph, attrs.evolve(LIMITED, device_model=LARGE))
    return module


LARGE = attrs.evolve(LIMITED.device_model, name="a large device", cube=100, vector=200)
LIMIT = Cores(aicore=12, vectorcore=24)


def test_limits_of_the_source_are_read_and_stay_when_the_graph_is_planned() -> None:
    """A kernel on half of its cores is simulated as the slower one that it is."""
    module = limited_source(LIMIT, "mm")
    problem = Problem.from_graph(module.graph, Streams(), LIMITED)
    mm, mm_1 = (problem.work[problem.names.index(name)] for name in ("mm", "mm_1"))
    assert (mm.cube, mm_1.cube) == (12, 24)
    assert mm.us > 1.5 * mm_1.us
    apply(module.graph, Streams(min_gain=0), LIMITED)
    found = plan_of(module.graph)
    assert (len(found.streams), found.cores) == (2, {"mm": LIMIT})
    assert core_limits(module.graph) == {node(module.graph, "mm"): LIMIT}
    validate(module.graph, can=LIMITED)


def test_where_cores_have_no_limit_the_source_s_are_not_counted() -> None:
    problem = Problem.from_graph(limited_source(LIMIT, "mm").graph, Streams(), CAN)
    assert problem.work[problem.names.index("mm")].cube == 24


def test_streams_of_the_source_that_lacked_events_keep_their_limits() -> None:
    module = limited_source(LIMIT, "mm")
    scopes = [one for one in module.graph.nodes if "scope" in str(one.target)]
    with module.graph.inserting_before(scopes[0]):
        module.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["side"]))
    with module.graph.inserting_after(scopes[1]):
        module.graph.call_function(torch.ops.air.scope_exit.default, ())
    apply(module.graph, Streams(), LIMITED)
    found = plan_of(module.graph)
    assert (found.nodes["mm"], len(found.events)) == ("side", 1)
    assert found.cores == {"mm": LIMIT}


def test_a_graph_with_other_scopes_than_limits_is_left_as_it_is() -> None:
    module = limited_source(LIMIT, "mm")
    assert has_only_limits(module.graph)
    region = SuperKernelRegion(scope="sk", match=Match(name="add"))
    SuperKernel(regions=(region,)).rewrite(module.graph, attrs.evolve(LIMITED, super_kernels=True))
    assert not has_only_limits(module.graph)
    before = str(module.graph)
    apply(module.graph, Streams(min_gain=0), LIMITED)
    assert str(module.graph) == before


def test_a_source_that_asks_for_more_cores_than_there_are_is_refused() -> None:
    module = limited_source(Cores(aicore=25, vectorcore=48), "mm")
    with pytest.raises(
        PlanError, match="'mm' is limited to 25 cube and 48 vector cores; Atlas A2, nominal has"
    ) as caught:
        validate(module.graph, can=LIMITED)
    assert caught.value.code == "cores"
    validate(module.graph, can=CAN)
    validate(module.graph, can=attrs.evolve(LIMITED, device_model=LARGE))
    streams = Streams(min_gain=0, device=Calibration(cube=100, vector=200))
    apply(module.graph, streams, LIMITED)  # the device that the configuration says has them
    assert plan_of(module.graph).cores == {"mm": Cores(aicore=25, vectorcore=48)}


def test_of_two_limits_the_smaller_one_holds() -> None:
    module = limited_source(Cores(aicore=12, vectorcore=40), "mm")
    problem = Problem.from_graph(module.graph, Streams(), LIMITED)
    both = {problem.names.index("mm"): Cores(aicore=18, vectorcore=24)}
    found = schedule(problem, [0, 1, 0], range(3), limits=both)
    assert found.limit(problem.names.index("mm")) == Cores(aicore=12, vectorcore=24)
    assert found.limit(problem.names.index("mm_1")) is None


def test_a_limit_that_a_person_wrote_is_predicted_with_the_time_that_it_costs() -> None:
    def makespan(cores: Cores | None) -> float:
        module = traced(two_products, BIG)
        entry = PlanEntry(stream="s", match=Match(name="mm_1"), cores=cores)
        apply(module.graph, Streams(kind="explicit", plan=(entry,)), LIMITED)
        decision = decision_of(module)
        assert decision is not None
        assert decision.prediction is not None
        return decision.prediction.plan_us

    assert makespan(Cores(aicore=3, vectorcore=6)) > 1.5 * makespan(None)


def test_dividing_cores_is_listed_where_nothing_limits_them() -> None:
    chosen = ["model=mm_abs_sub", "passes=stream_plan", "streams.split_cores=true"]
    told = [one for one in checked(chosen).effective if one.option == "streams.split_cores"]
    assert [(one.requested, one.effective) for one in told] == [(True, False)]
    with pytest.raises(ConfigError, match=r"streams.split_cores: limits of cores have no meaning on target=cpu"):
        checked([*chosen, "strict=all"])


@offline
@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=pytest.mark.slow) for mode in ("npugraph_ex", "reduce-overhead", "max-autotune")],
)
def test_the_genuine_torchair_takes_the_limits_of_a_plan(mode: str, tmp_path: Path) -> None:
    chosen = ("model=mm_abs_sub", "passes=stream_plan", "streams.kind=explicit", PLAN)
    status, report, error = run(tmp_path, f"mode={mode}", *chosen)
    assert status == 0, error
    if mode == "max-autotune":
        (graph,) = report["npu"]["ge_graphs"]
        assert graph["cores"] == {"Abs": "8 cube, 16 vector", "Sub": "8 cube, 16 vector"}
        assert set(graph["streams"]) == {"Abs", "Sub"}
        return
    told = (tmp_path / "out" / "graphs" / "capture_0.txt").read_text().splitlines()
    at = next(n for n, line in enumerate(told) if line.startswith("aten.abs"))
    stream = told[at].rpartition(" ")[2]
    assert f"limit stream {stream} to 8 cube and 16 vector cores" in told[:at]
    last = next(n for n, line in enumerate(told) if line.startswith("aten.sub"))
    assert f"limit stream {stream} to 24 cube and 48 vector cores" in told[last:]
    assert report["npu"]["core_limits"] == 2
    assert report["numerics"]["bitwise"]


PAIR = """
import torch


class Pair(torch.nn.Module):
    def forward(self, x, y, z):
        return x.mm(y) + x.mm(z)


def make():
    x = torch.linspace(-1, 1, 768 * 512).view(768, 512)
    return Pair(), {"x": x, "y": x.t().contiguous(), "z": x.t().flip(0).contiguous()}
"""
"""Two products of 36 tiles: two rounds of 24 cores, three of 12, so that 2 T becomes 1.5 T on half of them each."""
DIVIDED = ("model=python", "model.factory=pair:make", "trust=true", "passes=stream_plan", "streams.split_cores=true")


@offline
@pytest.mark.parametrize(
    "mode", ["npugraph_ex", *(pytest.param(m, marks=pytest.mark.slow) for m in ("reduce-overhead", "max-autotune"))]
)
def test_cores_that_a_plan_divides_reach_the_genuine_torchair(mode: str, tmp_path: Path) -> None:
    """2 T becomes 1.5 T without a word about streams or cores; the launches and the sum of both come on top."""
    (tmp_path / "pair.py").write_text(PAIR)
    status, report, error = run(tmp_path, f"mode={mode}", *DIVIDED)
    assert status == 0, error
    assert set(report["streams"]["nodes"].values()) == {"default", "stream1"}
    assert report["streams"]["predicted_us"] < 0.9 * report["streams"]["serial_us"]
    assert report["streams"]["why"].endswith("cores divided among 2 kernels")
    assert report["numerics"]["bitwise"]
    if mode == "max-autotune":
        (graph,) = report["npu"]["ge_graphs"]
        assert graph["cores"] == dict.fromkeys(("MatMul", "MatMul_1"), "12 cube, 24 vector")
        assert list(graph["streams"].values()) == ["stream1"]
        return
    told = (tmp_path / "out" / "graphs" / "capture_0.txt").read_text().splitlines()
    for place, line in enumerate(told):
        if line.startswith("aten.mm"):
            stream = line.rpartition(" ")[2]
            earlier = [one for one in told[:place] if one.startswith(f"limit stream {stream} to ")]
            assert earlier[-1] == f"limit stream {stream} to 12 cube and 24 vector cores"
    assert sum(line.startswith("limit") for line in told) == report["npu"]["core_limits"] == 4


SWITCHED = """
import torch

from npucompose import scope


class Switched(torch.nn.Module):
    def forward(self, x):
        product = torch.mm(x, x)
        with scope.npu_stream_switch("side", 1):
            rest = x.abs() - x
        return product + rest


def make():
    return Switched(), {"x": torch.linspace(-1, 1, 16).view(4, 4)}
"""


@pytest.mark.slow
@offline
def test_streams_in_a_model_s_source_are_torchair_s_own_in_npugraph_ex(tmp_path: Path) -> None:
    (tmp_path / "switched.py").write_text(SWITCHED)
    chosen = ("mode=npugraph_ex", "model=python", "model.factory=switched:make", "trust=true")
    status, report, error = run(tmp_path, *chosen, "passes=stream_plan")
    assert (status, error) == (0, "")
    assert report["streams"]["nodes"] == {"mm": "default", "abs_1": "side", "sub": "side", "add": "default"}
    assert (report["npu"]["package"], report["npu"]["streams"]) == ("npugraph_ex", 2)
    assert report["npu"]["unordered"] == []
    assert report["numerics"]["bitwise"]
