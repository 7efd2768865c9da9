"""Every operator of torch_npu in a model that is explained, on cpu and on npu_offline: a verdict, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from npucompose.ops.catalogue import shipped
from npucompose.targets.npu_offline import wheel
from simulator_tests.processes import found_by_path
from tests.npu.needs import offline
from tests.npu.place import ROOT

HERE = Path(__file__).parent
SAMPLE = (
    "npu_rms_norm", "npu_grouped_matmul", "npu_mish", "npu_quant_fusion_attention", "npu_scatter_pa_kv_cache",
    "npu_apply_adam.out", "npu_advance_step_flashattn", "npu_prefetch",
)  # fmt: skip
"""Converted, by a call, no meta function, a wrong one, writing, without values, writing without a pair, refused."""


AT_ONCE = 60
"""Operators for one process: torch keeps what it compiles, and is slower with each."""
NEEDS_PRODUCT = "no product is named (target.soc)"
RANKED, UNREAD = "batch_norm_gather_stats_update", "-"
"""An operator whose converter takes one rank, and what stands before one whose converter's conditions are forgotten."""


@cache
def all_verdicts(target: str) -> Mapping[str, Any]:
    names = list(shipped().schemas)
    parts = [verdicts(target, *names[at : at + AT_ONCE]) for at in range(0, len(names), AT_ONCE)]
    return {name: one for part in parts for name, one in part.items()}


def verdicts(target: str, *names: str) -> Mapping[str, Any]:
    script = [sys.executable, str(HERE / "npu_verdicts.py"), target, *names]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, env=found_by_path(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def unsaid(found: Mapping[str, Any]) -> list[str]:
    """Operators of which there is no verdict, or a bad one without a reason and the model's line."""
    return [name for name, one in found.items() if "error" in one or (_bad(one) and not _explained(one))]


def _bad(one: Mapping[str, Any]) -> bool:
    return one["verdicts"][1] in ("failed", "unknown")


def _explained(one: Mapping[str, Any]) -> bool:
    return bool(one["blame"]) and "npu_verdicts.py:" in f"{one['blame'][1]} {one['blame'][2]}"


@offline
@pytest.mark.parametrize("target", ["cpu", "npu_offline"])
def test_a_sample_of_the_operators_has_verdicts(target: str) -> None:
    found = verdicts(target, *SAMPLE)
    assert list(found) == list(SAMPLE)
    assert unsaid(found) == []
    said = {name: found[name]["verdicts"][1] for name in SAMPLE}
    assert (said["npu_rms_norm"], said["npu_grouped_matmul"], said["npu_scatter_pa_kv_cache"]) == ("static",) * 3
    assert (said["npu_mish"], said["npu_apply_adam.out"]) == ("unknown", "unknown")
    if target == "npu_offline":  # its converter raises for some arguments alone, which no table of converters has
        assert said["npu_prefetch"] == "failed"


@offline
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "npu_offline"])
def test_every_operator_has_a_verdict(target: str, golden: Callable[[str, str], None]) -> None:
    """The table of them is a golden text; it is of one version of torch_npu."""
    if wheel.version(wheel.locate()) != shipped().version:
        pytest.skip("another wheel is found here")
    found = all_verdicts(target)
    assert list(found) == list(shipped().schemas)
    assert len({name.partition(".")[0] for name in found}) == 398
    assert unsaid(found) == []
    golden(f"ops/npu_verdicts_{target}.txt", table(found))


@offline
@pytest.mark.slow
def test_both_targets_give_each_operator_one_verdict_or_the_derived_one_says_that_it_needs_the_product() -> None:
    if wheel.version(wheel.locate()) != shipped().version:
        pytest.skip("another wheel is found here")
    derived, genuine = all_verdicts("cpu"), all_verdicts("npu_offline")
    differ = {name for name, one in genuine.items() if one["verdicts"] != derived[name]["verdicts"]}
    assert differ == {name for name, one in derived.items() if one["blame"] and NEEDS_PRODUCT in one["blame"][2]}
    assert {derived[name]["verdicts"][1] for name in differ} == {"unknown"}


@offline
def test_a_converter_whose_condition_was_not_read_is_told_from_the_genuine_verdict() -> None:
    (read,) = verdicts("cpu", RANKED).values()
    (unread,) = verdicts("cpu", f"{UNREAD}npu::{RANKED}", RANKED).values()
    (genuine,) = verdicts("npu_offline", RANKED).values()
    assert read["verdicts"] == genuine["verdicts"] != unread["verdicts"]


def table(found: Mapping[str, Any]) -> str:
    """How many of each, and a line for each operator: its three verdicts and the first reason."""
    counts = Counter(" ".join(one["verdicts"]) for one in found.values())
    head = [f"{count:4} {verdict}" for verdict, count in counts.most_common()]
    rows = [f"{name}: {' '.join(one['verdicts'])}{_reason(one)}" for name, one in found.items()]
    return "\n".join((*head, "", *rows, ""))


def _reason(one: Mapping[str, Any]) -> str:
    return f" - {one['blame'][2][:160].rstrip()}" if one["blame"] else ""
