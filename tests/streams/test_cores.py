"""Limits of cores in a plan: a scope of its own inside the stream's, for devices that have such limits."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from npucompose.api import checked
from npucompose.errors import ConfigError, PlanError
from npucompose.graphs.effects import core_limits, stream_labels
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Cores, Match, PlanEntry, Streams
from npucompose.streams import apply, plan_of, validate
from tests.sample_graphs import CAN, mm_abs_sub, node, traced
from tests.targets.npu_offline.needs import offline, run

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


@offline
@pytest.mark.parametrize(
    "mode", ["npugraph_ex", *(pytest.param(m, marks=pytest.mark.slow) for m in ("reduce-overhead", "max-autotune"))]
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
