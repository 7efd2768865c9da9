"""torch.npu streams and events in a model's own forward: kept, checked and replayed where TorchAir takes them."""

from __future__ import annotations

import pytest

from simulator_tests.processes import in_a_process
from tests.npu.needs import offline

MM, RELU, ABS, ADD = "aten.mm.default", "aten.relu.default", "aten.abs.default", "aten.add.Tensor"
FORK = sorted(f"{a} < {b}" for a, b in ((MM, RELU), (MM, ABS), (MM, ADD), (RELU, ADD), (ABS, ADD)))
"""mm before both branches and both before the sum; between the branches nothing."""


@offline
def test_npugraph_ex_keeps_the_order_of_the_code_and_a_missing_wait_is_found() -> None:
    found = in_a_process("own_streams.py", "npugraph_ex")
    whole, lacking = found["waits"], found["lacks a wait"]
    assert whole["code"]["before"] == whole["compiled"]["before"] == FORK
    assert whole["equal"]
    for capture in (whole["code"], whole["compiled"]):
        assert (capture["streams"], capture["uses"], capture["outside"]) == (3, 1, [])
    assert "error code is 107025" in lacking["code"]["refused"]
    assert f"no stream waits for {ABS}, the last of its stream at own_streams.py:" in lacking["code"]["refused"]
    # npugraph_ex lets every stream end before the graph does, the code itself does not
    compiled = lacking["compiled"]
    assert compiled["before"] == [row for row in FORK if row != f"{ABS} < {ADD}"]
    (unordered,) = compiled["outside"]
    assert unordered.startswith(
        f"{ADD} on the capturing stream reads, unordered, the float32[4, 4] that {ABS} on stream"
    )
    assert "let the capturing stream wait for stream" in unordered
    assert (whole["streams"], whole["plan"]) == (3, ["abs_1 < add", "mm < abs_1", "mm < relu", "relu < add"])
    assert (whole["validated"], whole["why"]) == (True, "the streams of the model's own code")
    assert (lacking["streams"], lacking["plan"]) == (3, ["mm < abs_1", "mm < relu", "relu < add"])
    assert not lacking["validated"]
    assert "'abs_1' on stream" in lacking["why"]
    assert "must be done before 'add' on stream 'default'" in lacking["why"]


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_of_the_package_torchair_say_that_they_take_none_of_it(mode: str) -> None:
    """Stock torch_npu has no fake_record_stream, without which torchair skips the pass that would make them events."""
    refused = in_a_process("own_streams.py", mode)["waits"]["refused"]
    assert f"TorchAir's mode={mode} does not take streams and events of the model's own code" in refused
    assert "at own_streams.py:" in refused
    assert "self.ready.record()" in refused
    assert "What would be taken: mode=npugraph_ex; or the model without streams" in refused
