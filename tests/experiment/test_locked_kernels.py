"""A recipe names who computed what: another machine computes so, or says so; the choice is nothing that must hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment import verify
from npucompose.experiment.job import Job
from npucompose.experiment.lock import Locked, read
from npucompose.results.graphs import Winner
from npucompose.results.record import Report
from tests.lock_examples import GRAPH

MAX_AUTOTUNE = ("mode=max-autotune", "model=add", "pipeline=check")


def run(winners: Mapping[str, Winner], *overrides: str) -> Locked:
    """The recipe of a run in which these won."""
    job = Job.from_composed(compose([*MAX_AUTOTUNE, *overrides]))
    graph = attrs.evolve(GRAPH, winners=tuple(winners.values()))
    return Locked.from_report(
        job.ingredients, Report(key=job.key, status="ok", experiment=job.ingredients.values, graphs=(graph,))
    )


def won(key: str, winner: str, by: str = "measured", here: str | None = None) -> dict[str, Winner]:
    return {key: Winner(key=key, winner=winner, by=by, here=here, times_us={"mkl": 2.0, "onednn": 1.0})}  # type: ignore[arg-type]


MEASURED = won("linear_8x4x4", "onednn") | won("graph_1f", "fused")


def test_a_recipe_names_who_computed_what_as_an_option_and_is_read_again(tmp_path: Path):
    locked = run(MEASURED)
    assert locked.experiment["target"]["kernels"] == {"linear_8x4x4": "onednn", "graph_1f": "fused"}
    assert read(locked.write(tmp_path)) == locked
    job = verify.job_of(locked)
    assert job.checked.target.kernels == {"linear_8x4x4": "onednn", "graph_1f": "fused"}  # type: ignore[attr-defined]


def test_what_a_person_pinned_stays_and_what_was_measured_can_be_left_to_the_machine():
    locked = run(MEASURED | won("graph_2e", "unfused", by="pinned"), "target.kernels={graph_2e: unfused}")
    assert locked.experiment["target"]["kernels"] == {
        "graph_2e": "unfused",
        "linear_8x4x4": "onednn",
        "graph_1f": "fused",
    }
    assert locked.without_measured().experiment["target"]["kernels"] == {"graph_2e": "unfused"}


@pytest.mark.parametrize("target", [None, "cpu", {"name": "cpu"}])
def test_a_recipe_without_kernels_has_none_that_were_measured(target: Any):
    locked = run(MEASURED)
    bare = attrs.evolve(locked, experiment={**locked.experiment, "target": target})
    assert bare.without_measured() is bare


@pytest.mark.parametrize(("kernels", "pinned"), [("locked", True), ("measured", False)])
def test_a_verification_computes_with_the_kernels_of_the_recipe_or_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, kernels: verify.Kernels, pinned: bool
):
    asked: list[Job] = []

    def lock(job: Job, **_: object) -> Locked:
        asked.append(job)
        return run(MEASURED)

    monkeypatch.setattr(verify, "lock", lock)
    verify.run_again(run(MEASURED), kernels=kernels)
    assert bool(asked[0].ingredients.values["target"]["kernels"]) is pinned


def test_another_choice_is_told_and_breaks_no_recipe():
    there, here = run(MEASURED), run(won("linear_8x4x4", "mkl") | won("graph_1f", "fused"))
    verdict = verify.compared(there, here, tolerance=0.2)
    assert [str(one) for one in verdict.differences] == ["kernels.linear_8x4x4: locked onednn, here mkl"]
    assert verdict.holds
    text = verify.judged(verdict, there, here)
    assert "kernels: 1 of 2 differ" in text
    assert "the recipe holds here (and kernels differ): ok" in text


def test_a_kernel_of_the_recipe_that_no_graph_here_has_is_told():
    verdict = verify.compared(run(MEASURED), run(won("graph_1f", "fused")), tolerance=0.2)
    assert [str(one) for one in verdict.differences] == ["kernels.linear_8x4x4: locked onednn, here null"]


def test_who_computes_as_in_the_recipe_is_told_what_would_be_chosen_here():
    there = run(MEASURED)
    here = run(won("linear_8x4x4", "onednn", by="pinned", here="mkl") | won("graph_1f", "fused", by="pinned"))
    text = verify.judged(verify.compared(there, here, tolerance=0.2), there, here)
    assert "kernels: the same (2 values)" in text
    assert "kernels of the recipe: 1 choice that this machine would make otherwise" in text
    assert "this machine would choose mkl" in text


def test_times_of_another_machine_are_no_difference_and_nothing_is_said_where_there_was_no_choice():
    slower = attrs.evolve(MEASURED["graph_1f"], times_us={"fused": 99.0}, by="remembered")
    assert verify.compared(run(MEASURED), run(MEASURED | {"graph_1f": slower}), tolerance=0.2).differences == ()
    assert "kernels" not in verify.compared(run({}), run({}), tolerance=0.2).compared


@pytest.mark.parametrize("value", ["[1]", "{a: 1}", "null", "7"])
def test_kernels_of_a_file_are_names_and_texts(value: str):
    with pytest.raises(ConfigError, match="kernels"):
        Job.from_composed(compose([*MAX_AUTOTUNE, f"target.kernels={{graph_1f: {value}}}"]))
