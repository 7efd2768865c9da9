"""Options that have gone: who says one is told what there is instead, and a recipe that only names it is verified."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airflow_free.keys import digest
from npucompose.api import checked
from npucompose.errors import ConfigError
from npucompose.experiment.lock import Locked, read
from npucompose.experiment.verify import job_of
from npucompose.table.gone import GONE, instead_of, without_gone

OLDEST = Path(__file__).parents[1] / "experiment" / "written_before" / "54c1028f" / "recipe.lock.yaml"


def locked(folder: Path, **target: object) -> Locked:
    """A recipe of then whose target says this too."""
    tree = yaml.safe_load(OLDEST.read_text())
    tree["experiment"]["target"] |= target
    tree["configuration"] = digest(tree["experiment"])
    file = folder / "recipe.lock.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return read(file)


@pytest.mark.parametrize("option", GONE)
def test_on_the_command_line_it_is_unknown_and_the_sentence_says_what_there_is_instead(option: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked([f"{option}=1"])
    (problem,) = refused.value.problems
    assert problem.startswith(f"unknown key '{option.removeprefix('target.')}' of target @ {option}=1.")
    assert problem.endswith(instead_of(option))


def test_and_so_it_does_in_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\n# mine\ntarget: {measuring: never}\n")
    with pytest.raises(ConfigError, match=r"'measuring'.* It has gone: Inductor alone measures"):
        checked(["experiment=mine"], config_dirs=[str(tmp_path)])


def test_a_recipe_that_asked_for_what_holds_today_is_the_same_experiment(tmp_path: Path) -> None:
    then = locked(tmp_path, linear="auto", measuring="always", measure_ms=20.0)
    assert then.experiment == read(OLDEST).experiment
    assert job_of(then).keys == job_of(read(OLDEST)).keys


def test_one_that_asked_for_another_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        job_of(locked(tmp_path, linear="onednn", measuring="once"))
    assert [problem for problem in refused.value.problems if instead_of("target.linear") in problem]
    assert not [problem for problem in refused.value.problems if "measuring" in problem]


def test_everything_else_is_left_as_it_is() -> None:
    assert instead_of("target.pool") == ""
    assert without_gone({"target": "cpu", "seed": 0}) == {"target": "cpu", "seed": 0}
