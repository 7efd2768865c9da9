"""What earlier versions wrote is read and verified by this one: a recipe and its report, by each of three commits; and
what was written for them: a plan, rules, an experiment.

Recipe and report of `written_before/COMMIT` were written by that commit's own `run.py`, with the options that the
recipe says, on two cores; `conf/` are files of that commit's own conf/, under names that nothing has today.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

import npucompose
from airflow_free.keys import digest
from npucompose.api import checked
from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.experiment.lock import Locked, read
from npucompose.experiment.verify import compared, completed, job_of, newer, run_again
from npucompose.machine import THREAD_VARIABLES
from npucompose.models import MODELS
from npucompose.report.json import load
from npucompose.version import __version__

FOLDER = Path(__file__).with_name("written_before")
COMMITS = ("54c1028f", "5220e2d7", "37c1e63a")
"""Of 2026-11-21, 11-22 and 11-23, oldest first; all of them called themselves 0.1.0."""


@pytest.fixture(params=[COMMITS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in COMMITS[1:])])
def place(request: pytest.FixtureRequest) -> Path:
    return FOLDER / request.param


def changed(place: Path, folder: Path, value: object, *path: str, experiment: bool = False) -> Path:
    """The recipe with one value changed; with `experiment` its hash is made to fit, as one who locks would."""
    tree = yaml.safe_load((place / "recipe.lock.yaml").read_text())
    at = tree
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    if experiment:
        tree["configuration"] = digest(tree["experiment"])
    file = folder / "changed.lock.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return file


def differing(wanted: Locked, here: Locked) -> list[str]:
    return [f"{d.part}.{d.field}" for d in compared(wanted, here, tolerance=0.2).differences if d.part != "sources"]


def test_every_commit_has_both_files() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(COMMITS)


def test_a_report_is_read(place: Path) -> None:
    report = load(place)
    assert (report.status, report.exit_status) == ("ok", 0)
    written = json.loads((place / "report.json").read_text())
    again = report.as_dict()
    assert again["graphs"][0]["fingerprint"] == written["graphs"][0]["fingerprint"]
    assert again["numerics"]["bitwise"] is True


def test_a_recipe_is_the_same_experiment_and_options_that_came_later_have_their_defaults(place: Path) -> None:
    locked = read(place)
    wanted = completed(locked)
    assert newer(locked, wanted)["scenario.name"] == "forward"
    assert wanted.experiment.keys() - locked.experiment.keys() <= {"scenario", "inductor", "padding"}
    assert job_of(wanted).keys == job_of(locked).keys, "completed it is the same experiment"


@pytest.mark.parametrize(
    "path", [("model", "name"), ("streams", "min_gain"), ("seed",), ("passes", "stream_plan", "stage")]
)
def test_a_value_that_the_recipe_says_is_compared(place: Path, tmp_path: Path, path: tuple[str, ...]) -> None:
    """The control: what is completed is compared like what was written."""
    file = changed(place, tmp_path, "another", "experiment", *path, experiment=True)
    wanted, field = completed(read(place)), f"configuration.{'.'.join(path)}"
    assert field not in differing(wanted, read(place))
    assert field in differing(wanted, read(file))


def test_a_recipe_that_was_changed_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its experiment was changed after it was locked"):
        read(changed(place, tmp_path, 1, "experiment", "seed"))


def test_another_schema_is_refused_in_one_paragraph_that_names_both_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = changed(FOLDER / COMMITS[0], tmp_path, 2, "schema")
    file.write_text(file.read_text().replace("npucompose: 0.1.0", "npucompose: 9.0.0"))
    assert main(["recipe", "verify", str(file)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(
        f"is no recipe of schema 1: its schema is 2. This is npucompose {__version__}; the file was written by 9.0.0; "
        "`npucompose recipe lock` writes a recipe."
    )


def test_an_option_that_has_gone_is_refused_with_the_version_that_knew_it(tmp_path: Path) -> None:
    file = changed(FOLDER / COMMITS[0], tmp_path, 1, "experiment", "streams", "gone", experiment=True)
    file.write_text(file.read_text().replace("npucompose: 0.1.0", "npucompose: 0.0.9"))
    with pytest.raises(ConfigError) as refused:
        job_of(read(file))
    unknown, why = refused.value.problems
    assert unknown.startswith("unknown key 'gone' @ streams.")
    assert why.startswith(f"The recipe was locked with npucompose 0.0.9 and this is {__version__}: ")


def choice_of(place: Path, group: str) -> str:
    (file,) = (place / "conf" / group).iterdir()
    return file.stem


def test_rules_and_experiments_of_then_are_read(place: Path) -> None:
    mine = [str(place / "conf")]
    rules = checked(["passes=adapt", f"adapt={choice_of(place, 'adapt')}"], config_dirs=mine).experiment.adapt.rules
    written = yaml.safe_load((place / "conf" / "adapt" / f"{choice_of(place, 'adapt')}.yaml").read_text())["rules"]
    assert [rule.name for rule in rules] == [rule["name"] for rule in written]
    experiment = choice_of(place, "experiment")
    made = checked([f"experiment={experiment}"], config_dirs=mine).experiment
    assert made == checked([f"experiment={experiment.removesuffix('_then')}"]).experiment, "it means what it meant"
    assert made != checked(["mode=reduce-overhead"]).experiment


@pytest.mark.slow
def test_a_plan_of_then_is_followed(place: Path) -> None:
    plan = choice_of(place, "streams")
    model = plan.removesuffix("_then")
    built = MODELS.get(model)().build(0)
    chosen = ("mode=reduce-overhead", "passes=stream_plan", "target=null_device", "streams.min_gain=0")
    followed = []
    for choice in (plan, model, "none"):
        backend = npucompose.backend(*chosen, f"streams={choice}", config_dirs=[str(place / "conf")])
        with torch.no_grad():
            torch.compile(built.module, backend=backend)(**built.inputs(0))
        followed += [found.plan.nodes for found in backend.compilations]
        torch.compiler.reset()
    of_then, of_today, none = followed
    assert of_then == of_today != none


@pytest.mark.slow
def test_a_recipe_verifies_when_it_is_run_here(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in THREAD_VARIABLES:  # no recipe names one: none was set
        monkeypatch.delenv(variable, raising=False)
    assert main(["recipe", "verify", str(place)]) == 0
    assert "the recipe holds here" in capsys.readouterr().out
    other = changed(place, tmp_path, [{**yaml.safe_load((place / "recipe.lock.yaml").read_text())["graphs"][0],
                                       "fingerprint": "0" * 64}], "graphs")  # fmt: skip
    differs = differing(completed(read(other)), run_again(read(other)))
    assert [one for one in differs if not one.startswith("device.")] == ["graphs.graph_0.fingerprint"]
