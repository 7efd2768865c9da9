"""The file that a person hands to an engine: a lock, or an experiment's YAML. Imports no engine and no torch.

Both may be a stranger's: what an untrusted file cannot do, it cannot do here either (SECURITY.md).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs

from npucompose.compose.check import Checked, check
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError
from npucompose.experiment.lock import read as read_lock
from npucompose.input_safety import load_yaml, read_text
from npucompose.results.effective import Effective

ORIGIN = "the recipe"


def read_checked(path: str) -> Checked:
    """The experiment in a file, its model left out; ConfigError says, with its line, what is wrong."""
    data = load_yaml(Path(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is no recipe: it holds no mapping.")
    return _of_lock(path) if "schema" in data else _of_experiment(path)


def _of_lock(path: str) -> Checked:
    experiment = read_lock(Path(path)).experiment
    tree, provenance = {**experiment, "trust": False}, dict.fromkeys(experiment, ORIGIN)
    return check(Composed(tree=tree, provenance=provenance), with_model=False)


def _of_experiment(path: str) -> Checked:
    """Composed as a file of a person's own `--config-dir`, whatever folder it lies in."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "experiment", "recipe.yaml")
        place.parent.mkdir()
        place.write_text(read_text(Path(path), named=True), encoding="utf-8")
        try:
            return check(compose(["experiment=recipe"], config_dirs=[folder]), with_model=False)
        except ConfigError as error:
            raise ConfigError(*(problem.replace(str(place), path) for problem in error.problems)) from None


def without_freezing(checked: Checked, why: str) -> Checked:
    """The same with no weights in the compiled code, which is said where the recipe asks for them there."""
    experiment = checked.experiment
    if not experiment.mode.spec.fuses or not experiment.inductor.settings().get("freezing"):
        return checked
    unfrozen = attrs.evolve(experiment.inductor, values={**experiment.inductor.values, "freezing": False})
    line = Effective(option="inductor.freezing", requested=True, effective=False, why=why)
    return attrs.evolve(
        checked, experiment=attrs.evolve(experiment, inductor=unfrozen), effective=(*checked.effective, line)
    )
