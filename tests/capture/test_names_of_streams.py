"""What stands as torch.npu under the simulated capture are torch's own kinds: streams and events as arguments of
operators, generators, the module's name and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.seeded import captured

Tensor = torch.Tensor
LIBRARY = torch.library.Library("npucompose_tests_streams", "DEF")
LIBRARY.define("after(Tensor x, Stream s) -> Tensor")
LIBRARY.impl("after", lambda x, s: x + s.stream_id, "CompositeExplicitAutograd")


def current() -> Any:
    return torch.npu.current_stream()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "record",
    [
        lambda x: x.record_stream(current()),
        lambda x: x.record_stream(s=current()),
        lambda x: x.view(-1).record_stream(torch.npu.Stream()),  # pyright: ignore[reportAttributeAccessIssue]
        lambda x: nn.Parameter(x).record_stream(current()),
        lambda x: x.record_stream(torch.cuda.current_stream()),
        lambda x: x.record_stream(torch.accelerator.current_stream()),
        lambda x: x.record_stream(torch.Stream(device="npu")),
        lambda x: torch.Tensor.record_stream(x, current()),
        lambda x: torch._C.TensorBase.record_stream(x, current()),
        lambda x: torch.ops.aten.record_stream(x, current()),
        lambda x: torch.ops.aten.record_stream.default(x, current()),
    ],
)
def test_a_stream_of_the_device_is_an_argument_of_record_stream_in_every_form(record: Callable[..., Any]) -> None:
    def program(x: Tensor) -> Tensor:
        assert record(x) is None
        return x + 1

    facts = captured(lambda: program)
    assert (facts.verdict, facts.certainty, facts.tasks) == ("captures", "proven", 1), facts.evidence


def test_an_operator_of_ones_own_is_given_the_stream() -> None:
    seen: list[Tensor] = []
    facts = captured(lambda: lambda x: seen.append(torch.ops.npucompose_tests_streams.after(x, current()) - x))
    assert "did not run to its end" not in " ".join(facts.evidence)
    assert seen[0].unique().tolist() == [1.0]  # the number of the capturing stream


def test_events_and_streams_of_torch_are_the_devices() -> None:
    def program(x: Tensor) -> Tensor:
        side, event = torch.Stream(), torch.Event()
        y = x * 2
        event.record(current())
        event.wait(side)
        with side:
            z = y + 1
        current().wait_stream(side)
        assert isinstance(side, torch.Stream)
        assert isinstance(event, torch.Event)
        assert side.device == x.device
        return y + z

    facts = captured(lambda: program)
    assert (facts.verdict, facts.streams, facts.tasks) == ("captures", 2, 3), facts.evidence


def test_the_module_has_torchs_name_and_its_switches_are_as_torch_npu_has_them() -> None:
    found: list[Any] = []

    def program(x: Tensor) -> Tensor:
        npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
        found.extend([npu.__name__, npu.config.allow_internal_format, npu.matmul.allow_hf32, npu.conv.allow_hf32])
        found.append(isinstance(torch.default_generator, torch.Generator))
        return x + 1

    captured(lambda: program)
    assert found == ["torch.npu", False, False, True, True]
