"""The simulator replays for real: the genuine TorchAir on it gives eager's bits, and breaking any part of it shows."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import npucompose
from npucompose.errors import ConfigError
from simulator_tests.processes import in_a_process
from tests.npu.needs import offline

TORCHAIR_MODES = pytest.mark.parametrize(
    "mode", ["npugraph_ex", pytest.param("reduce-overhead", marks=pytest.mark.slow)]
)


@offline
@TORCHAIR_MODES
def test_one_capture_three_replays_three_task_updates_and_every_broken_part_is_noticed(mode: str) -> None:
    found = in_a_process("three_replays.py", mode)
    assert found["nothing is broken"] == []
    assert found["counts"] == {"capture": 1, "replay": 3, "task_update": 3}
    assert found["replay does nothing"]
    assert found["capture is not undone"]
    assert found["task update is ignored"] == ["step 1", "step 2"]


@offline
def test_graphs_of_attention_get_new_lengths_in_every_form_that_servers_use() -> None:
    found = in_a_process("task_updates.py")
    copies = found["wrong"].pop("negative control: copies of the captured tensors")
    assert copies, "what a CPU's tensors become in torch_npu's own dispatch mode"
    assert set(found["wrong"]) == {
        "default", "out", "by hand", "by hand, the replay first", "by hand, without reset", "by hand, in one call"
    }  # fmt: skip
    assert not any(found["wrong"].values())
    assert found["counts"] == {"capture": 6, "replay": 18, "task_update": 18}
    assert found["beside"], "lengths of a query of one token, and a softmax_lse that is not asked for, mean nothing"
    for what, words in {
        "no dispatch": "does not support update",
        "three updates for two": "there are only 3 elements",
        "a group outside": "AclmdlRICaptureTaskGrpBegin(stream), error code is 107029",
        "an update on the capturing stream": "TaskUpdateBegin(stream, handle.task_group), error code is 107027",
        "a result of another shape": "'out' holds a tensor of shape (3,). The result has (2, 4, 1, 16).",
        "lse of another shape": "'out' holds a tensor of shape (1,). The result has (2, 4, 1, 1).",
    }.items():
        assert words in found["answers"][what]


@offline
def test_two_streams_that_no_event_orders_are_noticed() -> None:
    """npugraph_ex of 2.13.0 drops its own record and wait, which is why plans are written with air's."""
    found = in_a_process("own_events.py")
    assert found["air"] == []
    assert any("aten.add" in sentence and "aten.sub" in sentence for sentence in found["npugraph_ex"])


@offline
def test_it_is_refused_in_the_process_of_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPUCOMPOSE_SIMULATED_NPU", raising=False)
    with pytest.raises(ConfigError, match="processes of its own"):
        npucompose.materialize("target=npu_offline", "mode=max-autotune")
    assert "torch_npu" not in sys.modules
    assert not hasattr(torch, "npu")


@offline
def test_checking_a_configuration_loads_neither_torch_nor_the_wheel() -> None:
    code = (
        "import sys; from npucompose.targets.npu_offline import NpuOfflineTarget as T; T().check('npugraph_ex'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'torch_npu', 'torchair')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
