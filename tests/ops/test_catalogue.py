"""Which operators a torch_npu has: its list, its meta functions, its numbers of types, and the list that is brought."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from npucompose.errors import ConfigError
from npucompose.ops import catalogue
from npucompose.ops.catalogue import LISTED, META, SHIPPED, dtype_numbers, of_wheel, shipped
from npucompose.targets.npu_offline import wheel
from tests.npu.needs import offline
from tools.read_schemas import text_of

LIST = """
custom:
  - func: npu_first(Tensor self) -> Tensor
  - npu_second(Tensor self) -> Tensor
symint:
  - func: npu_first(Tensor self, int other) -> Tensor
  - func: npu_first.out(Tensor self, *, Tensor(a!) one, Tensor(b!) two) -> (Tensor(a!), Tensor(b!))
quant:
  - func: npu_third.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
official:
  - func: npu_official(Tensor self) -> Tensor
"""


def unpacked(root: Path, listed: str | None, meta: str = "") -> Path:
    """The parts of a wheel's folder torch_npu that are read."""
    (root / META).mkdir(parents=True)
    (root / META / "_meta_registrations.py").write_text(meta)
    (root / LISTED).parent.mkdir(parents=True)
    if listed is not None:
        (root / LISTED).write_text(listed)
    return root


def test_each_name_of_the_list_is_there_once_as_the_library_registers_it() -> None:
    assert list(catalogue.schemas(LIST)) == [
        "npu_first(Tensor self) -> Tensor",
        "npu_second(Tensor self) -> Tensor",
        "npu_first.out(Tensor self, *, Tensor[] out) -> (Tensor, Tensor)",
        "npu_third.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
    ]
    assert catalogue.as_registered("f(Tensor(a!) x, Tensor(b!) y) -> ()") == "f(Tensor(a!) x, Tensor(b!) y) -> ()"


def test_a_wheel_says_what_stays_in_a_graph(tmp_path: Path) -> None:
    meta = "x = 1\nhas_side_effect(torch.ops.npu.npu_second.default)\n"
    found = of_wheel(unpacked(tmp_path, LIST, meta), "9.9.9")
    assert (found.version, set(found.effects)) == ("9.9.9", {"npu_second"})
    assert list(found.schemas) == ["npu_first", "npu_second", "npu_first.out", "npu_third.out"]


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (None, "no csrc/aten/npu_native_functions_by_codegen.yaml that can be read"),
        ("custom: [unclosed", "no csrc/aten/npu_native_functions_by_codegen.yaml that can be read"),
        ("- a list", "no operator in csrc/aten/npu_native_functions_by_codegen.yaml"),
        ("custom:\n- {name: npu_x}\n", "no operator in csrc/aten/npu_native_functions_by_codegen.yaml"),
        ("custom: 3\nquant: text", "no operator in csrc/aten/npu_native_functions_by_codegen.yaml"),
    ],
)
def test_a_list_that_is_missing_or_of_another_form_is_one_sentence(
    tmp_path: Path, listed: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"has {words}: which operators it has is not known") as caught:
        of_wheel(unpacked(tmp_path, listed), "9.9.9")
    assert str(caught.value).count("\n") == 0


@offline
def test_the_list_that_is_brought_is_that_of_the_wheel() -> None:
    """`python -m tools.read_schemas` writes it anew."""
    tree = wheel.locate()
    if wheel.version(tree) != shipped().version:
        pytest.skip(f"the wheel here is {wheel.version(tree)}")
    assert SHIPPED.read_text(encoding="utf-8") == text_of(of_wheel(tree / "torch_npu", wheel.version(tree)))


@offline
def test_the_operators_are_counted_as_a_plain_reader_of_the_list_counts_them() -> None:
    """Without what torch itself has, which libtorch_npu registers under torch's name."""
    import torch

    text = (wheel.locate() / "torch_npu" / LISTED).read_text(encoding="utf-8")
    rows = [row for section in ("custom", "symint", "autograd", "quant") for row in yaml.safe_load(text)[section]]
    names = {str(row["func"] if isinstance(row, dict) else row).partition("(")[0].partition(".")[0] for row in rows}
    own = {name for name in names if not hasattr(torch.ops.aten, name)}
    packets = {name.partition(".")[0] for name in shipped().schemas}
    assert (packets, len(packets)) == (own, 398)


@offline
def test_numbers_of_types_are_the_wheels() -> None:
    found = dtype_numbers(wheel.locate() / "torch_npu")
    eight = (
        "int4",
        "hifloat8",
        "float8_e5m2",
        "float8_e4m3fn",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
        "float4_e1m2fn_x2",
    )
    assert [found[name] for name in (*eight, "uint8")] == [285, 290, 291, 292, 293, 296, 297, 260]


def test_a_wheel_without_headers_has_the_numbers_that_its_meta_functions_name(tmp_path: Path) -> None:
    meta = 'MAP = {\n    285: "torch_npu.int4",\n}\n'
    assert dtype_numbers(unpacked(tmp_path, LIST, meta)) == {"int4": 285}
