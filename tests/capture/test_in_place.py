"""TorchAir's in-place pass may put an operator without a kernel in the place of one that has one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.npu.capture.reading import without_kernel
from npucompose.npu.capture.records import CaptureFinding

OPTION = "npugraph_ex.inplace_pass=false"


def found(model: object, torch_npu: str) -> list[CaptureFinding]:
    traced: fx.GraphModule = make_fx(model, tracing_mode="symbolic")(torch.ones(4, 4))  # type: ignore[arg-type]
    return list(without_kernel(traced, "graph_0", torch_npu, OPTION))


def of_a_result(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x * 2)


def of_an_input(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x)


def of_what_is_read_again(x: Tensor) -> Tensor:
    y = x * 2
    return torch.nn.functional.gelu(y) + y


@pytest.mark.parametrize("version", ["2.5.1.post1", "2.6.0.post5"])
def test_gelu_in_place_is_computed_on_the_cpu_by_old_wheels(version: str) -> None:
    (finding,) = found(of_a_result, version)
    assert (finding.rule, finding.standing, finding.node) == ("cpu_kernel", "derived", "gelu")
    assert finding.what.startswith("TorchAir's in-place pass makes aten.gelu_ of aten.gelu")
    assert finding.fix == f"compiler.{OPTION}  # it leaves the pass out"


@pytest.mark.parametrize("version", ["2.7.1.post4", "2.13.0", "2.14.0"])
def test_later_wheels_have_the_kernel(version: str) -> None:
    assert found(of_a_result, version) == []


@pytest.mark.parametrize("model", [of_an_input, of_what_is_read_again])
def test_what_the_pass_leaves_alone_is_no_finding(model: object) -> None:
    assert found(model, "2.6.0.post5") == []
