"""docs/adding_a_pass.md, executed: its class, its YAML and its golden test, as printed there."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import yaml

from npucompose.passes import PASSES, pipeline
from npucompose.passes.pipeline import PassPipeline, build
from npucompose.schema.experiment import Choice
from tests.passes.test_rewrites import before_and_after
from tests.sample_graphs import CAN, traced

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_pass.md").read_text()
FILE, LINE, YAML, TEST = (match[2] for match in re.finditer(r"(?<!-->\n)```(python|yaml)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def square(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = types.ModuleType("npucompose.passes.square")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(FILE, "square.py", "exec"), module.__dict__)
    extended = attrs.evolve(PASSES, built_in=(*PASSES.built_in, *eval(f"({LINE})")))
    monkeypatch.setattr(pipeline, "PASSES", extended)
    return module.Square


def test_the_page_s_pass_is_found_by_name_and_its_yaml_lists_its_options(square: Any) -> None:
    (name, options), *rest = yaml.safe_load(YAML).items()
    assert not rest
    assert YAML.startswith("# ")
    assert pipeline.PASSES.get(name) is square
    assert options == {field.name: field.default for field in attrs.fields(square)}
    assert build({name: Choice(name=name, options=options)}, {}) == ((name, square()),)


def test_the_page_s_pass_keeps_the_values(square: Any) -> None:
    x = torch.tensor([3.0, -0.5])
    module = traced(lambda x: x.pow(2) + x.pow(3), x)
    (record,) = PassPipeline(passes=(("square", square()),), can=CAN)(module)
    assert (record.matches, record.exact) == (1, False)
    assert torch.equal(module(x), x * x + x.pow(3))


def test_the_page_s_function_is_a_pass_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"-->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mypasses.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    made = build({"python": Choice(name="python", options={"function": "mypasses:square"})}, {})
    made[0][1].check()
    module = traced(lambda x: x.pow(2) + x.pow(3), torch.tensor([3.0, -0.5]))
    (record,) = PassPipeline(passes=made, can=CAN, check=True)(module, ["example"])
    assert (record.matches, record.exact) == (1, False)
    assert "aten.mul.Tensor" in str(module.graph)


def test_the_page_s_golden_test_runs(square: Any, golden: Callable[[str, str], None]) -> None:
    room: dict[str, Any] = {"Square": square, "traced": traced, "torch": torch, "before_and_after": before_and_after}
    exec(TEST, room)
    room["test_square_before_and_after"](golden)
