"""`pytest -m npu` proves every claim on a real NPU, `pytest -m npu --npu-target npu_offline` on the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.npu.claims import CLAIMS, Claim
from tests.npu.place import Place, Where, missing
from tests.npu.results import FOUND, device, visible


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Where:
    """The target that was asked for; claims are skipped, with the reason, where it cannot run, and the whole session
    ends red where a device is there to be asked.
    """
    name: Where = request.config.getoption("--npu-target")
    why = missing(name)
    if why is None and name == "npu":
        try:
            device(name)
        except (AssertionError, subprocess.SubprocessError) as error:
            why = f"torch_npu is installed and finds no device: {str(error).strip().splitlines()[-1]}"
    if why is not None and (seen := visible()) is not None and name == "npu":
        pytest.exit(f"a device is visible ({seen}) and {sys.executable} cannot use it: {why}", returncode=1)
    if why is not None:
        pytest.skip(why)
    return name


@pytest.mark.npu
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claim(claim: Claim, target: Where, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    place = Place(target=target, folder=tmp_path)
    try:
        claim.prove(place)
    finally:
        record_property(
            FOUND, json.dumps({"name": claim.name, "says": claim.says, "evidence": place.evidence}, default=str)
        )
