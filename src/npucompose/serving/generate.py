"""`npucompose.compile_config("recipe.yaml")`: what `generate(compile_config=…)` and `pipeline(…)` of transformers take.

Imports transformers when it is called, and no torch before. The file that a person hands to an engine is a lock, or an
experiment's YAML; both may be untrusted: what an untrusted file cannot do, it cannot do here either (SECURITY.md).
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from npucompose.api import Overrides, caller_choices, with_own_shapes
from npucompose.compose.check import Checked, check
from npucompose.compose.engine import materialize
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError
from npucompose.experiment.lock import read as read_lock
from npucompose.input_safety import load_yaml, read_text
from npucompose.machine import installed_version
from npucompose.results.effective import Effective

if TYPE_CHECKING:
    from npucompose.serving.huggingface import RecipeCompileConfig


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


FILES = (".yaml", ".yml", ".json")
NOT_FROZEN = "transformers calls torch.compile itself, which must know of it before a backend is asked"


def compile_config(*choices: Overrides, config_dirs: Sequence[str] = ()) -> RecipeCompileConfig:
    """`model.generate(**inputs, cache_implementation="static", compile_config=compile_config("recipe.yaml"))`.

    The one path of a recipe (an experiment's YAML or a `recipe.lock.yaml`), or choices as for `npucompose.compile`:
    `compile_config("experiment=mine", config_dirs=["conf"])`, `compile_config("mode=reduce-overhead", "passes=cse")`.
    Make one and hand it to every call: another one is another compilation. ConfigError where the choices are not legal
    or not for this machine, and where transformers is not installed.
    """
    given = [*caller_choices(choices)]
    _wants_transformers()
    made = _of_a_file(given) or check(compose(given, config_dirs=config_dirs), with_model=False)
    checked = with_own_shapes(made, growing=True)  # some layers count the steps in a number of Python's
    mode = checked.experiment.mode.name
    if not checked.target.support(mode).compiles:
        raise ConfigError(
            f"mode={mode} compiles nothing, so that there is no compile_config for it: generate without one, or with "
            "disable_compile=True, runs eagerly."
        )
    from npucompose.serving.huggingface import RecipeCompileConfig

    return RecipeCompileConfig(materialize(without_freezing(checked, NOT_FROZEN)))


def _of_a_file(given: Sequence[str]) -> Checked | None:
    """The recipe that the only choice is the path of; None where choices are given."""
    files = [choice for choice in given if "=" not in choice and Path(choice).suffix in FILES]
    if not files:
        return None
    if len(given) > 1:
        raise ConfigError(
            f"compile_config takes one recipe, or choices: beside {files[0]} it was given "
            f"{', '.join(repr(one) for one in given if one is not files[0])}. A file in a folder experiment/ takes "
            'further choices: compile_config("experiment=NAME", …, config_dirs=[FOLDER]).'
        )
    return read_checked(expanduser(files[0]))


def _wants_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            "npucompose.compile_config makes what `generate` of transformers takes, and transformers is not installed: "
            "pip install 'npucompose[transformers]'."
        )
    import transformers  # pyright: ignore[reportMissingImports]

    if not hasattr(transformers, "CompileConfig"):
        raise ConfigError(
            f"npucompose.compile_config needs transformers 4.56 or newer; {installed_version('transformers')} is "
            "installed, which has no CompileConfig."
        )
