"""What Hydra finds when it looks for plugins: the launcher `npucompose`, the default for `-m`.

Hydra's sweeper hands over all points at once. What runs is what `npucompose run -m` has planned already (the task
function carries it): points are composed once for each combination of choices, or asked for by a search, and the
executor decides where they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

HERE = "hydra_plugins.npucompose_launcher"
NAME = "npucompose"


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
    group="hydra/launcher", name=NAME, node={"_target_": f"{HERE}.NpucomposeLauncher"}, provider=NAME
)
