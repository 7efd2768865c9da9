"""GE's automatic streams: values, what depends on GE's version, what `streams.objective=ge` is not."""

from __future__ import annotations

import pytest

from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.results.effective import Effective

OPTION = "compiler.ge_config.multistream_parallel_mode"


def effective(*overrides: str, mode: str = "max-autotune") -> list[Effective]:
    made = check(compose([f"mode={mode}", "target=null_device", *overrides]), with_model=False)
    return [one for one in made.effective if "has no meaning on target" not in one.why]


@pytest.mark.parametrize("value", ["cv", "LoadBalance:1", "LoadBalance:64", "MainStream:8", "WeightedLoadBalance:10"])
def test_a_strategy_with_its_number_is_taken_and_nothing_is_to_be_said(value: str) -> None:
    assert effective(f"{OPTION}='{value}'") == []


@pytest.mark.parametrize(
    "value",
    ["LoadBalance:0", "LoadBalance:65", "LoadBalance:08", "MainStream", "WeightedLoadBalance", "default", "cv:2"],
)
def test_what_no_ge_takes_as_an_option_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="multistream_parallel_mode takes text like LoadBalance:8"):
        effective(f"{OPTION}='{value}'")


def test_the_bare_name_depends_on_the_version_of_ge() -> None:
    (found,) = effective(f"{OPTION}=LoadBalance")
    assert (found.option, found.requested) == (OPTION, "LoadBalance")
    assert "since 2026-08 GE refuses it: write LoadBalance:N" in found.why
    with pytest.raises(ConfigError, match="LoadBalance"):
        effective(f"{OPTION}=LoadBalance", "strict=all")


@pytest.mark.parametrize(
    ("value", "does"),
    [
        (None, "is not set, so that GE uses no automatic streams"),
        ("'LoadBalance:4'", "gives each a stream, so that all have as many kernels, on at most 4 streams"),
        ("'MainStream:2'", "on at most 2 streams: the plan is what LoadBalance:8 would do"),
        ("'WeightedLoadBalance:4'", "from a profile, on at most 4 streams"),
        ("cv", "vector kernels beside cube kernels"),
    ],
)
def test_objective_ge_says_what_ge_does_with_the_option(value: str | None, does: str) -> None:
    given = [] if value is None else [f"{OPTION}={value}"]
    (found,) = effective("streams.objective=ge", "passes=stream_plan", *given)
    assert (found.option, found.effective) == ("streams.objective", "LoadBalance:8")
    assert does in found.why


@pytest.mark.parametrize("policy", ["cv", "LoadBalance:4", "MainStream:64"])
def test_where_the_plan_is_what_ge_does_nothing_is_to_be_said(policy: str) -> None:
    same = [f"streams.ge_policy='{policy}'", f"{OPTION}='{policy}'"]
    assert effective("streams.objective=ge", "passes=stream_plan", *same) == []


@pytest.mark.parametrize(
    "policy", ["WeightedLoadBalance:4", "LoadBalance", "MainStream:0", "LoadBalance:65", "cv:2", ""]
)
def test_a_policy_that_is_none_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="must be cv, LoadBalance:N or MainStream:N with N from 1 to 64"):
        effective("streams.objective=ge", f"streams.ge_policy='{policy}'")


def test_a_policy_without_its_objective_is_refused_and_listed_where_nothing_is() -> None:
    with pytest.raises(ConfigError, match=r"streams\.ge_policy: it takes effect with streams\.objective=ge only"):
        effective("streams.ge_policy='MainStream:4'")
    (found,) = effective("streams.ge_policy='MainStream:4'", "passes=stream_plan", "strict=off")
    assert (found.option, found.why) == ("streams.ge_policy", "it takes effect with streams.objective=ge only")


def test_in_a_mode_without_ge_nothing_is_said_of_it() -> None:
    assert effective("streams.objective=ge", "passes=stream_plan", mode="reduce-overhead") == []
