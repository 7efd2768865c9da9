"""The committed figures of recipes in vLLM, and what the documentation says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving

PAGE = Path(__file__).parents[2] / "docs" / "serving_vllm.md"


@pytest.fixture
def facts() -> dict[str, Any]:
    return json.loads(serving.RESULTS.read_text(encoding="utf-8"))


def test_every_model_was_measured_on_one_thread_and_on_two(facts: dict[str, Any]) -> None:
    assert sorted((row["model"], row["threads"]) for row in facts["rows"]) == sorted(
        (model, threads) for model in serving.MODELS for threads in (1, 2)
    )
    assert {len(row[arm]["rounds"]) for row in facts["rows"] for arm in serving.ARMS} == {facts["rounds"]}


def test_the_page_has_the_figures_of_the_file(facts: dict[str, Any]) -> None:
    words = ("forward at decode, times as fast", "tokens/s, geometric mean", "tokens/s, the least")
    found = {goal.words: goal.figure for goal in serving.goals(facts["rows"])}
    forward, speed, least = (f"{found[one]:.2f}" for one in words)
    warm, cold = (f"{found[f'compile part {kind}, the most']:.2f}" for kind in ("warm", "cold"))
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"is {forward} times as fast and tokens/s are {speed} times as many" in page
    starts = f"the compile part of a start with a cache is at most {warm} of vLLM's, without one {cold}."
    assert f"the least is {least}), and {starts}" in page


def test_a_cold_start_is_compared_with_the_one_beside_it() -> None:
    row = {"vllm": {"cold_s": [10.0, 20.0, 40.0]}, "recipe": {"cold_s": [5.0, 30.0, 40.0]}}
    assert list(serving.ratios([row], "cold_s")) == [1.0]
