"""A conversion that fails is the answer: of `explain`, of `run`, and of the report, with the operator and the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.cli import main
from tests.npu.needs import offline, run

TOLIST = """
import torch


class Lengths(torch.nn.Module):
    def forward(self, query, key, value, lens):
        return torch.ops.npu.npu_fused_infer_attention_score(
            query, key, value, actual_seq_lengths_kv=lens.tolist(), num_heads=2, num_key_value_heads=2,
            input_layout="BNSD",
        )[0]


def make():
    query, cache = torch.ones(2, 2, 1, 16), torch.ones(2, 2, 32, 16)
    return Lengths(), {"query": query, "key": cache, "value": cache * 2, "lens": torch.tensor([7, 8])}
"""
CHOSEN = (
    "model=python", "model.factory=lengths:make", "trust=true", "target.soc=ascend910b", "shapes=dynamic",
    "shapes.mark_static=[query,key,value,lens]",
)  # fmt: skip
OPERATOR, LINE = "aten._local_scalar_dense.default", "lengths.py:8 in forward: "


@pytest.mark.slow
@offline
@pytest.mark.usefixtures("warm_workers")
def test_explain_says_what_torchair_has_no_converter_for_and_not_that_it_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.py").write_text(TOLIST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["explain", "--json", "target=npu_offline", "mode=max-autotune", "tiling=sink", *CHOSEN]
    assert main(words) == 3
    said = capsys.readouterr().out
    found = json.loads(said)["sinking"]
    assert "proven" not in said
    assert (found["fx_graph"], found["ge_graph"], found["ge_build"]) == ("dynamic", "failed", "failed")
    assert (found["path"], found["failure"]["operator"]) == (None, OPERATOR)
    assert found["failure"]["source"].startswith(LINE)
    assert found["failure"]["fix"].startswith("numbers that the caller gives: a list[int]")
    steps = {step["id"]: step for step in found["steps"]}
    assert (steps["S0"]["status"], steps["S6"]["status"]) == ("problem", "problem")
    assert OPERATOR in steps["S6"]["evidence"][0]


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex", "reduce-overhead"])
def test_the_report_of_a_run_says_the_same(mode: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(TOLIST)
    status, report, error = run(tmp_path, f"mode={mode}", *CHOSEN)
    failure = report["sinking"]["failure"]
    assert (status, report["status"]) == (3, "failed")
    assert "_local_scalar_dense" in failure["operator"]
    assert "lengths.py:8" in failure["source"]
    assert failure["fix"] in report["error"]
    assert "lengths.py:8" in error
    assert set(report["sinking"]["certainty"].values()) <= {"derived", "unknown"}
    assert (report["sinking"]["ge_graph"], report["sinking"]["path"]) == ("failed", None)


@pytest.mark.usefixtures("warm_workers")
def test_a_target_that_asks_nobody_foresees_the_same_and_ends_as_its_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.py").write_text(TOLIST)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "--json", "target=cpu", "mode=max-autotune", "tiling=sink", *CHOSEN]) == 0
    found = json.loads(capsys.readouterr().out)["sinking"]
    assert (found["ge_graph"], found["certainty"]["ge_graph"], found["path"]) == ("failed", "derived", None)
    assert (found["failure"]["operator"], found["failure"]["foreseen"]) == (OPERATOR, True)
    assert found["failure"]["source"].startswith(LINE)
