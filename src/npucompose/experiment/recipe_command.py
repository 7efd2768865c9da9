"""The command `npucompose recipe`: its arguments, and what its actions print. Loads only what an action needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError


def declare(recipe: argparse.ArgumentParser) -> None:
    """lock, show, verify; eject, import, export, migrate."""
    from npucompose.recipe.command import eject, export, import_

    actions = recipe.add_subparsers(required=True, metavar="ACTION")
    ejected = actions.add_parser("eject", help="the plain Python script (torch, torch_npu, torchair) of an experiment")
    imported = actions.add_parser("import", help="the YAML of a script that uses TorchAir; the script is not run")
    imported.add_argument("file", help="the script")
    imported.add_argument("--torch-npu", metavar="VERSION", help="whose option names it uses (default: 2.13.0)")
    exported = actions.add_parser("export", help="the same for another project, and what has no equivalent there")
    exported.add_argument("--to", required=True, help="which project: vllm-ascend")
    for action, act in ((ejected, eject), (exported, export)):
        action.add_argument("overrides", nargs="*", help="the experiment: group=choice key=value …")
        action.add_argument(
            "--config-dir", "-cd", action="append", default=[], help="a folder with choices of your own"
        )
        action.add_argument("--config-name", "-cn", default="config", help="another file than config.yaml")
        action.set_defaults(act=act)
    _declare_migrate(actions)
    _declare_locks(actions)
    for action in (ejected, imported, exported):
        action.add_argument("--out", metavar="FILE", help="write here and not on the screen")
    imported.set_defaults(act=import_)


def _declare_migrate(actions: Any) -> None:
    from npucompose.recipe.command import migrate

    migrated = actions.add_parser("migrate", help="what changes in a recipe between two versions of torch_npu")
    migrated.add_argument("file", type=Path, help="the YAML of an experiment")
    migrated.add_argument("--to", required=True, metavar="VERSION", help="the version that it shall run on")
    migrated.add_argument(
        "--since", metavar="VERSION", help="the version that it was written for (default: what it says, or 2.13.0)"
    )
    migrated.set_defaults(act=migrate)


def _declare_locks(actions: Any) -> None:
    locked = actions.add_parser("lock", help="run an experiment, write recipe.lock.yaml: what ran and what came of it")
    locked.add_argument("overrides", nargs="*", help="the experiment: group=choice key=value …")
    locked.add_argument("--config-dir", "-cd", action="append", default=[], help="a folder with choices of your own")
    locked.add_argument("--out", metavar="FILE", default="recipe.lock.yaml", help="default: recipe.lock.yaml")
    locked.set_defaults(act=_lock)
    shown = actions.add_parser("show", help="what a recipe.lock.yaml says")
    verified = actions.add_parser("verify", help="run a recipe.lock.yaml here: what differs, does the result hold?")
    verified.add_argument(
        "--against",
        metavar="FILE",
        help="run nothing: compare with this recipe, or refuse what this result file of a device refutes",
    )
    verified.add_argument(
        "--tolerance", type=float, default=0.2, help="of the speed-up that may be missing (default 0.2)"
    )
    verified.add_argument("--trust", action="store_true", help="import the model that the recipe names (model=python)")
    verified.set_defaults(act=_verify)
    shown.set_defaults(act=_show)
    for action in (shown, verified):
        action.add_argument("lock", type=Path, help="the file, or a run's folder")


def _lock(arguments: argparse.Namespace) -> int:
    from airflow_free.store import write_atomically
    from npucompose.compose.tree import compose
    from npucompose.experiment.job import Job
    from npucompose.experiment.orchestrator import default_store
    from npucompose.experiment.verify import lock
    from npucompose.results.record import EXIT_STATUS

    locked = lock(Job.of(compose(arguments.overrides, config_dirs=arguments.config_dir)), store=default_store())
    try:
        write_atomically(Path(arguments.out), locked.text())
    except OSError as error:
        raise ConfigError(f"--out {arguments.out} cannot be written: {error.strerror}.") from None
    print(f"{locked.result.status}; written: {arguments.out}")
    return EXIT_STATUS[locked.result.status]


def _show(arguments: argparse.Namespace) -> int:
    from npucompose.experiment.lock import read
    from npucompose.experiment.lock_text import described

    print(described(read(arguments.lock)), end="")
    return 0


def _against_a_device(locked: Any, file: Path, *, trust: bool) -> int:
    """Exit status 2 with every refuted claim that the recipe rests on; else what was proven, and 0."""
    from npucompose.experiment.device_verdicts import own_claims, recipe_key
    from npucompose.experiment.verify import job_of
    from npucompose.results import premises
    from npucompose.untrusted import read_text

    results = premises.read(file, read_text(file))
    job = job_of(locked, trust=trust)
    experiment, key = job.checked.experiment, recipe_key(job.ingredients.values)
    if problems := premises.refuted(experiment, results, own_claims(results, key)):
        raise ConfigError(*problems)
    print(premises.judged(experiment, results), end="")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from npucompose.experiment.lock import read
    from npucompose.experiment.lock_text import judged
    from npucompose.experiment.verify import compared, run_again

    if not 0 <= arguments.tolerance < 1:
        raise ConfigError(f"--tolerance must be at least 0 and below 1: {arguments.tolerance}.")
    locked = read(arguments.lock)
    if arguments.against and Path(arguments.against).suffix == ".json":
        return _against_a_device(locked, Path(arguments.against), trust=arguments.trust)
    here = read(Path(arguments.against)) if arguments.against else run_again(locked, trust=arguments.trust)
    verdict = compared(locked, here, tolerance=arguments.tolerance)
    print(judged(verdict, locked, here), end="")
    return 0 if verdict.holds else 1
