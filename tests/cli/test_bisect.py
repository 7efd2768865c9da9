"""A wrong pass of a user's own: check=per_pass catches it, bisect names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nursery import command

ROOT = Path(__file__).resolve().parents[2]
WRONG = """
import torch

aten = torch.ops.aten


def wrong(gm, example_inputs, config):
    for node in list(gm.graph.nodes):
        if node.target is aten.abs.default:
            node.target = aten.neg.default


def right(gm, example_inputs, config):
    assert [x.dim() for x in example_inputs] == [2]
    assert config is None
    for node in list(gm.graph.nodes):
        if node.target is aten.sub.Tensor:
            with gm.graph.inserting_before(node):
                minus = gm.graph.call_function(aten.neg.default, (node.args[1],))
                total = gm.graph.call_function(aten.add.Tensor, (node.args[0], minus))
            node.replace_all_uses_with(total)
            gm.graph.erase_node(node)
"""
PASSES = """
# two functions of our own
first: {pass: python, function: "mine:right"}
cse: {}
second: {pass: python, function: "mine:wrong"}
dead_code: {}
"""


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(WRONG)
    (folder / "mine" / "passes").mkdir(parents=True, exist_ok=True)
    (folder / "mine" / "passes" / "two.yaml").write_text(PASSES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        command("npucompose", *arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.slow
def test_a_function_of_torchair_s_signature_is_a_pass_once_it_is_trusted(tmp_path: Path) -> None:
    chosen = ("run", "model=mm_abs_sub", "pipeline=check", "passes=python", "passes.python.function=mine:right")
    refused = call(tmp_path, *chosen)
    assert refused.returncode == 2
    assert "passes.python imports code that the configuration names, and trust is false." in refused.stderr
    done = call(tmp_path, *chosen, "trust=true", "check=per_pass")
    assert (done.returncode, done.stderr) == (0, "")
    (report,) = tmp_path.glob("outputs/*/*/report.json")
    (own,) = (one for one in json.loads(report.read_text())["passes"] if one["name"] == "python")
    assert own["matches"] == 4


@pytest.mark.slow
def test_a_wrong_pass_is_caught_and_named(tmp_path: Path) -> None:
    chosen = ("model=mm_abs_sub", "pipeline=check", "passes=two", "trust=true")
    caught = call(tmp_path, "run", *chosen, "check=per_pass", "--config-dir", "mine")
    assert caught.returncode == 3
    assert "Pass 'python' @ passes.second (stage pre) does not keep what it promises: on random inputs" in caught.stderr
    found = call(tmp_path, "bisect", *chosen, "--config-dir", "mine")
    assert found.returncode == 1
    assert "passes.second is the first pass that breaks it: the passes changed the results" in found.stdout
    assert "first, cse: ok" in found.stdout
    assert "first, cse, second: numerics_failed" in found.stdout


@pytest.mark.slow
def test_bisect_blames_nobody_where_all_holds(tmp_path: Path) -> None:
    done = call(tmp_path, "bisect", "model=add", "passes=clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert "it holds with all of its passes." in done.stdout


def test_bisect_needs_passes(tmp_path: Path) -> None:
    done = call(tmp_path, "bisect", "model=add")
    assert done.returncode == 2
    assert "the experiment has no passes" in done.stderr
