"""The folder of one point of a sweep, as Hydra would have made it: `.hydra/` with configuration and overrides."""

from __future__ import annotations

import shutil
from pathlib import Path

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.experiment.run import Job
from npucompose.experiment.sweep.plan import Point
from npucompose.report import json as report_json
from npucompose.report.files import write_atomically

SUBFOLDER = ".hydra"


@frozen(kw_only=True)
class PointFolder:
    """A name below the sweep's folder; made when the point begins."""

    path: Path
    point: Point

    @staticmethod
    def of(sweep: Path, name: str, point: Point) -> PointFolder:
        """`sweep/name`; `sweep/name.2` and so on where another point has left a report in that (hydra.sweep.dir given
        on the command line again for another sweep). ConfigError for a name that leads out of the sweep's folder."""
        path = sweep / name
        if not path.resolve().is_relative_to(sweep.resolve()) or path.resolve() == sweep.resolve():
            raise ConfigError(f"hydra.sweep.subdir gives '{name}', which is no folder below the sweep's own.")
        number = 1
        while _is_of_another(path, point):
            number += 1
            path = sweep / f"{name}.{number}"
        return PointFolder(path=path, point=point)

    def make(self, job: Job) -> Path:
        """Make it, with `.hydra/` inside, and return the path."""
        import yaml

        inside = self.path / SUBFOLDER
        inside.mkdir(parents=True, exist_ok=True)
        texts = {"config.yaml": dict(job.composed.tree), "overrides.yaml": list(self.point.overrides)}
        for name, content in texts.items():
            write_atomically(inside / name, yaml.dump(content, Dumper=_dumper(), sort_keys=False, allow_unicode=True))
        return self.path

    def keep(self, job: Job) -> None:
        """Make it again where somebody, the job say, took it away."""
        if not (self.path / SUBFOLDER).is_dir():
            self.make(job)

    def take_back(self) -> None:
        """Nothing was run: remove what `make` made, and the log; folders that hold something else stay."""
        shutil.rmtree(self.path / SUBFOLDER, ignore_errors=True)
        (self.path / "run.log").unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


def _is_of_another(path: Path, point: Point) -> bool:
    if not (path / report_json.FILE_NAME).is_file():
        return False
    try:
        return report_json.load(path).key != point.key
    except ConfigError:
        return True


def _dumper() -> type:
    """libyaml's where PyYAML has it: the option tree is long, and a sweep has many of them."""
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)
