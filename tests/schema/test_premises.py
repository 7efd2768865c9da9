"""Result files of a device: what they may hold, which experiments rest on which claim, what a refuted one refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.results import premises
from tests.npu.claims import CLAIMS
from tests.recipe.experiments import EXPERIMENTS

ON = {"soc": "Ascend910B4", "torch_npu": "2.13.0", "torch": "2.13.0", "cann": "8.5.0"}
OFF_RECIPES = ("ge[no converter]", "ejected[")
"""Claims that no experiment rests on: the words of an error, and the scripts of our own experiments."""


def results(path: Path = Path("r.json"), **verdicts: str) -> premises.DeviceResults:
    claims = [{"name": n, "says": "it holds", "verdict": v, "error": "1 != 2"} for n, v in verdicts.items()]
    return premises.read(path, json.dumps({"schema": premises.SCHEMA, "device": ON, "claims": claims}))


def experiment(*overrides: str) -> Any:
    return api.checked(["target=null_device", *overrides]).experiment


def test_a_refuted_claim_refuses_the_recipe_that_rests_on_it_and_no_other() -> None:
    found = results(**{"ge[sink]": "refuted", "ge[streams]": "proven"})
    assert premises.refuted(experiment("mode=max-autotune", "tiling=sink", "model=mlp"), found) == (
        "refuted on Ascend910B4, torch_npu 2.13.0, torch 2.13.0, CANN 8.5.0: ge[sink]: it holds: 1 != 2. See r.json.",
    )
    assert premises.refuted(experiment("mode=max-autotune", "tiling=host", "model=mlp"), found) == ()
    assert premises.refuted(experiment("mode=reduce-overhead", "model=mlp"), found) == ()


def test_of_a_claim_the_end_of_its_error_is_kept_and_of_a_row_that_is_none_the_beginning_shown() -> None:
    def read(row: Any) -> premises.DeviceResults:
        return premises.read(Path("r.json"), json.dumps({"schema": premises.SCHEMA, "device": ON, "claims": [row]}))

    whole = {"name": "a", "says": "s", "verdict": "refuted"}
    assert read(whole).claims["a"].error is None
    assert read({**whole, "error": f"x{'y' * 400}"}).claims["a"].error == "y" * 400
    assert read({**whole, "error": 3}).claims["a"].error == "3"
    with pytest.raises(ConfigError) as refused:
        read(["z" * 200])
    assert str(refused.value).endswith(f"refuted, not run: ['{'z' * 118}.")


def test_what_was_proven_and_what_was_not_run_is_listed() -> None:
    found = results(**{"option_tree": "proven", "configuration[max-autotune]": "not run"})
    shown = premises.judged(experiment("mode=max-autotune", "model=add"), found)
    assert "proven   option_tree" in shown
    assert "not run  run[max-autotune, add, plain]" in shown
    assert shown.endswith("1 proven, 0 refuted, 2 not run\n")


def test_an_experiment_without_a_compiler_rests_on_nothing() -> None:
    assert premises.rests_on(experiment("mode=eager")) == ()


@pytest.mark.parametrize(
    ("overrides", "claims"),
    [
        (["mode=reduce-overhead", "model=mlp", "passes=stream_plan"], {"stream order[reduce-overhead]"}),
        (["mode=npugraph_ex", "shapes=dynamic"], {"task updates[npugraph_ex]", "task updates in a run[npugraph_ex]"}),
        (["mode=npugraph_ex", "compile.fullgraph=false"], {"repeated[npugraph_ex]"}),
        (["mode=max-autotune", "compiler.experimental_config.frozen_parameter=true"], {"ge[frozen inputs]"}),
        (
            ["mode=max-autotune", "passes=[stream_plan]", "model=add"],
            {"ge[streams]", "run[max-autotune, add, planned]"},
        ),
    ],
)
def test_an_experiment_rests_on_the_claims_about_what_it_uses(overrides: list[str], claims: set[str]) -> None:
    common = {"option_tree", *(name for name in premises.rests_on(experiment(*overrides)) if "configuration" in name)}
    found = {name for name in premises.rests_on(experiment(*overrides)) if name not in common}
    assert claims <= found
    assert found - claims <= {name for name in found if name.startswith("run[")}


def test_every_claim_is_one_that_experiments_can_rest_on() -> None:
    modes = ("max-autotune", "reduce-overhead", "npugraph_ex")
    base = experiment("mode=max-autotune")
    known = {name for mode in modes for name in premises._premises(evolve(base.mode, name=mode).spec)}
    claims = {claim.name for claim in CLAIMS if not claim.name.startswith(OFF_RECIPES)}
    assert claims == known
    assert EXPERIMENTS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is no result file"),
        ('{"schema": 2, "device": {}, "claims": 3}', "is no result file"),
        ('{"schema": 1, "device": {}, "claims": []}', "has schema 1, and this version reads 2"),
        ('{"schema": 2, "device": {}, "claims": [{"name": "x"}]}', "needs a name and a verdict"),
        ('{"schema": 2, "device": {}, "claims": [{"name": "x", "verdict": "ok"}]}', "proven, refuted, not run"),
    ],
)
def test_a_file_that_is_no_result_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        premises.read(Path("r.json"), text)
