"""`python run.py target=npu_offline …`: the genuine TorchAir in all three modes, with what came out in the report."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.npu_offline.needs import in_a_process, offline, run

MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")
MODELS = ("add", "mm_abs_sub", "linear_scalar", "attention_decode", "gpt_decode", "moe_shared_expert")
MATRIX = [(mode, model, passes) for model in MODELS for mode in MODES for passes in ("[]", "[stream_plan]")]
NO_CONVERTER = """
import torch


class Indexed(torch.nn.Module):
    def forward(self, x, index, source):
        y = x + 1
        return torch.index_copy(y, 0, index, source)


def make():
    return Indexed(), {"x": torch.zeros(4, 4), "index": torch.tensor([1]), "source": torch.ones(1, 4)}
"""


@offline
def test_max_autotune_gives_a_ge_graph_with_streams_and_a_control_edge(tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "mode=max-autotune", "model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub"
    )
    assert (status, error) == (0, "")
    (graph,) = report["npu"]["ge_graphs"]
    assert graph["shapes"] == "static"
    assert graph["types"]["MatMul"] == graph["types"]["Abs"] == graph["types"]["Sub"] == 1
    assert set(graph["streams"].values()) == {"stream1"}
    assert len(graph["streams"]) == 2
    assert len(graph["control_edges"]) == 1
    assert all("NPU" in data for data in graph["data"].values())
    assert graph["options"]["ge.tiling_schedule_optimize"] == "0"
    assert report["npu"]["global_options"]["ge.oo.level"] == "O3"
    assert "say nothing of how GE" in report["numerics"]["note"]
    listing = (tmp_path / "out" / "graphs" / "graph_0.ge.txt").read_text()
    assert "_user_stream_label=stream1" in listing
    assert ":-1" in listing


@offline
def test_npugraph_ex_captures_and_replays_what_a_plan_orders(tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "mode=npugraph_ex", "model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub"
    )
    assert (status, error) == (0, "")
    npu = report["npu"]
    assert (npu["package"], npu["platform"], npu["captures"], npu["streams"]) == ("npugraph_ex", "stand-in", 1, 2)
    assert npu["replays"] > 1
    assert npu["unordered"] == []
    assert report["numerics"]["bitwise"]
    assert report["stages"]["capture"]["captures"] == 1
    told = (tmp_path / "out" / "graphs" / "capture_0.txt").read_text().splitlines()
    side = next(line for line in told if line.startswith("aten.sub")).rpartition(" ")[2]
    records = [n for n, line in enumerate(told) if line.startswith("record") and line.endswith(f"stream {side}")]
    subtraction = next(n for n, line in enumerate(told) if line.startswith("aten.sub"))
    addition = next(n for n, line in enumerate(told) if line.startswith("aten.add"))
    event = next(told[n] for n in records if subtraction < n < addition).split()[2]
    assert any(line.startswith(f"wait event {event} ") for line in told[subtraction:addition])
    assert report["provenance"]["pipeline.name"] == "conf/pipeline/check.yaml, chosen by conf/target/npu_offline.yaml"


@offline
def test_a_stand_in_has_no_speed_and_no_backdoor_to_one(tmp_path: Path) -> None:
    status, report, error = run(tmp_path, "model=add", "pipeline=bench")
    assert (status, report) == (2, {})
    assert "target=npu_offline has no speed" in error


@offline
@pytest.mark.slow
def test_an_operator_without_a_ge_converter_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "indexed.py").write_text(NO_CONVERTER)
    chosen = ("mode=max-autotune", "model=python", "model.factory=indexed:make", "trust=true")
    status, _, error = run(tmp_path, *chosen)
    assert status == 3
    assert "no GE converter for torch.ops.aten.index_copy.default" in error
    assert "at indexed.py:8 in forward: return torch.index_copy(y, 0, index, source)" in error


@offline
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "model", "passes"), MATRIX)
def test_every_model_in_every_mode(mode: str, model: str, passes: str, tmp_path: Path) -> None:
    status, report, error = run(tmp_path, f"mode={mode}", f"model={model}", f"passes={passes}")
    assert status == 0
    assert error.count("deprecated") == (mode == "reduce-overhead")
    npu = report["npu"]
    assert npu["fx_graphs"] == 1
    assert npu["unordered"] == []
    if mode == "max-autotune":
        assert len(npu["ge_graphs"]) == 1
    else:
        assert npu["captures"] == 1
        assert report["numerics"]["bitwise"]


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_growing_lengths_update_tasks_and_capture_once(mode: str, tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, f"mode={mode}", "model=attention_decode", "model.grow=3", "shapes=dynamic",
        "shapes.mark_static=[query,key,value]", "expect.recompiles=0",
    )  # fmt: skip
    assert status == 0, error
    npu = report["npu"]
    assert npu["captures"] == 1
    assert npu["task_updates"] == npu["replays"] >= 3


@offline
@pytest.mark.slow
def test_parameters_are_frozen_inputs_as_on_a_device(tmp_path: Path) -> None:
    status, report, _ = run(
        tmp_path, "mode=max-autotune", "model=mlp", "compiler.experimental_config.frozen_parameter=true"
    )
    assert status == 0
    assert "1" in report["npu"]["ge_graphs"][0]["options"]["frozenInput"]


@offline
@pytest.mark.slow
def test_gears_reach_ge_as_options(tmp_path: Path) -> None:
    gears = "+shapes.gears={x.0:[32,64],y.0:[32,64]}"
    chosen = ("model=add", "shapes=dynamic", gears)
    status, report, error = run(tmp_path, "mode=max-autotune", *chosen)
    assert status == 0, error
    dims = report["npu"]["ge_graphs"][0]["options"]["ge.dynamicDims"]
    assert set(dims.split(";")) == {"32,32", "64,64"}
    status, _, error = run(tmp_path, "mode=npugraph_ex", *chosen)
    assert status == 2
    assert "gears do not act in mode=npugraph_ex" in error


@offline
@pytest.mark.slow
def test_operators_are_taken_apart_where_that_is_asked_for(tmp_path: Path) -> None:
    """`aten.addmm` becomes mm and add before TorchAir sees the graph; a name without a decomposition is refused."""
    status, report, _ = run(tmp_path, "mode=max-autotune", "model=mlp", "target.decompose=[aten.addmm]")
    assert status == 0
    assert "addmm" not in (tmp_path / "out" / "graphs" / "graph_0.before.txt").read_text()
    assert report["npu"]["ge_graphs"][0]["types"]["MatMul"] >= 1
    status, _, error = run(tmp_path, "mode=max-autotune", "model=mlp", "target.decompose=[aten.adm]")
    assert status == 2
    assert "unknown operator with a decomposition 'aten.adm'" in error


@offline
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_the_genuine_configuration_holds_what_was_asked_and_nothing_else(mode: str) -> None:
    found = in_a_process("genuine_config.py", mode)
    assert found["differs"] == found["asked"]
    assert found["hooks"] == ["PassHooks", "PassHooks"]
    assert found["signals_kept"]
    assert found["level"] == 10
