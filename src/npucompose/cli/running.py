"""`npucompose run`: one experiment or a sweep, composed and checked before Hydra makes its folder."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from npucompose.cli.arguments import RUN_FLAGS, refusal, unknown_words_text
from npucompose.cli.statuses import PREFIX, status_of
from npucompose.errors import ConfigError, raise_for

if TYPE_CHECKING:
    from npucompose.compose.tree import Composer
    from npucompose.experiment.job import Job
    from npucompose.experiment.sweep.command import Task
    from npucompose.report.terminal import RunCommand
    from npucompose.results.record import Report


def run_experiment(argv: Sequence[str], program: str) -> int:
    from npucompose.compose.overrides import translated

    arguments = run_arguments(argv, program)
    arguments.overrides, notes = translated(arguments.overrides)
    for note in () if arguments.quiet or arguments.shell_completion else notes:
        print(PREFIX + note, file=sys.stderr)
    composer = _composer(arguments)
    if arguments.help or arguments.hydra_help or arguments.cfg or arguments.info or arguments.shell_completion:
        if not arguments.shell_completion:
            # what is wrong is said as npucompose says it before Hydra answers
            raise_for(composer.compose(arguments.overrides).problems)
        return _hydra(arguments, program, composer, lambda _: None)
    if arguments.dry_run:
        return _dry_run(arguments, composer)
    statuses: list[int] = []

    def inside(act: Callable[[], int]) -> None:
        """Hydra would turn an exception that passes through it into a traceback."""
        statuses.append(status_of(act, debug="debug=true" in arguments.overrides))

    task = _sweep(arguments, composer, inside) if arguments.multirun else _single(arguments, composer, inside, program)
    refused = _hydra(arguments, program, composer, task)
    return statuses[0] if statuses else refused


def run_arguments(argv: Sequence[str], program: str) -> argparse.Namespace:
    """The options of Hydra, those of RUN_FLAGS, and `overrides`; ConfigError for what is neither."""
    from npucompose.compose.sources import get_args_parser

    # Hydra's own parser takes overrides in one row only; `run.py mode=eager -m model=add,mlp` is one, too.
    parser = get_args_parser()
    parser.error = partial(_refuse, program)
    for flag in RUN_FLAGS:
        parser.add_argument(*flag.names, **flag.settings)
    known = [name for action in parser._actions for name in action.option_strings]
    dashed = [word for word in argv if re.match(r"-\w[\w.]+=", word) and word.partition("=")[0] not in known]
    arguments, unknown = parser.parse_known_intermixed_args([word for word in argv if word not in dashed])
    if dashed or unknown:
        _refuse(program, unknown_words_text([*dashed, *unknown][0], known, overrides=True))
    return arguments


def _refuse(program: str, message: str) -> NoReturn:
    raise refusal(message, f"`{program} --hydra-help` lists Hydra's own options.")


def _single(
    arguments: argparse.Namespace, composer: Composer, inside: Callable[[Callable[[], int]], None], program: str
) -> Any:
    """The task that Hydra calls once it has made the folder."""
    from npucompose.report.terminal import RunCommand

    job = _job(arguments, composer)
    asked = RunCommand(program=program, overrides=arguments.overrides)
    return lambda _: inside(lambda: _run_here(job, asked, arguments))


def _job(arguments: argparse.Namespace, composer: Composer) -> Job:
    from npucompose.experiment.job import Job

    job = Job.from_composed(composer.compose(arguments.overrides))
    if job.checked.experiment.search.name != "none":
        raise ConfigError(f"search={job.checked.experiment.search.name} asks for many trials: it needs -m.")
    return job


def _sweep(arguments: argparse.Namespace, composer: Composer, inside: Callable[[Callable[[], int]], None]) -> Any:
    """Plan and check every point first and report the illegal ones; Hydra makes the folder, and the others are run."""
    sweep = _planned(arguments, composer)
    sweep.act, sweep.quiet = inside, arguments.quiet
    return sweep


def _planned(arguments: argparse.Namespace, composer: Composer) -> Task:
    from npucompose.experiment.sweep.command import planned

    sweep = planned(arguments.overrides, composer)
    if arguments.force:
        sweep.run_again()
    for line in sweep.illegal_lines():
        print(PREFIX + line, file=sys.stderr)
    return sweep


def _dry_run(arguments: argparse.Namespace, composer: Composer) -> int:
    """Print what would run; the exit status says only that it could."""
    from npucompose.experiment import dry_run
    from npucompose.experiment.orchestrator import default_store

    if arguments.multirun:
        lines = _planned(arguments, composer).preview()
    else:
        lines = dry_run.of_a_job(_job(arguments, composer), default_store(), force=arguments.force)
    for line in lines:
        print(line)
    return 0


def _composer(arguments: argparse.Namespace) -> Composer:
    from npucompose.compose.tree import composer_of

    dirs = [arguments.config_dir] if arguments.config_dir else []
    if arguments.config_path:
        raise ConfigError("--config-path would replace the packaged conf/: add your own folder with --config-dir.")
    if arguments.experimental_rerun:
        raise ConfigError("--experimental-rerun would unpickle a file, which can run anything: run the command again.")
    return composer_of(dirs, arguments.config_name or "config", arguments.env)


def _hydra(arguments: argparse.Namespace, program: str, composer: Composer, task: Callable[[Any], None]) -> int:
    """Hydra around `task`: it makes the run folder, .hydra/ and run.log."""
    from npucompose.compose.sources import run_application

    before = sys.argv
    sys.argv = [program.split()[0], *sys.argv[1:]]  # Hydra's help says it
    try:
        run_application(arguments, composer.application(), composer.config_name, task)
    except SystemExit as end:
        return 0 if end.code in (None, 0) else ConfigError.exit_status  # Hydra says 1 of what it refuses
    finally:
        sys.argv = before
    return 0


def _run_here(job: Job, asked: RunCommand, arguments: argparse.Namespace) -> int:
    """Inside Hydra's task: run the job in the folder that Hydra made, print the summary, say the exit status."""
    import attrs
    from hydra.core.hydra_config import HydraConfig

    from airflow_free.progress import Progress
    from npucompose.console import console
    from npucompose.experiment import tracking
    from npucompose.experiment.orchestrator import also_passing, default_store
    from npucompose.experiment.run import forget, run_experiment
    from npucompose.report.terminal import render_summary

    terminal = console()
    run_dir, quiet, store = Path(HydraConfig.get().runtime.output_dir), arguments.quiet, default_store()
    for warning in job.warnings:
        console(stderr=True, quiet=quiet).print(PREFIX + warning, style="yellow", highlight=False, soft_wrap=True)
    if arguments.force:
        forget([job], store)
    try:
        with also_passing(HydraConfig.get().job.env_set), Progress(console(quiet=quiet)) as progress:
            report = run_experiment(job, run_dir, store=store, notify=progress.show)
    except ConfigError:
        _leave_no_folder()
        raise
    if report.error and report.exit_status:
        status = "" if report.status == "failed" else f"{report.status}: "  # the error says which stage failed
        print(f"{PREFIX}{status}{report.error}{_advice(report)}", file=sys.stderr, flush=True)
    render_summary(report, terminal, attrs.evolve(asked, folder=_as_typed(run_dir)))
    for problem in tracking.report_runs(job.checked.experiment.tracker, [run_dir], store.root):
        print(PREFIX + problem, file=sys.stderr)
    return report.exit_status


def _advice(report: Report) -> str:
    """What to do next where several passes ran and one of them changed the results."""
    guilty = report.numerics is not None and report.numerics.cause == "passes" and len(report.passes) > 1
    return "; `npucompose bisect` with the same words names the pass" if guilty else ""


def _as_typed(folder: Path) -> Path:
    """As a person would type it: below the working folder without that."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _leave_no_folder() -> None:
    """Take back what Hydra made for this run: nothing was run. Only its files go, and folders that are empty then."""
    import logging
    import shutil

    from hydra.core.hydra_config import HydraConfig

    config = HydraConfig.get()
    run_dir = Path(config.runtime.output_dir)
    logging.shutdown()
    if config.output_subdir:
        shutil.rmtree(run_dir / config.output_subdir, ignore_errors=True)
    (run_dir / f"{config.job.name}.log").unlink(missing_ok=True)
    for folder in (run_dir, *run_dir.parents):
        if folder == Path.cwd() or not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()
