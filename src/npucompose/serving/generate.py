"""`npucompose.compile_config("recipe.yaml")`: what `generate(compile_config=…)` and `pipeline(…)` of transformers take.

Imports transformers when it is called, and no torch before.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from npucompose.api import Overrides, caller_choices, with_own_shapes
from npucompose.compose.check import Checked, check
from npucompose.compose.engine import materialize
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.machine import installed_version
from npucompose.serving.recipe_file import read_checked, without_freezing

if TYPE_CHECKING:
    from npucompose.serving.huggingface import RecipeCompileConfig

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
