"""`explain --capture target=npu_offline`: the wheel's torch_npu is there, and the simulated machine stands in it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from npucompose.cli import main
from tests.npu.needs import offline

MODEL = """
import torch
import torch_npu
from torch_npu.npu import current_stream


class Decode(torch.nn.Module):
    def forward(self, x):
        side = torch.npu.Stream()
        side.wait_stream(current_stream())
        with torch.npu.stream(side):
            y = torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"))[0]
        current_stream().wait_stream(side)
        torch_npu._C._npu_synchronize()
        torch_npu.npu.of_a_later_version()
        return y + 1


def make():
    return Decode(), {"x": torch.randn(4, 8)}
"""


@pytest.mark.slow
@offline
@pytest.mark.usefixtures("warm_workers")
def test_a_model_that_imports_torch_npu_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "npu_decode.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.chdir(tmp_path)
    chosen = ("model=python", "model.factory=npu_decode:make", "trust=true", "mode=npugraph_ex")
    assert main(["explain", "--capture", "--json", "target=npu_offline", *chosen]) == 0
    facts = json.loads(capsys.readouterr().out)["capture"]
    found = [(one["rule"], one["code"]) for one in facts["findings"]]
    assert found == [("synchronise", 107027), ("unknown_call", None)]
    assert (facts["verdict"], facts["streams"]) == ("does not capture", 2), facts["evidence"]
