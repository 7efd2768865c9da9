"""What is there after the simulated runtime is installed: the wheel's own Python, on one device without CANN."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npu_simulator import attention_forms, operators
from npucompose.ops import attention
from npucompose.ops.catalogue import LISTED
from npucompose.ops.definitions import UnsupportedArgument
from simulator_tests.processes import in_a_process
from tests.npu.needs import offline


@offline
def test_torch_npu_answers_as_a_device_with_one_ascend_910b3() -> None:
    """The script holds the checks: torch_npu cannot be installed in a process and taken out again."""
    assert in_a_process("installed.py") == {"held": True}


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
    fia = attention.FIA
    forms = (fia, f"{fia}.out", f"_{fia}_get_max_workspace", f"_{fia}_infer_output")
    text = "custom:\n  - func: npu_first(Tensor self) -> Tensor\n  - npu_second(Tensor self) -> Tensor\n"
    text += "".join(f"  - {form}(Tensor self) -> Tensor\n" for form in forms)
    text += "  - abs(Tensor self) -> Tensor\n  - fusion(Tensor self) -> Tensor\n"
    (tmp_path / LISTED).parent.mkdir(parents=True)
    (tmp_path / LISTED).write_text(text)
    Library.made = []
    loaded: list[str] = []
    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(operators, "_LIBRARIES", [])
    monkeypatch.setattr(operators, "module", lambda name, **_: loaded.append(name))
    monkeypatch.setattr(operators.importlib, "import_module", loaded.append)
    monkeypatch.setattr(operators, "register_fused_attention", lambda library: {"fusion"})
    monkeypatch.setattr(operators.npu, "value", lambda name, own=None: (name, own))
    used: list[Any] = []
    device: Any = SimpleNamespace(use=lambda *given: used.append(given))
    meta = tmp_path / "op_plugin/meta"
    meta.mkdir(parents=True)
    (meta / "_meta_registrations.py").touch()
    operators.define(device, tmp_path, "2.99.0")
    assert loaded == ["torch_npu.op_plugin", "torch_npu.op_plugin.meta._meta_registrations"]
    (meta / "_fake_registrations.py").touch()
    operators._load_meta_functions(tmp_path)
    assert loaded[-1] == "torch_npu.op_plugin.meta._fake_registrations"
    npu, aten = Library.made
    assert [npu, aten] == operators._LIBRARIES
    assert ((npu.namespace, npu.kind), (aten.namespace, aten.kind)) == (("npu", "FRAGMENT"), ("aten", "IMPL"))
    assert npu.defined == [f"{name}(Tensor self) -> Tensor" for name in ("npu_first", "npu_second", *forms, "fusion")]
    own = attention_forms.capture_forms()
    assert set(forms[1:]) <= set(own)
    assert npu.kernels.keys() == {"npu_first", "npu_second", *forms}
    for name, ((given, kernel), key) in npu.kernels.items():
        assert (given, kernel is None, key) == (name, name not in own, "CPU")
    assert set(aten.kernels) == {"scaled_dot_product_attention", "_weight_norm", "dropout", "record_stream"}
    aten.kernels["record_stream"][0]("x", SimpleNamespace(stream_id=4))
    assert used == [("x", 4)]


def test_attention_in_place_fills_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.ones(2), torch.full((1,), 3.0)
    asked: list[Any] = []
    monkeypatch.setitem(attention.KERNELS, "some", lambda *a, **named: asked.append((a, named)) or made)
    out = torch.zeros(2), torch.zeros(1)
    write: Any = attention_forms._write
    assert write("some", "q", "k", "v", workspace=None, out=out, scale=2) is out
    assert asked == [(("q", "k", "v"), {"scale": 2})]
    assert [part.tolist() for part in out] == [[1, 1], [3]]
    with pytest.raises(ValueError, match="zip"):
        write("some", "q", "k", "v", out=out[:1])
    with pytest.raises(
        UnsupportedArgument, match=r"npu\.some: 'out' holds a tensor of shape \(1,\)\. The result has \(2,\)"
    ):
        write("some", "q", "k", "v", out=out[::-1])
    monkeypatch.setitem(attention.KERNELS, "some", lambda *_: (made[0], torch.empty(0)))
    write("some", "q", "k", "v", out=out)
    assert out[1].tolist() == [0], "a result that is not asked for"
    workspace = attention_forms._workspace(torch.ones(2, dtype=torch.float16), *made)
    assert (workspace.dtype, workspace.numel()) == (torch.float16, 16)
