"""A trace of vLLM's steps: who may ask for it, and what is in the file while the engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose_vllm.recipe import STEPS
from npucompose_vllm.steps import asked, trace_of


def test_a_trace_is_begun_anew_and_whole_after_every_step(tmp_path: Path) -> None:
    place = tmp_path / "steps.csv"
    place.write_text("of an earlier engine\n")
    trace = trace_of({STEPS: str(place)})
    assert trace is not None
    assert place.read_text() == "tokens\n"
    for number, tokens in enumerate((512, 0, 8), 1):
        trace.came(tokens)
        assert place.read_text().split() == ["tokens", "512", "8"][: 1 + min(number, 1) + (number == 3)]


@pytest.mark.parametrize("config", [None, {}, {"npucompose": "recipe.yaml"}, "npucompose_steps", [STEPS]])
def test_nobody_else_asks_for_one(config: Any) -> None:
    assert asked(config) is None
    assert trace_of(config) is None


def test_a_home_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert asked({STEPS: "~/steps.csv"}) == tmp_path / "steps.csv"


@pytest.mark.parametrize("place", ["", " ", 7, ["a.csv"], {}])
def test_what_is_no_path_is_refused(place: Any) -> None:
    with pytest.raises(ConfigError, match=rf"additional_config\.{STEPS} is the path of a CSV file to write; given"):
        asked({STEPS: place})


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        trace_of({STEPS: str(tmp_path / "gone" / "steps.csv")})
