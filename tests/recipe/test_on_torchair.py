"""Ejected scripts on the genuine TorchAir above the simulator: the frozen hooks meet the graphs that TorchAir makes.

Every experiment's script is a claim of tests/npu; here are one of them for `make test`, and what a script refuses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.recipe import eject
from tests.npu.claims import ejected
from tests.npu.needs import offline
from tests.npu.place import Place, process
from tests.recipe.experiments import EXPERIMENTS

SCRIPT = Path(__file__).with_name("on_torchair.py")


@offline
@pytest.mark.slow
def test_a_script_with_gears_and_a_filter_gives_the_configuration_and_the_graph_of_the_experiment(
    tmp_path: Path,
) -> None:
    place = Place(target="npu_offline", folder=tmp_path)
    ejected("gears", place)
    (graph,) = place.evidence["script"]["ge"]
    assert set(graph["options"]["ge.dynamicDims"].split(";")) == {"32,32", "64,64"}
    assert place.evidence["script"]["leaves"]["debug.data_dump.filter"] == ["mm", "aten.add*"]


@offline
@pytest.mark.slow
def test_a_script_meets_another_graph_and_says_so(tmp_path: Path) -> None:
    told = {
        "overrides": [*EXPERIMENTS["branches"], "target=npu_offline", "model.depth=3"],
        "script": eject(*EXPERIMENTS["branches"]),
    }
    done = process("npu_offline", SCRIPT, folder=tmp_path, told=json.dumps(told))
    assert done.returncode != 0
    assert "were frozen for the graph" in done.stderr
