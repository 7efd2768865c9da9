"""Run in a process of its own: the wheel's own modules answer as one Ascend 910B1 would."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest
import torch
from torch._functorch._aot_autograd import utils as aot_autograd

from npu_simulator import install, modules
from npucompose.errors import CompileError
from npucompose.targets.npu_offline import wheel


def refused(act: Any, *words: str) -> None:
    with pytest.raises((CompileError, ImportError, AttributeError, AssertionError, RuntimeError)) as caught:
        act()
    assert [word for word in words if word not in str(caught.value)] == []


def check_the_device(npu: Any) -> None:
    assert npu is torch.npu is sys.modules["torch_npu.npu"]  # type: ignore[attr-defined]
    assert torch.ones(1).is_npu is True  # type: ignore[attr-defined]
    assert (npu.is_available(), npu.is_initialized(), npu._is_in_bad_fork()) == (True, True, False)
    assert (npu.device_count(), npu.current_device(), npu._get_deterministic_level()) == (1, 0, 0)
    assert npu.get_device_name() == npu.get_device_name(0) == npu.get_device_properties().name == "Ascend910B1"
    assert npu.get_device_limit(0) == {"cube_core_num": 24, "vector_core_num": 48}
    assert (npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.memory_snapshot()) == (False, True, [])
    npu.matmul.allow_hf32 = True
    assert npu.matmul.allow_hf32 is True
    npu.manual_seed_all(7)
    npu.empty_cache()
    npu.set_compile_mode(jit_compile=True)
    assert not npu.is_jit_compile_false()


def check_streams(npu: Any) -> None:
    first, second = npu.Stream(), npu.Stream()
    assert npu.current_stream() == npu.default_stream()
    with npu.stream(first), npu.stream(second):
        assert npu.current_stream() == second
        assert torch.accelerator.current_stream().stream_id == second.stream_id
    assert npu.current_stream() == npu.default_stream() != first
    torch.accelerator.set_stream(first)
    assert npu.current_stream() == first
    npu.set_stream(npu.default_stream())
    npu.set_stream_limit(first, cube_num=2, vector_num=4)
    assert npu.get_stream_limit(first) == {"cube_core_num": 2, "vector_core_num": 4}
    npu.reset_stream_limit(first)
    assert npu.get_stream_limit(first) == {"cube_core_num": 24, "vector_core_num": 48}
    refused(lambda: npu.set_stream_limit("a stream", 1, 1), "stream should be torch_npu.npu.Stream")
    second.wait_stream(first)
    assert repr(npu.Event()).startswith("<torch_npu.npu.Event 0x")
    assert not hasattr(npu, "fake_record_stream")


def check_graphs(npu: Any) -> None:
    graph, x = npu.NPUGraph(), torch.zeros(3)
    with npu.graph(graph, pool=npu.graph_pool_handle()):
        assert npu.is_current_stream_capturing()
        y = x + 1
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [5, 5, 5]
    graph.super_kernel_optimize({"dcci_disable_on_kernel": [".*"]}, {"debug_sync_all": 1})
    refused(lambda: graph.super_kernel_optimize({"nonsense": 1}), "Invalid optimize_options param key: 'nonsense'")
    with tempfile.TemporaryDirectory() as folder:
        for value in (1, 2):
            torch.ops.npu.save_npugraph_tensor(x * value, save_path=f"{folder}/mm.pt")
        assert sorted(path.name for path in Path(folder).iterdir()) == ["mm_device_0_0.pt", "mm_device_0_1.pt"]
        graph.debug_dump(f"{folder}/dump.json")
        assert Path(folder, "dump.aligned.json").is_file()


def check_what_is_lacking(package: Any, npu: Any) -> None:
    x = torch.ones(2, 3)
    assert (int(package.get_npu_format(x)), package.get_storage_size(x), package.__version__) == (
        2,
        6,
        wheel.version(wheel.locate()),
    )
    assert package.npu_rms_norm is torch.ops.npu.npu_rms_norm
    package.erase_stream(x, npu.Stream())
    assert package.distributed._is_support_hccl_comm_name() is True
    refused(lambda: package.npu_nothing, "torch_npu has no 'npu_nothing'")
    assert (package.int4, package.hifloat8, package.float8_e8m0fnu, package.uint8) == (285, 290, 293, 260)
    assert package._C._cd.DType.float4_e2m1fn_x2 == 296
    refused(package._C._cd.cast_to_fp8, "target=npu_offline has no torch_npu._C._cd.cast_to_fp8", "no CANN")
    refused(lambda: package.distributed.is_hccl_available, "no torch_npu.distributed", "no second process")
    refused(lambda: __import__("torch_npu.profiler"), "target=npu_offline has no torch_npu._C._profiler")
    refused(npu.memory_allocated, "target=npu_offline has no torch_npu._C._npu_memoryStats", "no device memory")
    refused(lambda: npu.MemPool(), "target=npu_offline has no torch_npu._C._MemPool")
    refused(lambda: npu.FloatTensor(), "target=npu_offline has no torch.npu.FloatTensor")


def main() -> None:
    tree = wheel.locate()
    device = install(tree)
    import torch_npu  # pyright: ignore[reportMissingImports]

    npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
    check_the_device(npu)
    check_streams(npu)
    check_graphs(npu)
    check_what_is_lacking(torch_npu, npu)
    assert sys.path[0] == str(tree / "torch_npu" / "dynamo")
    core: Any = sys.modules["torchair.core._torchair"]
    assert core.GetSocName() == "Ascend910B1"
    assert core.TorchNpuGraphBase.device is device
    assert "npu" in aot_autograd._GRAPHSAFE_RNG_DEVICE_TYPES, "as torch_npu does: graphs may hold random numbers"
    x = torch.ones(2, 3)
    assert sys.modules["torchair.core._npu_graph_executor"].GetNpuStorageSizes(x) == [2, 3]
    assert sys.modules["torchair.core._npu_utils"].NpuFormatCastViaCpu(x, 29) is x
    refused(lambda: modules.install(device, tree), "torch_npu is imported in this process already")
    print(json.dumps({"held": True}))


if __name__ == "__main__":
    main()
