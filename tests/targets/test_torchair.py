"""What graphs for TorchAir may say, on a device and on its simulated runtime alike."""

from __future__ import annotations

import pytest

from npucompose.targets.npu import NpuTarget
from npucompose.targets.npu_offline import NpuOfflineTarget

TARGETS = pytest.mark.parametrize("target", [NpuTarget(), NpuOfflineTarget()], ids=lambda target: target.name)


@TARGETS
@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_a_captured_graph_has_events_and_frees_memory_while_other_streams_may_read_it(
    target: NpuTarget, mode: str
) -> None:
    can = target.capabilities(mode)
    assert (can.captures, can.frees_early, can.explicit_events) == (True, True, True)
    assert not can.asserts, "no kernel of the NPU checks on the device, and no GE converter"
    assert not can.super_kernels


@TARGETS
def test_ge_orders_streams_and_owns_memory_itself(target: NpuTarget) -> None:
    can = target.capabilities("max-autotune")
    assert (can.captures, can.frees_early, can.explicit_events, can.asserts) == (False, False, False, False)
    assert can.super_kernels
