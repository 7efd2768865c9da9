"""What is there after the simulated runtime is installed: the wheel's own Python, on one device without CANN."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from targets.npu_offline.needs import in_a_process, offline

from npucompose.ops.catalogue import LISTED
from npucompose.targets.npu_offline.simulator import operators


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
    text = "custom:\n  - func: npu_first(Tensor self) -> Tensor\n  - npu_second(Tensor self) -> Tensor\n"
    text += f"  - {operators.FIA}(Tensor self) -> Tensor\n  - {operators.FIA}.out(Tensor self) -> Tensor\n"
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
    fia = operators.FIA
    names = ["npu_first", "npu_second", fia, f"{fia}.out", "fusion"]
    assert npu.defined == [f"{name}(Tensor self) -> Tensor" for name in names]
    kernels = {name: ((name, None), "CPU") for name in names[:3]}
    assert npu.kernels == {**kernels, f"{fia}.out": ((f"{fia}.out", operators._fia_out), "CPU")}
    assert set(aten.kernels) == {"scaled_dot_product_attention", "_weight_norm", "record_stream"}
    aten.kernels["record_stream"][0]("x", SimpleNamespace(stream_id=4))
    assert used == [("x", 4)]


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
