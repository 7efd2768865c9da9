"""Every name that TorchAir looks for is there after the stand-in is installed, in a process that is put back after."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.ops import attention, fused
from npucompose.targets.npu_offline.standin import graphs, modules, operators, streams
from npucompose.targets.npu_offline.standin.device import Device

OURS = ("torch_npu", "torchair", "torch.npu")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Device]:
    """A device whose modules are in this process until the test is over."""
    before = {name: module for name, module in sys.modules.items() if name.startswith(OURS)}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    for holder, name in (
        (streams.Stream, "device_of"), (streams.Event, "device_of"), (graphs.NPUGraph, "device"),
        (graphs.graph, "device"), (torch, "npu"), (torch.Tensor, "is_npu"),
    ):  # fmt: skip
        monkeypatch.setattr(holder, name, None, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    told: list[Any] = []
    monkeypatch.setattr(modules, "_setup_privateuseone_for_python_backend", lambda *a, **named: told.append((a, named)))
    device = Device()
    modules.install(device, tmp_path)
    assert told == [(("npu",), {"backend_module": sys.modules["torch_npu.npu"]})]
    yield device
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]
    sys.modules.update(before)


def found(name: str) -> Any:
    return importlib.import_module(name)


def test_torch_npu_answers_as_a_device_with_one_ascend_910b1(installed: Device, tmp_path: Path) -> None:
    assert sys.path[0] == str(tmp_path / "dynamo")
    npu: Any = found("torch_npu.npu")
    assert npu is torch.npu is sys.modules["torch.npu"]  # type: ignore[attr-defined]
    assert torch.ones(1).is_npu is True  # type: ignore[attr-defined]
    assert (npu.is_available(), npu.is_initialized(), npu._is_in_bad_fork()) == (True, True, False)
    assert (npu.device_count(), npu.current_device(), npu._get_deterministic_level()) == (1, 0, 0)
    assert npu.get_device_name() == npu.get_device_name(0) == "Ascend910B1"
    assert npu.get_device_limit() == {"cube_core_num": 24, "vector_core_num": 48}
    properties = npu.get_device_properties(0)
    assert (properties.name, properties.total_memory, properties.cube_core_num) == ("Ascend910B1", 64 << 30, 24)
    assert (npu.matmul.allow_hf32, npu.conv.allow_hf32) == (False, True)
    assert npu.default_generators == [torch.default_generator]
    assert npu.memory_snapshot() == []
    assert npu.manual_seed(1) is npu.empty_cache() is npu.fake_record_stream() is None
    assert npu.graph_pool_handle() == (1, 0)
    assert npu.default_stream() is installed.default_stream
    assert npu.current_stream() is installed.current_stream() is found("torch_npu.npu.utils").current_stream()
    with npu.stream(npu.Stream()) as inner:
        assert npu.current_stream() is inner
    assert npu.synchronize() is None
    assert (npu.Stream, npu.Event, npu.ExternalEvent) == (streams.Stream, streams.Event, streams.ExternalEvent)
    assert npu.NPUGraph.device is npu.graph.device is installed
    stream = npu.Stream()
    npu.set_stream_limit(stream, 2, 4)
    assert npu.get_stream_limit(stream) == {"cube_core_num": 2, "vector_core_num": 4}
    named = [(f.__module__, f.__name__) for f in (npu.current_stream, npu.get_stream_limit, npu.set_stream_limit)]
    assert named == [
        ("torch_npu.npu.utils", "current_stream"), ("torch_npu.npu.npu_config", "get_stream_limit"),
        ("torch_npu.npu.npu_config", "set_stream_limit"),
    ]  # fmt: skip


def test_the_compiled_modules_are_there(installed: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = found("torch_npu")
    x = torch.ones(2, 3)
    assert (package.__file__, package.get_npu_format(x), package.get_storage_size(x)) == (
        str(tmp_path / "__init__.py"),
        2,
        6,
    )
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(npu_mine="operator", other="operator"))
    assert package.npu_mine == "operator"
    for absent in ("npu_nothing", "other"):
        with pytest.raises(AttributeError, match=f"torch_npu has no '{absent}'"):
            getattr(package, absent)
    compiled: Any = found("torch_npu._C")
    assert compiled._npu_getCheckpointState(0, (1, 0)) == (0, (1, 0))
    assert compiled._construct_storage_from_data_pointer is modules._storage_at
    assert compiled._construct_NPU_Tensor_From_Storage_And_Metadata is modules._tensor_over
    assert compiled._aclop_start_dump("a") is compiled._npu_setCheckpointPoolState() is None
    core: Any = found("torchair.core._torchair")
    assert core.GetSocName() == "Ascend910B1"
    assert core.TorchNpuGraphBase.device is installed
    assert found("torchair.core._npu_graph_executor").GetNpuStorageSizes(x) == [2, 3]
    assert type(found("torchair.core._npu_graph_executor").GetNpuStorageSizes(x)) is list
    assert found("torchair.core._npu_utils").NpuFormatCastViaCpu(x, 29) is x
    utils: Any = found("torch_npu.npu.utils")
    assert (utils._is_gte_cann_version("9.0"), utils.get_cann_version()) == (True, "9.0.0")
    npu: Any = found("torch_npu.npu")
    assert found("torch_npu.npu.npu_config").get_stream_limit is npu.get_stream_limit
    assert found("torch_npu.npu.npu_config").set_stream_limit is npu.set_stream_limit
    kinds: Any = found("torch_npu.npu.streams")
    assert (kinds.Stream, kinds.Event, kinds.ExternalStream) == (streams.Stream, streams.Event, streams.Stream)
    assert found("torch_npu.npu._backends").get_soc_version() == 220
    assert found("torch_npu.distributed")._is_support_hccl_comm_name() is True
    assert package.npu is npu
    with pytest.raises(RuntimeError, match="torch_npu is imported in this process already"):
        modules.install(installed, tmp_path)


class Counting(TorchDispatchMode):
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_memory_of_a_recording_is_given_itself_and_no_mode_sees_how(installed: Device) -> None:
    x, recording = torch.ones(4), graphs.NPUGraph()
    with graphs.graph(recording):
        y = x * 2
    given = modules._storage_at(y.data_ptr(), "npu", 16)
    assert given._cdata == recording.blocks[y.data_ptr()]._cdata
    described = {"dtype": torch.float32, "storage_offset": 0, "size": (4,), "stride": (1,)}
    with Counting() as counting:
        modules._storage_at(x.data_ptr(), "npu", 16)
        seen = modules._tensor_over(described, given)
    assert counting.count == 0
    assert seen.tolist() == [2, 2, 2, 2]


class Library:
    """What is defined and registered, instead of torch's own."""

    made: list[Library]

    def __init__(self, namespace: str, kind: str) -> None:
        self.namespace, self.kind = namespace, kind
        self.defined: list[str] = []
        self.kernels: dict[str, tuple[Any, str]] = {}
        Library.made.append(self)

    def define(self, schema: str) -> None:
        self.defined.append(schema)

    def impl(self, name: str, kernel: Any, key: str) -> None:
        self.kernels[name] = (kernel, key)


def test_the_operators_of_the_wheel_are_defined_with_shapes_and_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "custom:\n  - func: npu_first(Tensor self) -> Tensor\n  - npu_second(Tensor self) -> Tensor\n"
    files = {
        operators.SCHEMAS: text,
        "utils/_error_code.py": "from torch_npu.utils.utils import _is_interactive_command_line as f\nfound = f()\n",
        "op_plugin/meta/_meta_registrations.py": "from torch_npu.utils._error_code import found\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    Library.made = []
    effects: list[Any] = []
    before = {name for name in sys.modules if name.startswith("torch_npu")}
    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(operators, "_LIBRARIES", [])
    monkeypatch.setattr(operators, "has_side_effect", effects.append)
    monkeypatch.setattr(operators.fusion_attention, "register", lambda library: library.impl("fusion", None, "CPU"))
    save = SimpleNamespace(default="save, by default")
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(save_npugraph_tensor=save))
    try:
        assert operators.define(tmp_path) == 2
        loaded: Any = sys.modules["torch_npu.op_plugin.meta._meta_registrations"]
        assert loaded.found is False
        assert "torch_npu.op_plugin.meta._fake_registrations" not in sys.modules
        (tmp_path / "op_plugin/meta/_fake_registrations.py").write_text("found = 1\n")
        operators._load_meta_functions(tmp_path)
        assert sys.modules["torch_npu.op_plugin.meta._fake_registrations"].found == 1
    finally:
        for name in [name for name in sys.modules if name.startswith("torch_npu") and name not in before]:
            del sys.modules[name]
    npu, aten = Library.made
    assert [npu, aten] == operators._LIBRARIES
    assert ((npu.namespace, npu.kind), (aten.namespace, aten.kind)) == (("npu", "FRAGMENT"), ("aten", "IMPL"))
    assert npu.defined == ["npu_first(Tensor self) -> Tensor", "npu_second(Tensor self) -> Tensor", operators.SAVE]
    ours = {**attention.KERNELS, **fused.KERNELS}
    fia = operators.FIA
    assert npu.kernels == {
        **{name: (kernel, "CPU") for name, kernel in ours.items()},
        "fusion": (None, "CPU"),
        f"{fia}.out": (operators._fia_out, "CPU"),
        f"_{fia}_get_max_workspace": (operators._fia_workspace, "CPU"),
        "save_npugraph_tensor": (operators._save, "CPU"),
    }
    assert set(aten.kernels) == {"scaled_dot_product_attention", "_weight_norm"}
    assert effects == ["save, by default"]


def test_attention_in_place_fills_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.ones(2), torch.full((1,), 3.0)
    asked: list[Any] = []
    monkeypatch.setitem(
        operators.attention.KERNELS, operators.FIA, lambda *a, **named: asked.append((a, named)) or made
    )
    out = torch.zeros(2), torch.zeros(1)
    assert operators._fia_out("q", "k", "v", workspace=None, out=out, scale=2) is out  # type: ignore[arg-type]
    assert asked == [(("q", "k", "v"), {"scale": 2})]
    assert [part.tolist() for part in out] == [[1, 1], [3]]
    with pytest.raises(ValueError, match="zip"):
        operators._fia_out("q", "k", "v", out=out[:1])  # type: ignore[arg-type]
    workspace = operators._fia_workspace(torch.ones(2, dtype=torch.float16), *made)
    assert (workspace.dtype, workspace.numel()) == (torch.float16, 16)
