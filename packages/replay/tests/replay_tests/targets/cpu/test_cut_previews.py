"""A laptop's ok hides no NPU's no: what an NPU would refuse is said, and refused where that is asked for."""

from __future__ import annotations

import pytest
import torch

import npucompose
from npucompose.errors import CompileError
from tests.cut_programs import cond, count, writes_an_input

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("mode", ["reduce-overhead", pytest.param("max-autotune", marks=pytest.mark.slow)])
def test_what_an_npu_would_refuse_is_said_once_the_graph_is_known(mode: str) -> None:
    fast = npucompose.compile(cond, f"mode={mode}")
    before = fast.effective
    with torch.no_grad():
        fast(torch.randn(4, 4))
    (said,) = fast.effective[len(before) :]
    assert said.option == "target"
    assert said.why.startswith("target=npu refuses this graph: cond at cut_programs.py:")


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_strict_all_refuses_here_what_an_npu_would(mode: str) -> None:
    fast = npucompose.compile(cond, f"mode={mode}", "strict=all")
    with torch.no_grad(), pytest.raises(CompileError, match=r"target=npu refuses this graph: cond at .*strict=all"):
        fast(torch.randn(4, 4))


def test_what_torchair_takes_is_not_refused() -> None:
    for function in (writes_an_input, lambda x: count(x) + 1):
        fast = npucompose.compile(function, "strict=all")
        with torch.no_grad():
            fast(torch.randn(4, 4))
        assert fast.effective == fast.materialised.effective


@torch.library.custom_op("npucompose_cut::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_an_operator_without_a_fake_implementation_is_one_sentence_with_torchs_advice() -> None:
    torch.library.define("npucompose_cut::defined_without_fake", "(Tensor x) -> Tensor")
    torch.library.impl("npucompose_cut::defined_without_fake", "CPU")(lambda x: x * 2)
    for name, function in {
        "no fake impl registered for <CustomOpDef(npucompose_cut::without_fake)>": lambda x: without_fake(x) + 1,
        "the operator npucompose_cut.defined_without_fake.default has no fake implementation": (
            lambda x: torch.ops.npucompose_cut.defined_without_fake(x) + 1
        ),
    }.items():
        with torch.no_grad(), pytest.raises(CompileError) as caught:
            npucompose.compile(function)(torch.ones(2))
        words = str(caught.value)
        assert name in words
        assert "register_fake" in words
        assert "test_cut_previews.py:" in words
        assert "\n" not in words
