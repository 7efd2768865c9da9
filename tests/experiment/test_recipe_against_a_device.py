"""`npucompose recipe verify LOCK --against results.json`: a refuted claim is an error of the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from nursery import Warm

from npucompose.cli import main
from npucompose.experiment import job
from npucompose.results.premises import SCHEMA

ON = {"soc": "Ascend910B4", "torch_npu": "2.13.0", "torch": "2.13.0", "cann": "8.5.0"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locked")
    file = folder / "recipe.lock.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("airflow_free.forkserver.subprocess", Warm())
        chosen = ["model=add", "mode=reduce-overhead", "pipeline=check", "target=cpu"]
        assert main(["recipe", "lock", *chosen, "--out", str(file)]) == 0
    return file


def told(folder: Path, *claims: dict[str, Any]) -> str:
    file = folder / "results.json"
    file.write_text(json.dumps({"schema": SCHEMA, "device": ON, "claims": list(claims)}))
    return str(file)


def claim(name: str, verdict: str) -> dict[str, Any]:
    return {"name": name, "says": "one capture, and the values of eager", "verdict": verdict, "error": "2 != 1"}


NAME = "run[reduce-overhead, add, plain]"


def test_one_refuted_claim_refuses_the_recipe_that_rests_on_it(
    locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert yaml.safe_load(locked.read_text())["experiment"]["mode"]["name"] == "reduce-overhead"
    file = told(tmp_path, claim(NAME, "refuted"), claim("option_tree", "proven"))
    assert main(["recipe", "verify", str(locked), "--against", file]) == 2
    err = capsys.readouterr().err
    assert f"refuted on Ascend910B4, torch_npu 2.13.0, torch 2.13.0, CANN 8.5.0: {NAME}" in err
    assert "2 != 1" in err


def test_a_claim_that_it_does_not_rest_on_does_not_refuse_it(
    locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = told(tmp_path, claim("ge[sink]", "refuted"), claim(NAME, "proven"))
    assert main(["recipe", "verify", str(locked), "--against", file]) == 0
    out = capsys.readouterr().out
    assert f"proven   {NAME}" in out
    assert "not run  option_tree" in out
    assert "1 proven, 0 refuted, 2 not run" in out


def test_a_file_that_is_no_result_is_refused(locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert main(["recipe", "verify", str(locked), "--against", str(tmp_path / "results.json")]) == 2
    assert "is no result file" in capsys.readouterr().err


def test_devices_are_read_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in that of the disk: a message that lists them is the same on every machine."""
    monkeypatch.setattr(job, "device_folder", lambda device: tmp_path / device)
    names = [f"device{number}" for number in (7, 3, 9, 0, 5, 1, 8, 2, 6, 4)]
    for name in names:
        (tmp_path / name).mkdir()
        told(tmp_path / name)
        (tmp_path / name / "results.json").rename(tmp_path / name / "verdicts.json")
    monkeypatch.setattr(job.premises, "read", lambda file, text: file.parent.name)
    assert list(job._device_results()) == sorted(names)
