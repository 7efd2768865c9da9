"""The document's table of compile paths, and the two paths that it lacks, for both operators: presets fa_path1 to 6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npucompose.compose.tree import compose
from npucompose.npu.static_graph.verdicts import BY_PATH
from tests.npu.needs import offline
from tests.npu.place import ROOT, process
from tests.sinking.asked import asked

OPERATORS = {
    "fia": ("FusedInferAttentionScore", "actual_seq_lengths_kv"),
    "ifa": ("IncreFlashAttention", "actual_seq_lengths"),
}
TABLE = {
    # path: FX graph, GE graph, GE build graph, compilations of three calls (two in path 6), what feeds the lengths
    1: ("static", "static", "static", 3, "Const"),
    2: ("dynamic", "dynamic", "dynamic", 1, "Data"),
    3: ("dynamic", "static", "dynamic", 1, "Data"),
    4: ("dynamic", "static", "static", 1, "Data"),
    5: ("dynamic", "static", "dynamic", 1, "Data"),
    6: ("dynamic", "dynamic", "dynamic", 2, "Data"),
}


@pytest.mark.parametrize("path", [pytest.param(n, marks=pytest.mark.slow) if n in (2, 3, 6) else n for n in TABLE])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_preset_is_derived_to_be_on_its_path(path: int, op: str) -> None:
    soc = compose([f"experiment=fa_path{path}"]).tree["target"]["soc"]
    facts = asked(f"experiment=fa_path{path}", f"model.op={op}", on=("target=cpu", f"target.soc={soc}"))
    assert facts.path == path
    assert (facts.fx_graph, facts.ge_graph, facts.ge_build) == TABLE[path][:3] == BY_PATH[path]
    assert set(facts.certainty.values()) == {"derived"}
    assert (facts.blame == ()) == (facts.ge_build == "static")


RUNS = [
    pytest.param(path, op, marks=() if (path, op) == (4, "fia") else pytest.mark.slow)
    for path in TABLE
    for op in OPERATORS
]


@offline
@pytest.mark.parametrize(("path", "op"), RUNS)
def test_a_preset_is_proven_by_the_genuine_torchair(path: int, op: str, tmp_path: Path) -> None:
    chosen = (f"experiment=fa_path{path}", f"model.op={op}", "hydra.run.dir=run")
    done = process("npu_offline", ROOT / "run.py", *chosen, folder=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    report: dict[str, Any] = json.loads((tmp_path / "run" / "report.json").read_text())
    sinking, *verdicts = report["sinking"], *TABLE[path]
    assert [sinking[name] for name in ("fx_graph", "ge_graph", "ge_build")] == verdicts[:3]
    assert sinking["certainty"] == {"fx_graph": "proven", "ge_graph": "proven", "ge_build": "derived"}
    assert sinking["path"] == path
    assert len(report["npu"]["ge_graphs"]) == verdicts[3]
    unknown = [data for data in report["npu"]["ge_graphs"][-1]["data"].values() if "-1" in data]
    assert bool(unknown) == (verdicts[1] == "dynamic")
    handed_over = " ".join(next(step for step in sinking["steps"] if step["id"] == "S6")["evidence"])
    ge_type, slot = OPERATORS[op]
    assert f"{ge_type}: {slot} is fed by {verdicts[4]}" in handed_over
    assert f"ge.tiling_schedule_optimize = {int(path >= 4)}" in handed_over
