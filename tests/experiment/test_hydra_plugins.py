"""What Hydra finds under the name npucompose: a sweeper that makes the folder, a launcher that names points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from hydra_plugins.npucompose_sweeps import NpucomposeLauncher, NpucomposeSweeper

CONFIG = {
    "seed": 3,
    "hydra": {
        "sweep": {"dir": "?", "subdir": "${hydra.job.num}-${hydra.job.override_dirname}"},
        "job": {"num": None, "override_dirname": None},
    },
}


class Task:
    """A task function that notes where it was run and what points would be called."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.names: list[str] = []

    def run(self, folder: Path, name: Any) -> None:
        self.folders.append(folder)
        self.names += [name(number, overrides) for number, overrides in ((0, ["b=2", "a=1"]), (7, []))]


def configured(folder: Path) -> Any:
    config = OmegaConf.create(CONFIG)
    config.hydra.sweep.dir = str(folder)
    OmegaConf.set_readonly(config.hydra, True)
    return config


def test_a_launcher_runs_the_task_in_the_sweeps_folder_and_names_each_point_by_its_number_and_overrides(
    tmp_path: Path,
) -> None:
    launcher, task, config = NpucomposeLauncher(), Task(), configured(tmp_path)
    launcher.setup(hydra_context=None, task_function=task, config=config)  # type: ignore[arg-type]
    assert launcher.launch([], initial_job_idx=0) == []
    assert task.folders == [tmp_path]
    assert task.names == ["0-a=1,b=2", "7-"]
    assert OmegaConf.is_readonly(config.hydra), "only the job is written, and only meanwhile"


def test_a_sweeper_makes_the_folder_keeps_the_configuration_and_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Launcher:
        def launch(self, *given: Any, **named: Any) -> str:
            asked.append((given, named))
            return "launched"

    class FakePlugins:
        def instantiate_launcher(self, **named: Any) -> Launcher:
            asked.append(named)
            return Launcher()

    monkeypatch.setattr(Plugins, "instance", staticmethod(FakePlugins))
    folder = tmp_path / "a" / "sweep"
    config, sweeper = configured(folder), NpucomposeSweeper()
    sweeper.setup(hydra_context="context", task_function="task", config=config)  # type: ignore[arg-type]
    assert asked == [{"hydra_context": "context", "task_function": "task", "config": config}]
    for _ in range(2):  # a folder that is there already is the sweep's
        assert sweeper.sweep(["seed=1,2"]) == "launched"
    assert asked[1:] == [(([],), {"initial_job_idx": 0})] * 2
    assert OmegaConf.load(folder / "multirun.yaml").seed == 3


@pytest.mark.parametrize(("group", "name"), [("sweeper", "NpucomposeSweeper"), ("launcher", "NpucomposeLauncher")])
def test_hydra_finds_both_by_name(group: str, name: str) -> None:
    found = ConfigStore.instance().load(f"hydra/{group}/npucompose.yaml")
    assert found.node._target_ == f"hydra_plugins.npucompose_sweeps.{name}"
    assert found.provider == "npucompose"
