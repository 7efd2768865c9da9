"""Hydra as the application around a run: it makes the folder, `.hydra/` and the log, and answers --cfg, --info, --help.

What `hydra.main` does, with our loader in the place of its own: no file is read a second time, unchecked.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npucompose.compose.overrides import in_our_words
from npucompose.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

    from npucompose.compose.tree import Composer

NAME = "run"
MOST_SHOWN = 200


def run_application(arguments: argparse.Namespace, composer: Composer, task: Callable[[Any], None]) -> None:
    """Follow the arguments of a command line, which Hydra's own parser made. ConfigError says what Hydra refuses."""
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    _check(arguments)
    with in_our_words():
        hydra = Hydra(task_name=NAME, config_loader=composer.loader)
        GlobalHydra.instance().initialize(hydra)
        try:
            _follow(hydra, arguments, composer.config_name, task)
        except BrokenPipeError:
            raise  # of whoever reads what Hydra answers: it has enough
        except OSError as error:
            where = f" {str(error.filename)[:MOST_SHOWN]}" if error.filename else ""
            raise ConfigError(f"the folder of the run cannot be written:{where} {error.strerror or error}.") from error
        finally:
            GlobalHydra.instance().clear()


def _check(arguments: argparse.Namespace) -> None:
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.info, arguments.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("only one of --run, --multirun, --cfg, --info and --shell-completion can be asked for.")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigError("--resolve is for --cfg and --help.")


def _follow(hydra: Hydra, arguments: argparse.Namespace, name: str, task: Callable[[Any], None]) -> None:
    from hydra._internal.utils import get_args_parser

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
