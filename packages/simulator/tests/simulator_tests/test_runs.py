"""`python run.py target=npu_offline …`: the genuine TorchAir in all three modes, with what came out in the report.

What is proven of an NPU is one list of claims (tests/npu/claims.py). A few of them run here at every `make test`, all
of them on the simulated runtime in `make test-full`, and all of them on a device with `pytest -m npu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.npu.claims import CLAIMS, REPEATED, REPEATED_CHOICES, Claim
from tests.npu.needs import offline
from tests.npu.place import ROOT, Place

ALWAYS = ("ge[streams]", "configuration[npugraph_ex]")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(target="npu_offline", folder=tmp_path)


@offline
@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.name in ALWAYS], ids=lambda claim: claim.name)
def test_a_claim_of_every_day_holds_on_the_simulated_runtime(claim: Claim, place: Place) -> None:
    claim.prove(place)


@offline
@pytest.mark.slow
def test_every_claim_holds_on_the_simulated_runtime_and_the_result_file_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    asked = ["-m", "npu", "--npu-target", "npu_offline", "--npu-result", str(file), "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, "tests/npu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"{len(CLAIMS)} of {len(CLAIMS)} claims held" in done.stdout
    data = json.loads(file.read_text())
    assert (data["complete"], data["missing"], data["failed"], data["held"]) == (True, [], [], len(CLAIMS))
    assert [claim["name"] for claim in data["claims"]] == [claim.name for claim in CLAIMS]
    assert all(claim["passed"] and claim["evidence"] for claim in data["claims"])
    assert data["device"]["platform"] == data["device"]["name"] == "simulated"
    assert data["device"]["torch_npu"] == "2.13.0"
    assert data["environment"]["versions"]["torch"]


@offline
def test_npugraph_ex_captures_and_replays_what_a_plan_orders(place: Place) -> None:
    ran = place.run("mode=npugraph_ex", "model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub")
    assert (ran.status, ran.error) == (0, "")
    npu = ran.npu
    assert (npu["package"], npu["platform"], npu["captures"], npu["streams"]) == ("npugraph_ex", "simulated", 1, 2)
    assert npu["replays"] > 1
    assert npu["unordered"] == []
    assert ran.report["numerics"]["bitwise"]
    assert ran.report["stages"]["capture"]["captures"] == 1
    told = (ran.folder / "graphs" / "capture_0.txt").read_text().splitlines()
    side = next(line for line in told if line.startswith("aten.sub")).rpartition(" ")[2]
    records = [n for n, line in enumerate(told) if line.startswith("record") and line.endswith(f"stream {side}")]
    subtraction = next(n for n, line in enumerate(told) if line.startswith("aten.sub"))
    addition = next(n for n, line in enumerate(told) if line.startswith("aten.add"))
    event = next(told[n] for n in records if subtraction < n < addition).split()[2]
    assert any(line.startswith(f"wait event {event} ") for line in told[subtraction:addition])


@offline
def test_a_graph_whose_runs_overwrite_one_another_is_told_with_the_option_that_copies(place: Place) -> None:
    (place.folder / "rows.py").write_text(REPEATED)
    ran = place.run("mode=npugraph_ex", "pipeline=compile_only", *REPEATED_CHOICES)
    assert ran.status == 0
    assert ran.report["graphs"][0]["overwrites"] == {"runs": 3, "option": "compiler.npugraph_ex.clone_output"}
    assert [graph["overwrites"] for graph in ran.report["graphs"][1:]] == [None] * (len(ran.report["graphs"]) - 1)


@offline
def test_without_a_choice_the_pipeline_is_check(tmp_path: Path) -> None:
    from npucompose import api

    provenance = api.checked(["target=npu_offline"]).provenance
    assert provenance["pipeline.name"] == "conf/pipeline/check.yaml, chosen by conf/target/npu_offline.yaml"


@offline
def test_a_simulated_runtime_has_no_speed_and_no_backdoor_to_one(place: Place) -> None:
    ran = place.run("model=add", "pipeline=bench")
    assert (ran.status, ran.report) == (2, {})
    assert "target=npu_offline has no speed" in ran.error


@offline
@pytest.mark.slow
def test_an_operator_to_take_apart_that_has_no_decomposition_is_refused(place: Place) -> None:
    ran = place.run("mode=max-autotune", "model=mlp", "target.decompose=[aten.adm]")
    assert ran.status == 2
    assert "unknown operator with a decomposition 'aten.adm'" in ran.error
