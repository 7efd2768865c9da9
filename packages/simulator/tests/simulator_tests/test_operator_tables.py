"""The tables against the wheel itself: its registry of converters, its YAML, and the conversion of each operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from attrs import evolve

from npucompose.targets.npu_offline import wheel
from npucompose.targets.npu_offline.operator_lists import live_lists
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import operators
from simulator_tests.compared_operators import compared, found, wanted
from simulator_tests.processes import in_a_process
from tests.npu.needs import offline
from tools.operator_calls import overload

GELU, ITS_KERNEL = "aten::gelu", "aten::gelu.out"
"""An operator with a GE converter, and the one that its kernel is listed as."""


@offline
@pytest.mark.slow
def test_the_registry_of_the_imported_wheel_has_the_same_converters() -> None:
    told: dict[str, bool] = in_a_process("registered_converters.py")
    lists = live_lists(wheel.locate()).converters
    mine = {name: bool(says) for name, says in lists.items() if name.startswith(("aten::", "prims::"))}
    assert len(told) > 1500
    assert {name: mine.get(name) for name in told} == told
    for name in set(mine) - set(told):
        with pytest.raises(AttributeError):  # an overload with named dimensions, which torch.ops does not have
            overload(name)


@offline
def test_the_yaml_of_the_wheel_read_by_another_parser_lists_the_same_kernels() -> None:
    folder = wheel.locate() / "torch_npu" / "csrc" / "aten"
    names: set[str] = set()
    for file in ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml"):
        tree = yaml.safe_load((folder / file).read_text())
        entries = [one for key in ("custom", "supported", "symint", "quant", "autograd") for one in tree.get(key) or ()]
        names |= {(one["func"] if isinstance(one, dict) else one).split("(")[0].strip() for one in entries}
    listed = {name.partition("::")[2] for name, by in live_lists(wheel.locate()).kernels.items() if by != "python"}
    assert listed == names


@offline
@pytest.mark.slow
def test_derived_captured_and_genuine_agree_for_every_operator_without_a_converter_or_a_kernel(tmp_path: Path) -> None:
    table = operators(REFERENCE)
    names = wanted(table)
    rows = list(compared(found(tmp_path, names), names, table))
    assert {row.name: row.wrong for row in rows if row.wrong} == {}
    assert sum(not row.why_not for row in rows) > 1200


@offline
@pytest.mark.slow
def test_a_row_too_few_in_the_table_of_converters_or_of_kernels_does_not_agree(tmp_path: Path) -> None:
    """The verdicts are made with the tables that lack the row, and compared with the conversion and the whole tables;
    and the other way round."""
    table = operators(REFERENCE)
    whole = found(tmp_path, [GELU])
    assert [row.wrong for row in compared(whole, [GELU], table)] == [""]
    (row,) = compared(found(tmp_path, [GELU], without=[GELU]), [GELU], table)
    assert "derived failed aten.gelu.default, genuine static" in row.wrong
    (row,) = compared(found(tmp_path, [GELU], without=[ITS_KERNEL]), [GELU], table)
    assert row.wrong == "aten.gelu.default: the capture says cpu_kernel, the tables nothing"

    kernels = {name: by for name, by in table.lists.kernels.items() if name != ITS_KERNEL}
    (row,) = compared(whole, [GELU], evolve(table, lists=evolve(table.lists, kernels=kernels)))
    assert row.wrong.startswith("aten.gelu.default: the tables say cpu_kernel, the capture nothing")
