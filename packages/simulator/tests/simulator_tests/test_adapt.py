"""adapt=ascend before the genuine converter: what has no converter passes, and the rules name what the wheel names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npucompose.schema.adapt import Compose, FillArgs
from tests.npu.needs import offline, run
from tests.passes.adapted_samples import rules_of

INDEXED = """
import torch


class Indexed(torch.nn.Module):
    def forward(self, cache, index, rows, x):
        cache = torch.index_copy(cache, 0, index, rows)
        cache[index] = rows * 2
        return cache, torch.isnan(x), torch.nn.functional.softplus(x), x.amax(1)


def make():
    cache, rows, x = torch.zeros(4, 4), torch.ones(2, 4), torch.linspace(-2, 2, 16).view(4, 4)
    return Indexed(), {"cache": cache, "index": torch.tensor([1, 3]), "rows": rows, "x": x}
"""
CHOSEN = ("mode=max-autotune", "model=python", "model.factory=indexed:make", "trust=true")


@pytest.mark.slow
@offline
def test_an_update_by_index_passes_the_genuine_converter_once_it_is_adapted(tmp_path: Path) -> None:
    (tmp_path / "indexed.py").write_text(INDEXED)
    status, report, error = run(tmp_path, *CHOSEN, "adapt=ascend")
    assert (status, error) == (0, "")
    assert {rule["rule"] for rule in report["passes"][0]["rules"]} >= {"index_copy", "index_put", "amax"}
    types = report["npu"]["ge_graphs"][0]["types"]
    assert types["ScatterElements"] == 2
    assert report["numerics"]["passed"]


@offline
@pytest.mark.slow
def test_the_same_model_has_no_converter_without_the_rules(tmp_path: Path) -> None:
    (tmp_path / "indexed.py").write_text(INDEXED)
    status, _, error = run(tmp_path, *CHOSEN)
    assert status == 3
    assert "no GE converter for torch.ops.aten.index_copy.default" in error
    assert "at indexed.py:7 in forward" in error


def converters(tree: Path) -> dict[str, bool]:
    """{operator: whether its GE converter does more than raise}, read off the wheel without importing it."""
    folder = tree / "torch_npu" / "dynamo" / "torchair" / "_ge_concrete_graph" / "ge_converter" / "aten"
    found: dict[str, bool] = {}
    for file in sorted(folder.glob("*.py")):
        for function in (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)):
            body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and "register_fx_node_ge_converter" in ast.unparse(decorator.func):
                    name = ast.unparse(decorator.args[0]).removeprefix("torch.ops.")
                    found[name] = not isinstance(body[0], ast.Raise)
    return found


def test_every_rule_replaces_what_has_no_converter_by_what_has_one(torch_npu_tree: Path) -> None:
    known = converters(torch_npu_tree)
    for rule in rules_of("ascend").rules:
        if not isinstance(rule, (FillArgs, Compose)):
            continue
        assert not known[rule.op], f"{rule.name}: {rule.op} has a converter"
        steps = [rule.to] if isinstance(rule, FillArgs) else [step.op for step in rule.steps]
        assert [step for step in steps if not known.get(step)] == [], rule.name
