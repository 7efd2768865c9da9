"""Names by which a model reaches the device: `npu`, `torch.npu`, `torch_npu._C`. None that is unknown ends the call."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.npu.capture.records import CaptureLegality
from npucompose.npu.capture.rules import calls, rules
from tests.capture.seeded import captured

Tensor = torch.Tensor
SYNCHRONISED = ("synchronise", 107027)


def found(facts: CaptureLegality) -> list[tuple[str, int | None]]:
    return [(one.rule, one.code) for one in facts.findings]


class MadeOnTheDevice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, device=torch.device("npu"))
        self.shift = torch.ones(4, device=torch.device("npu", 0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.device("npu:0"):
            made = torch.ones(4)
        torch.set_default_device("npu")
        counted = torch.arange(4.0)
        torch.set_default_device(None)
        assert isinstance(x.device, torch.device)
        return self.linear(x) + made + counted + self.shift + torch.zeros(4, device=torch.device(type="npu"))


def test_a_device_is_named_in_every_form() -> None:
    facts = captured(MadeOnTheDevice)
    assert (found(facts), facts.verdict) == ([], "captures"), facts.evidence


def test_numbers_of_python_are_copied_to_the_device_that_stands_around_them() -> None:
    def from_numbers(x: Tensor) -> Tensor:
        with torch.device("npu"):
            return x + torch.tensor([1.0, 2.0, 3.0, 4.0])

    assert found(captured(lambda: from_numbers)) == [("sync_copy", 107027)]
    assert found(captured(lambda: lambda x: x + torch.ones(4))) == [("host_tensor", None)]


def test_modules_below_torch_npu_and_casts_are_known() -> None:
    def uses(x: Tensor) -> Tensor:
        assert torch.npu.memory.memory_allocated() == 0
        side = torch.npu.streams.Stream()
        assert side != torch.npu.current_stream()
        with torch.npu.amp.autocast():
            y = x @ x
        with torch.autocast("npu", dtype=torch.bfloat16), torch.autocast(device_type="npu", enabled=False):
            z = x @ x
        return y.float() + z

    facts = captured(lambda: uses)
    assert (found(facts), facts.verdict) == ([], "captures"), facts.evidence


# torch_npu._C, where torch_npu is at hand.


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of that name, whose compiled module has two functions."""
    made = ModuleType("torch_npu")
    made.npu, made._C = ModuleType("torch_npu.npu"), SimpleNamespace(_npu_getDevice=lambda: 7, _npu_future=lambda: 8)  # type: ignore[attr-defined]
    for name, module in {"torch_npu": made, "torch_npu.npu": made.npu, "torch_npu._C": made._C}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_the_compiled_module_is_legal_illegal_or_unknown(torch_npu: Any) -> None:
    def calls_it(x: Tensor) -> Tensor:
        torch_npu._C._npu_synchronize()
        torch_npu._C._npu_getCurrentStream(0)
        torch_npu._C._npu_future()
        torch_npu._C._npu_absent(1)
        return x + torch_npu._C._npu_getDevice()

    facts = captured(lambda: calls_it)
    unknown = ("unknown_call", None)
    assert found(facts) == [SYNCHRONISED, unknown, unknown, unknown]
    assert [one.what.partition(":")[0] for one in facts.findings] == [
        "torch_npu._C._npu_synchronize()", "torch_npu._C._npu_getCurrentStream", "torch_npu._C._npu_future",
        "torch_npu._C._npu_absent",
    ]  # fmt: skip
    assert all("in calls_it" in (one.source or "") for one in facts.findings)


def test_what_is_imported_of_torch_npu_is_the_simulated_too(torch_npu: ModuleType) -> None:
    def imports(x: Tensor) -> Tensor:
        from torch_npu._C import _npu_getDevice  # type: ignore[import-not-found]
        from torch_npu.npu import synchronize  # type: ignore[import-not-found]

        synchronize()
        return x + _npu_getDevice()

    facts = captured(lambda: imports)
    assert (found(facts), facts.tasks) == ([SYNCHRONISED], 1)
    assert sys.modules["torch_npu._C"] is torch_npu._C


# The table.


def names_of(tree: Path) -> set[str]:
    """`torch.npu.__all__`, read and not imported."""
    text = (tree / "torch_npu" / "npu" / "__init__.py").read_text(encoding="utf-8")
    assigned = [one for one in ast.parse(text).body if isinstance(one, ast.Assign)]
    return next(set(ast.literal_eval(one.value)) for one in assigned if ast.unparse(one.targets[0]) == "__all__")


def test_every_name_of_the_wheels_module_has_a_row(torch_npu_tree: Path) -> None:
    names = names_of(torch_npu_tree)
    assert len(names) == 144
    assert names - calls().npu.keys() == set()


def test_a_row_that_breaks_a_rule_breaks_one_of_the_table_and_says_where_it_was_read() -> None:
    table = calls()
    for rows in (table.npu, table.compiled, table.methods, table.operators):
        for name, row in rows.items():
            assert row.rule is None or (row.rule in rules().rules and row.at), name
            assert row.rule is None or row.unknown is None, name


@pytest.mark.parametrize("name", sorted(calls().npu))
def test_a_call_of_any_name_of_torch_npu_does_not_end_the_answer(name: str) -> None:
    """It may break a rule, be unknown, or be legal; the call of the model goes on."""

    def uses(x: Tensor) -> Tensor:
        getattr(torch.npu, name)
        return x + 1

    facts = captured(lambda: uses)
    assert facts.tasks == 1, facts.evidence
