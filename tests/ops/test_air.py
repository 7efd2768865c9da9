"""air.*: signatures, kernels on every kind of tensor, and survival of dead-code elimination."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

import npucompose.ops


@pytest.fixture(autouse=True)
def _defined() -> None:
    npucompose.ops.define()


def test_the_signatures_are_those_of_the_shipped_torchair() -> None:
    schemas = [str(getattr(torch.ops.air, name).default._schema) for name in ("scope_enter", "scope_exit")]
    assert schemas == [
        "air::scope_enter(str[] keys, str[] values, bool need_execute=False) -> NoneType",
        "air::scope_exit(bool need_execute=False) -> NoneType",
    ]
    assert str(torch.ops.air.record.default._schema) == "air::record(*, Device? device=None) -> Tensor"
    assert str(torch.ops.air.wait.default._schema) == "air::wait(Tensor[] x) -> ()"


def test_defining_twice_changes_nothing() -> None:
    before = torch.ops.air.record.default
    npucompose.ops.define()
    assert torch.ops.air.record.default is before


def test_of_installed_packages_only_the_namespaces_that_are_named_and_not_ours_are_defined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    registry = SimpleNamespace(
        names=lambda: ("mine", "yours", "air", "aten"), get=lambda name: lambda: asked.append(name)
    )
    monkeypatch.setattr(npucompose.ops, "OPERATORS", registry)
    npucompose.ops.define_installed(
        ["mine.a.default", "aten.abs.default", "nobodys.f", "air.wait.default", "mine.b.out", "npu.f"]
    )
    assert asked == ["mine"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_record_is_an_empty_tensor_where_it_was_asked_for(device: str) -> None:
    record = torch.ops.air.record(device=torch.device(device))
    assert (tuple(record.shape), record.device.type) == ((0,), device)
    assert torch.ops.air.wait([record]) is None


def test_a_record_among_fake_tensors_is_fake() -> None:
    with FakeTensorMode():
        record = torch.ops.air.record()
        assert type(record).__name__ == "FakeTensor"
        assert record.device.type == "cpu"
        torch.ops.air.wait([record])


def test_dead_code_elimination_keeps_all_four_even_an_unused_record() -> None:
    seen: list[str] = []

    def stream(x: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x, x)
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        torch.ops.air.record()
        torch.ops.air.wait([product])
        dead = torch.sin(x)  # noqa: F841
        y = torch.abs(x)
        torch.ops.air.scope_exit()
        return product + y

    def backend(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        module.graph.eliminate_dead_code()
        seen.extend(node.name for node in module.graph.nodes if node.op == "call_function")
        return module

    x = torch.randn(3, 3)
    compiled = torch.compile(stream, backend=aot_autograd(fw_compiler=backend), fullgraph=True, dynamic=False)
    assert torch.equal(compiled(x), stream(x))
    assert seen == ["mm", "scope_enter", "record", "wait", "abs_1", "scope_exit", "add"]
