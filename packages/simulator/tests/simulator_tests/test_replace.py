"""passes=replace before the genuine TorchAir: through its own register_replacement where that does the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.npu.torchair import hooks
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.replace import Replace
from npucompose.targets.npu_offline import NpuOfflineTarget
from tests.npu.needs import offline, run
from tests.sample_graphs import CAN

MODEL = (
    "model=gpt_prefill", "model.layers=2", "model.hidden=64", "model.ffn=128", "model.heads=4", "model.tokens=8",
)  # fmt: skip
PLACES = {"add_rms_norm": 4, "rms_norm": 1, "swiglu": 2}
ROTARY = """
import torch


class Rotary(torch.nn.Module):
    def forward(self, x, cos, sin):
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def make():
    x, angle = torch.linspace(-2, 2, 480).view(2, 3, 5, 16), torch.linspace(0, 3, 80).view(1, 1, 5, 16)
    return Rotary(), {"x": x, "cos": angle.cos(), "sin": angle.sin()}
"""


def told(report: Mapping[str, Any]) -> tuple[dict[str, int], set[str]]:
    """({pattern: places}, who replaced them)."""
    rules = [rule for one in report["passes"] for rule in one["rules"]]
    return {rule["rule"]: rule["matches"] for rule in rules}, {rule["way"] for rule in rules}


@pytest.mark.parametrize(("names", "handed"), [(["rms_norm", "swiglu"], False), (["swiglu"], True)])
def test_a_matcher_that_keeps_numbers_to_itself_is_given_no_pattern_that_has_some(
    names: list[str], handed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's of torch 2.11 knows no `epsilon` when it asks whether a place may be replaced."""
    registered: list[Any] = []
    torchair = SimpleNamespace(register_replacement=lambda **given: registered.append(given))
    monkeypatch.setattr(hooks, "package", lambda name: torchair)
    monkeypatch.setattr(hooks, "_REGISTERED", set())
    replace = PassPipeline(passes=(("replace", Replace(patterns=tuple(names))),), can=CAN)
    backend: Any = SimpleNamespace(
        mode="npugraph_ex", target=NpuOfflineTarget(), pre=replace, options={"npugraph_ex.pattern_fusion_pass": True}
    )

    monkeypatch.setattr(hooks, "numbers_arrive", lambda: False)
    assert (hooks.hand_over(backend) is not None) is handed
    assert bool(registered) is handed
    backend.pre = replace
    monkeypatch.setattr(hooks, "numbers_arrive", lambda: True)
    assert hooks.hand_over(backend) is not None
    assert backend.pre.passes == ()


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_torchair_s_own_register_replacement_does_what_the_pass_would(mode: str, tmp_path: Path) -> None:
    status, report, error = run(tmp_path, *MODEL, f"mode={mode}", "passes=[cse,replace]")
    assert (status, error) == (0, "")
    assert told(report) == (PLACES, {hooks.WAY if hooks.numbers_arrive() else ""})
    assert report["numerics"]["passed"]
    assert [one["name"] for one in report["passes"]] == ["cse", "replace"]
    if mode == "max-autotune":
        types = report["npu"]["ge_graphs"][0]["types"]
        assert (types["RmsNorm"], types["AddRmsNorm"], types["SwiGlu"]) == (1, 4, 2)


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("passes=replace", "passes.replace.via=own"),
        ("passes=replace", "check=per_pass"),
        ("passes=replace", "compiler.npugraph_ex.pattern_fusion_pass=false"),
        ("passes=[replace,stream_plan]",),
    ],
)
def test_where_torchair_would_not_do_the_same_the_pass_does_it(overrides: tuple[str, ...], tmp_path: Path) -> None:
    status, report, error = run(tmp_path, *MODEL, "mode=npugraph_ex", *overrides)
    assert (status, error) == (0, "")
    assert told(report) == (PLACES, {""})


@offline
@pytest.mark.slow
def test_a_number_that_stands_for_any_is_found_by_torchair_too(tmp_path: Path) -> None:
    (tmp_path / "rotary.py").write_text(ROTARY)
    chosen = ("mode=npugraph_ex", "model=python", "model.factory=rotary:make", "trust=true", "passes=replace")
    status, report, error = run(tmp_path, *chosen)
    assert (status, error) == (0, "")
    assert told(report) == ({"rotary_mul": 1}, {"register_replacement"})
