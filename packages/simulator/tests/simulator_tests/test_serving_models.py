"""Models as serving code has them: derived (cpu) and genuine verdict (npu_offline) agree, with operator and line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator_tests.processes import found_by_path
from simulator_tests.serving_models import CASES
from tests.npu.needs import offline
from tests.npu.place import ROOT

HERE = Path(__file__).parent
SAMPLE = (
    "norm_and_swiglu",
    "decode_in_pages",
    "write_pages",
    "experts_brought_back",
    "state_space_step",
    "attention_of_a_prompt",
)
BUILT_IN = (
    "paged_decode:{}:layout=BNSD", "paged_decode:{}:layout=TND", "paged_prefill:{}", "mla_decode:{}", "moe_grouped:{}",
    "moe_grouped:{}:quant=w8a8", "moe_grouped:{}:combine=unpermute", "w8a8_linear:{}", "sampling_tail:{}",
    "sampling_tail:{}:filter=npu",
)  # fmt: skip
BUILT_IN_SAMPLE = ("paged_decode:static:layout=TND", "mla_decode:dynamic", "moe_grouped:static:quant=w8a8")


@cache
def verdicts(target: str, names: Sequence[str]) -> Mapping[str, Any]:
    script = [sys.executable, str(HERE / "serving_verdicts.py"), target, *names]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, env=found_by_path(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def disagreements(names: Sequence[str]) -> dict[str, Any]:
    """{model: what either says} where they differ."""
    derived, genuine = verdicts("cpu", tuple(names)), verdicts("npu_offline", tuple(names))
    assert list(derived) == list(genuine) == list(names)
    return {name: (derived[name], genuine[name]) for name in names if not agree(derived[name], genuine[name])}


def agree(derived: Mapping[str, Any], genuine: Mapping[str, Any]) -> bool:
    if "error" in derived or "error" in genuine:
        return False
    if derived["verdicts"][1] in ("failed", "unknown") and _lines(derived)[:1] != _lines(genuine)[:1]:
        return False
    return (derived["path"], derived["verdicts"]) == (genuine["path"], genuine["verdicts"])


def _lines(one: Mapping[str, Any]) -> list[str]:
    """Lines to blame: of one line TorchAir may name another operator than the tables."""
    return [blame[1] for blame in one["blame"]]


def unnamed(found: Mapping[str, Any]) -> list[str]:
    """Models without a GE graph, or of which that is unknown, whose operator and line are not said."""
    return [
        name
        for name, one in found.items()
        if one["verdicts"][1] in ("failed", "unknown") and not (one["blame"] and all(one["blame"][0]))
    ]


def test_there_are_forty_and_half_have_operators_of_torch_npu() -> None:
    used = {name for name, case in CASES.items() if "npu" in case.forward.__code__.co_names}
    assert len(CASES) >= 40
    assert len(used) >= 20


@offline
def test_a_sample_of_serving_models_is_judged_alike_on_both_targets() -> None:
    assert disagreements(SAMPLE) == {}
    for target in ("cpu", "npu_offline"):
        found = verdicts(target, SAMPLE)
        assert unnamed(found) == []
        assert {name: one["verdicts"][1] for name, one in found.items()} == {
            "norm_and_swiglu": "static", "decode_in_pages": "static", "write_pages": "static",
            "experts_brought_back": "unknown", "state_space_step": "failed", "attention_of_a_prompt": "static",
        }  # fmt: skip


@offline
@pytest.mark.slow
def test_every_serving_model_is_judged_alike_on_both_targets() -> None:
    assert disagreements(tuple(CASES)) == {}
    assert unnamed(verdicts("cpu", tuple(CASES))) == []
    assert unnamed(verdicts("npu_offline", tuple(CASES))) == []


def test_two_verdicts_that_differ_do_not_agree() -> None:
    one = {"path": 1, "verdicts": ["static", "static", "static"], "blame": []}
    other = {"path": None, "verdicts": ["static", "failed", "failed"], "blame": [["npu.f", "m.py:3", "it raises"]]}
    unknown = {**other, "verdicts": ["static", "unknown", "unknown"]}
    assert agree(one, one)
    assert agree(other, {**other, "blame": [["npu.f", "m.py:3", "in other words"]]})
    assert not agree(one, other)
    assert not agree(unknown, other)
    assert not agree({**unknown, "blame": [["npu.f", "m.py:4", "no"]]}, unknown)
    assert not agree({"error": "TypeError: no"}, {"error": "TypeError: no"})


# The built-in ones.


@offline
def test_a_sample_of_the_built_in_models_is_explained_on_both_targets() -> None:
    assert disagreements(BUILT_IN_SAMPLE) == {}
    assert unnamed(verdicts("cpu", BUILT_IN_SAMPLE)) == []


@offline
@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_every_built_in_model_is_explained_on_both_targets(shapes: str) -> None:
    names = tuple(name.format(shapes) for name in BUILT_IN)
    assert disagreements(names) == {}
    assert unnamed(verdicts("cpu", names)) == []
    for name, one in verdicts("npu_offline", names).items():
        # active_num of npu_moe_init_routing_v2 is an int: the number of tokens is a constant of the graph
        sized = "static" if name.startswith("moe_grouped") else shapes
        # what is dynamic if it is converted is that, or nothing
        only_cann_knows = sized == "static" and name.endswith(("unpermute", "filter=npu"))
        assert one["verdicts"][1] == ("unknown" if only_cann_knows else sized), name


@offline
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "npu_offline"])
def test_every_built_in_model_has_a_verdict_on_its_capture(target: str) -> None:
    names = tuple(f"capture:{name.format('static')}" for name in BUILT_IN)
    found = verdicts(target, names)
    assert {name: one for name, one in found.items() if "error" in one} == {}
    assert {one["captures"] for one in found.values()} == {"captures"}
