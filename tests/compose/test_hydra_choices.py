"""Hydra's launchers and sweepers are taken for our executors and search; what is refused is told once."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.cli import main
from npucompose.compose.overrides import CHOICES, translated
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.schema.sweep import Search
from npucompose.table.structure import structure

COMPOSER = Composer()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"], ["executor=local", "executor.jobs=4"]),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=-1"], ["executor=local", "executor.jobs=null"]),
        (["hydra.launcher.timeout_min=9", "hydra/launcher=submitit_local"],
         ["executor.time_limit_min=9", "executor=slurm", "executor.cluster=local"]),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.account=me"],
         ["executor=slurm", "+executor.parameters.account=me"]),
        (["hydra/launcher=ray", "hydra.launcher.ray.init.address=head:6379"],
         ["executor=ray", "executor.address=head:6379"]),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=9", "hydra/sweeper/sampler=random"],
         ["search=optuna", "search.trials=9", "search.sampler=random"]),
    ],
)  # fmt: skip
def test_what_people_write_for_hydra_becomes_ours_with_one_line(theirs: list[str], ours: list[str]) -> None:
    said = f"{' '.join(theirs)} is {' '.join(ours)} here."
    assert translated([*theirs, "model=add"]) == ([*ours, "model=add"], [said])
    assert COMPOSER.compose(ours).problems == ()


def test_variables_of_the_job_are_set_without_a_plus() -> None:
    texts, notes = translated(["hydra.job.env_set.FOO=1", "+hydra.job.env_set.BAR=2", "model=add"])
    assert texts == ["++hydra.job.env_set.FOO=1", "+hydra.job.env_set.BAR=2", "model=add"]
    assert notes == []
    assert COMPOSER.compose(texts).problems == ()


def test_every_key_of_the_tables_is_one_of_ours() -> None:
    for choice, one in CHOICES.items():
        for key in one.keys.values():
            value = "me" if "parameters" in key or key.endswith(("address", "partition", "gres")) else "1"
            executor = () if key.startswith("executor.jobs") else one.overrides
            assert COMPOSER.compose([*executor, f"{key}={value}"]).problems == (), (choice, key)


def test_optunas_values_of_the_command_line_become_the_space_of_the_search() -> None:
    swept = ["mode=eager,reduce-overhead", "seed=int(interval(1,8))", "benchmark.warmup=range(1,4)",
             "passes=[],[cse]", "streams.min_gain=tag(log,interval(0.1,1))"]  # fmt: skip
    texts, notes = translated(["hydra/sweeper=optuna", "model=add", *swept])
    assert texts[:2] == ["search=optuna", "model=add"]
    assert len(texts) == 3
    assert len(notes) == 1
    search = structure(Search, COMPOSER.compose(texts).tree["search"], "search")  # pyright: ignore[reportArgumentType]
    found = {key: (d.one_of or (d.low, d.high, d.log)) for key, d in search.space.items()}
    assert found == {
        "mode": ("eager", "reduce-overhead"),
        "seed": (1, 8, False),
        "benchmark.warmup": (1, 2, 3),
        "passes": ([], ["cse"]),
        "streams.min_gain": (0.1, 1.0, True),
    }


def test_nothing_is_changed_where_no_plugin_of_hydra_is_named() -> None:
    for texts in (["seed=1,2"], ["hydra/launcher=basic"], ["hydra.launcher.n_jobs=3"], ["hydra/launcher=joblib,ray"]):
        assert translated(texts) == (texts, [])


def test_the_same_said_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="executor=ray say the same thing twice"):
        translated(["hydra/launcher=joblib", "executor=ray"])


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("hydra/launcher=basic", "executor=… says where the jobs of a sweep run."),
        ("hydra/sweeper=nevergrad", "hydra/sweeper=optuna means search=optuna."),
        ("hydra.sweeper.direction=minimize", "search.space and search.objectives are for search=optuna."),
        ("hydra.launcher.n_jobs=3", "executor=… says where"),
    ],
)
def test_what_is_refused_of_hydra_is_told_once_and_beside_other_mistakes(override: str, instead: str) -> None:
    first, second = COMPOSER.compose([override, "model=addd"]).problems
    assert first.startswith(f"'{override}' cannot be set here: ")
    assert instead in first
    assert second.startswith("unknown model 'addd'")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (["--cfg", "job", "model=add", "seed=7"], "seed: 7"),
        (["--cfg", "hydra"], "sweeper:"),
        (["--cfg", "job", "--package", "mode", "experiment=decode"], "name: reduce-overhead"),
        (["--info", "defaults", "experiment=decode"], "experiment/decode"),
        (["--info", "searchpath"], "pkg://"),
        (["--cfg", "job", "--package", "executor", "hydra/launcher=submitit_local"], "cluster: local"),
        (["-sc", "query=bash"], "mode=eager"),
    ],
)  # fmt: skip
def test_what_hydra_answers_is_answered_here(
    asked: list[str],
    shown: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COMP_LINE", "python run.py mode=ea")  # as bash tells it
    assert main(["run", *asked]) == 0
    said = capsys.readouterr()
    assert shown in said.out
    assert ("hydra/launcher=submitit_local is" in said.err) == any("submitit" in word for word in asked)
    assert not list(folder.iterdir())


def test_an_experiment_of_conf_is_chosen_by_name_and_a_wrong_one_is_told_translated() -> None:
    assert COMPOSER.compose(["experiment=decode"]).provenance["mode.name"].endswith("conf/experiment/decode.yaml")
    (problem,) = COMPOSER.compose(["experiment=decod"]).problems
    assert problem.startswith("unknown experiment 'decod' @ experiment=decod. Did you mean 'decode'?")
