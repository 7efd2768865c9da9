"""Mistakes that only the worker can see: still one paragraph, exit 2, no folder, no record. (These load torch.)"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from nursery import command

ROOT = Path(__file__).resolve().parents[2]

CASES: dict[str, tuple[list[str], list[str]]] = {
    "a plan that matches nothing": (
        ["model=add", "passes=stream_plan", "streams.kind=explicit",
         "streams.plan=[{stream: s1, match: {target: aten.mm.default}}]"],
        ["streams.plan[0]", "matches nothing", "aten.mm.default", "There are: aten.add.Tensor"],
    ),
    "a plan with an ordering cycle": (
        ["model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub",
         "streams.edges=[{after: {target: aten.sub.Tensor}, before: {target: aten.abs.default}}]"],
        ["cycle", "abs", "sub"],
    ),
    "a factory that is not there": (
        ["model=python", "model.factory=nowhere_at_all:make", "trust=true"],
        ["nowhere_at_all:make"],
    ),
    "a factory that raises": (
        ["model=python", "model.factory=factories:raises", "trust=true"],
        ["factories:raises", "ZeroDivisionError"],
    ),
    "a factory that returns something else": (
        ["model=python", "model.factory=factories:number", "trust=true"],
        ["factories:number", "int"],
    ),
    "a shape policy that names no input": (
        ["model=add", "shapes=dynamic", "shapes.mark_static=[cache_*]"],
        ["'cache_*' @ shapes.mark_static names no input", "Inputs: "],
    ),
    "a log artifact that torch does not know": (
        ["model=add", "logs.artifacts=[graph_cod]"],
        ["unknown log artifact 'graph_cod' @ logs.artifacts", "Did you mean 'graph_code'?"],
    ),
}  # fmt: skip

FACTORIES = """
def raises():
    return 1 / 0

def number():
    return 3
"""


@pytest.mark.parametrize(("asked", "words"), CASES.values(), ids=CASES.keys())
def test_what_only_the_worker_can_see_is_told_the_same_way(asked: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "factories.py").write_text(FACTORIES)
    done = subprocess.run(
        command("run.py", "pipeline=compile_only", *asked),
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["factories.py"]
