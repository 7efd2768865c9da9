"""What belongs to a model and not to one call: what it holds, where torch.compile cuts it, what it prints and draws."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.seeded import captured

Tensor = torch.Tensor


class PlainAttribute(nn.Module):
    """No buffer: model.to(device) leaves it where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale  # here


class ListOfTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [torch.ones(4), torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.tables[0]  # here


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.register_buffer("table", torch.ones(8))
        self.half = self.table[:4]  # type: ignore[index]
        self.made = torch.ones(4, device="npu")

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.half + self.made


@torch.compiler.disable
def outside(x: Tensor) -> Tensor:
    return x + 1


class Logs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        logging.getLogger("model").warning("a step of %s", "decode")  # here
        return y + 1


class PrintsText(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        print("a step")  # here
        return y + 1


class DisabledFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return outside(x * 2) * 3  # here


class ReturnsList(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return [F.gelu(x), x.softmax(-1)]


class BranchOnConfiguration(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.residual = True
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + x if self.residual else layer(x)
        return x


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize("model", [PlainAttribute, ListOfTensors])
def test_a_tensor_that_does_not_move_with_the_model_is_found(model: type[nn.Module]) -> None:
    (found,) = captured(model).findings
    assert (found.rule, found.code) == ("host_tensor", None)
    assert "register_buffer" in found.fix
    assert found.source is not None
    assert found.source.endswith("# here")


def test_what_moves_with_the_model_or_is_made_on_the_device_is_no_fault() -> None:
    assert captured(Buffer).verdict == "captures"


@pytest.mark.parametrize("model", [Logs, PrintsText, DisabledFunction])
def test_a_cut_of_torch_compile_is_found_at_its_line(model: type[nn.Module]) -> None:
    facts = captured(model, traced=True)
    (found,) = facts.findings
    assert (found.rule, found.code, facts.verdict) == ("graph_break", None, "does not capture")
    assert "compile.fullgraph=false" in found.fix
    assert found.source is not None
    assert found.source.endswith("# here")


@pytest.mark.parametrize("model", [ReturnsList, BranchOnConfiguration])
def test_a_model_without_a_cut_captures(model: type[nn.Module]) -> None:
    facts = captured(model, traced=True)
    assert (facts.findings, facts.verdict, facts.certainty) == ((), "captures", "proven")


def test_random_numbers_are_noted_for_torchair_does_not_promise_them() -> None:
    facts = captured(Draws)
    assert facts.verdict == "captures"
    (note,) = facts.notes
    assert "return x + torch.rand_like(x)" in note
    assert "npugraph_ex" in note
    assert "cache_compile" in note
    assert captured(BranchOnConfiguration).notes == ()
    assert captured(lambda: lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])).notes == ()
    (note,) = captured(lambda: lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)).notes
    assert "draws random numbers" in note


def test_a_model_that_ends_in_an_error_of_its_own_has_no_counts() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            raise ValueError(f"no route for {tuple(y.shape)}")

    facts = captured(Raises)
    assert (facts.verdict, facts.streams, facts.tasks) == ("unknown", None, None)


def test_a_function_that_no_table_has_gives_a_finding_and_the_call_goes_on() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.npu.future.scope("a") as scope:
                if scope.ready():
                    x = x + 1
            return x * x.max().item()

    facts = captured(Unknown)
    assert facts.verdict == "does not capture"
    assert [one.rule for one in facts.findings] == ["unknown_call"] * 2 + ["host_read"]
    assert "torch.npu.future.scope" in facts.findings[0].what


def test_names_in_findings_are_the_users() -> None:
    (found,) = captured(lambda: lambda x: torch.ones(8).to(x.device, non_blocking=True)).findings
    assert found.what == "x.to(npu:0) copies from pageable host memory"
    assert "cpu:0" not in found.what
