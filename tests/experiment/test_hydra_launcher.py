"""What Hydra finds under the name npucompose: a launcher that names the folders of points and runs the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from hydra_plugins.npucompose_launcher import NpucomposeLauncher
from npucompose.compose.tree import Composer

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


def test_hydra_finds_it_by_name_and_its_own_sweeper_hands_over_all_points_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(NpucomposeLauncher, "launch", lambda self, points, initial_job_idx: handed.append(points) or [])
    application = Composer().application()
    folder = tmp_path / "a" / "sweep"
    overrides = ["model=add", "seed=range(0,3)", f"hydra.sweep.dir={folder}", "hydra.mode=MULTIRUN"]
    config = application.load_configuration("config", overrides, RunMode.MULTIRUN)
    assert config.hydra.launcher._target_ == "hydra_plugins.npucompose_launcher.NpucomposeLauncher"
    context = HydraContext(config_loader=application, callbacks=None)  # type: ignore[arg-type]
    for _ in range(2):  # a folder that is there already is the sweep's
        sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=print, config=config)  # type: ignore[arg-type]
        sweeper.sweep(list(config.hydra.overrides.task))
    assert handed == [[["model=add", f"seed={seed}"] for seed in range(3)]] * 2
    assert OmegaConf.load(folder / "multirun.yaml").model.name == "add"
