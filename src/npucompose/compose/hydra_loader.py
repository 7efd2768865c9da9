"""Hydra around our files: it follows the defaults lists, and is the application around a run. Loads Hydra.

Three of its own modules are imported, each for what has no public name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import (  # `initialize` is for one a process
    ConfigLoaderImpl,
    get_overrides_dirname,
)
from hydra._internal.utils import create_config_search_path, get_args_parser  # `hydra.main` parses sys.argv and exits
from hydra.types import RunMode
from omegaconf import flag_override

from npucompose.compose.overrides import parsed_overrides, translate_hydra_errors
from npucompose.compose.references import escaped
from npucompose.compose.sources import Files
from npucompose.errors import ConfigError
from npucompose.models import MODELS
from npucompose.table.structure import facts_of, structure


class Loader(ConfigLoaderImpl):
    """Hydra's, over our places, beside any that a running Hydra application holds: it follows defaults lists, and
    composes what is its own.
    """

    def __init__(self, files: Files) -> None:
        version.setbase("1.3")
        super().__init__(create_config_search_path(None))
        self.files = files
        self.get_sources()[1:1] = files.sources  # after Hydra's own, before what is registered with it


class Application(Loader):
    """For Hydra as the application: what it shows and writes down is the tree that was composed."""

    def __init__(self, files: Files, composed: Callable[[Sequence[str], bool], Mapping[str, Any]]) -> None:
        """`composed` makes the tree of overrides: with references followed, or as it is written."""
        super().__init__(files)
        self.composed = composed

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> Any:
        """The base of a sweep lacks what its points say, which may be what is referred to: there references stay."""
        said = parsed_overrides(overrides)
        own = [o for o in said if not o.is_hydra_override()]
        kept = [str(o.input_line) for o in said if o not in own or self.repository.group_exists(o.key_or_group)]
        config = super().load_configuration(config_name, kept, run_mode, from_shell, validate_sweep_overrides)
        tree = self.composed([str(o.input_line) for o in own], run_mode is RunMode.RUN)
        if run_mode is RunMode.RUN:
            tree = _settled(tree, trusted=any(o.key_or_group == "trust" and o.value() is True for o in own))
        with flag_override(config, ["struct", "readonly"], [False, False]):
            for key in [key for key in config if key != "hydra" and key not in tree]:
                del config[key]
            for key, value in escaped(tree).items():
                config[key] = value
        job, how = config.hydra.job, config.hydra.job.config.override_dirname
        config.hydra.overrides.task = [str(o.input_line) for o in own]  # those, too, that Hydra was not given
        job.override_dirname = get_overrides_dirname(
            overrides=own, kv_sep=how.kv_sep, item_sep=how.item_sep, exclude_keys=how.exclude_keys
        )
        return config

    def load_sweep_config(self, master_config: Any, sweep_overrides: list[str]) -> Any:
        """Hydra's sweeper asks whether each point can be composed: that was seen before Hydra began."""
        return master_config


def _settled(tree: Mapping[str, Any], *, trusted: bool) -> Mapping[str, Any]:
    """With what the model's own code says of its options, where the command line trusts it; mistakes are told later."""
    options = dict(tree["model"]) if trusted and isinstance(tree.get("model"), Mapping) else {}
    with suppress(ConfigError):
        model = structure(MODELS.get(str(options.pop("name", ""))), options, "model")
        if model.needs_trust:
            model.check()
            return {**tree, "model": {"name": model.name, **facts_of(model.settled()[0])}}
    return tree


# Hydra as the application around a run: it makes the folder, `.hydra/` and the log, and answers --cfg, --info, --help.
# What `hydra.main` does, with our loader in the place of its own.

NAME = "run"


def run_application(
    arguments: argparse.Namespace, loader: Loader, config_name: str, task: Callable[[Any], None]
) -> None:
    """Follow the arguments of a command line, which Hydra's own parser made. ConfigError says what Hydra refuses."""
    from hydra._internal.hydra import Hydra  # `hydra.main` makes its own loader
    from hydra.core.global_hydra import GlobalHydra

    _check(arguments)
    with translate_hydra_errors():
        hydra = Hydra(task_name=NAME, config_loader=loader)
        GlobalHydra.instance().initialize(hydra)
        try:
            _follow(hydra, arguments, config_name, task)
        except BrokenPipeError:
            raise  # of whoever reads what Hydra answers: it has enough
        except OSError as error:
            where = f" {str(error.filename)[:200]}" if error.filename else ""
            raise ConfigError(f"the folder of the run cannot be written:{where} {error.strerror or error}.") from error
        finally:
            GlobalHydra.instance().clear()


def _check(arguments: argparse.Namespace) -> None:
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.info, arguments.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("only one of --run, --multirun, --cfg, --info and --shell-completion can be asked for.")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigError("--resolve is for --cfg and --help.")


def _follow(hydra: Any, arguments: argparse.Namespace, name: str, task: Callable[[Any], None]) -> None:
    overrides = arguments.overrides
    if arguments.help:
        hydra.app_help(config_name=name, args_parser=get_args_parser(), args=arguments)
    elif arguments.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=get_args_parser(), args=arguments)
    elif arguments.cfg:
        hydra.show_cfg(
            config_name=name,
            overrides=overrides,
            cfg_type=arguments.cfg,
            package=arguments.package,
            resolve=arguments.resolve,
        )
    elif arguments.info:
        hydra.show_info(arguments.info, config_name=name, overrides=overrides)
    elif arguments.shell_completion:
        hydra.shell_completion(config_name=name, overrides=overrides)
    elif arguments.multirun:
        hydra.multirun(config_name=name, task_function=task, overrides=[*overrides, "hydra.mode=MULTIRUN"])
    else:
        hydra.run(config_name=name, task_function=task, overrides=[*overrides, "hydra.mode=RUN"])
