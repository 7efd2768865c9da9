"""A graph is made as for an NPU: no kernel in it is the CPU's own choice."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from simulator_tests.processes import in_a_process
from tests.npu.needs import offline, run

FUSED = ["npu.npu_fusion_attention_v3.default"]
with_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra 'transformers' is not installed"
)


@pytest.mark.slow
@offline
def test_attention_becomes_what_torch_npu_makes_of_it_and_gives_the_same_numbers() -> None:
    found = in_a_process("attention.py", "npugraph_ex")
    for name in ("causal", "a mask", "a mask for each key", "grouped heads"):
        assert found[name] == [FUSED, False, True], name
    for name in ("numbers that are added", "a depth that is no multiple of four"):
        assert found[name] == [[], False, True], name
    assert found["gradients"]
    assert found["inference mode"]
    assert "aten.norm.ScalarOpt_dim" in found["weight norm"]


@offline
@with_transformers
@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "ViTForImageClassification", "CLIPModel",
     "WhisperForConditionalGeneration", "BertForSequenceClassification"],
)  # fmt: skip
def test_a_hugging_face_class_with_its_default_attention_is_converted_to_ge(architecture: str, tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "mode=max-autotune", "model=transformers", f"model.architecture={architecture}"
    )
    assert (status, report["status"]) == (0, "ok"), error
    graph = next(tmp_path.rglob("graph_0.ge.txt")).read_text()
    assert ("FlashAttentionScore" in graph) == (architecture != "T5ForConditionalGeneration")


@offline
@with_transformers
@pytest.mark.slow
def test_what_torchair_cannot_convert_of_a_weight_norm_torch_can_take_apart(tmp_path: Path) -> None:
    hubert = ("mode=max-autotune", "model=transformers", "model.architecture=HubertForCTC")
    refused, ok = (tmp_path / name for name in ("refused", "ok"))
    refused.mkdir()
    ok.mkdir()
    status, _, error = run(refused, *hubert)
    assert status == 3
    assert "no GE converter for torch.ops.aten.norm.ScalarOpt_dim" in error
    status, report, error = run(ok, *hubert, "target.decompose=[aten.norm]")
    assert (status, report["status"]) == (0, "ok"), error


@offline
@with_transformers
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["npugraph_ex", "reduce-overhead"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_an_overlap_that_torchair_s_in_place_pass_would_write_over_is_set_apart(
    architecture: str, mode: str, tmp_path: Path
) -> None:
    status, report, error = run(tmp_path, f"mode={mode}", "model=transformers", f"model.architecture={architecture}")
    assert (status, report["numerics"]["bitwise"]) == (0, True), error
    assert [record["name"] for record in report["passes"]] == ["separate_overlaps"]
