"""What Hydra finds when it looks for plugins: the sweeper and the launcher `npucompose`, the default for `-m`.

Both only pass on what `npucompose run -m` has planned already (the task function carries it): points are composed once
for each combination of choices, or asked for by a search, and the executor decides where they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

HERE = "hydra_plugins.npucompose_sweeps"
NAME = "npucompose"


class NpucomposeSweeper(Sweeper):
    """Makes the sweep's folder; which points there are is the task function's business."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from omegaconf import OmegaConf

        assert self.config is not None
        assert self.launcher is not None
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        return self.launcher.launch([], initial_job_idx=0)


class NpucomposeLauncher(Launcher):
    """Names the folder of each point, as hydra.sweep says, and has the plan run."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.task_function: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra.core.utils import env_override

        from npucompose.experiment.orchestrator import also_passing

        variables = dict(self.config.hydra.job.get("env_set") or {})
        with env_override(variables), also_passing(variables):
            self.task_function.run(Path(self.config.hydra.sweep.dir), self._folder)
        return []

    def _folder(self, number: int, overrides: Sequence[str]) -> str:
        from omegaconf import read_write

        with read_write(self.config.hydra.job):
            self.config.hydra.job.num = number
            self.config.hydra.job.override_dirname = ",".join(sorted(overrides))
        return str(self.config.hydra.sweep.subdir)


ConfigStore.instance().store(
    group="hydra/sweeper", name=NAME, node={"_target_": f"{HERE}.NpucomposeSweeper"}, provider=NAME
)
ConfigStore.instance().store(
    group="hydra/launcher", name=NAME, node={"_target_": f"{HERE}.NpucomposeLauncher"}, provider=NAME
)
