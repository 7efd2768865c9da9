"""npucompose run, explain, report, recipe, device-kit, bisect, list, new, doctor, fetch, protocol, profile,
compare-dumps, sizes, completion.

Errors are one paragraph on stderr, by status:

0 all held; 1 it ran, and a numerics gate or an expectation failed; 2 the configuration is wrong or illegal, nothing was
run and no folder is left; 3 a stage failed, timed out or its process died.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from npucompose.arguments import RUN_FLAGS, command_line, refusal, unknown_words_text
from npucompose.console import guarded
from npucompose.errors import ConfigError, NpuComposeError, path_error, raise_for

if TYPE_CHECKING:
    from npucompose.compose.tree import Composer
    from npucompose.experiment.job import Job
    from npucompose.experiment.sweep.command import Task
    from npucompose.report.listing import Registries
    from npucompose.report.summary import RunCommand
    from npucompose.results.record import Report

PREFIX = "npucompose: "
DEBUG = "--debug"
"""Stands anywhere: an error comes with its traceback. For an experiment it is `debug=true`."""
INTERRUPTED, PIPE_CLOSED = 130, 141
"""What a shell reports for a command ended by Ctrl-C, and for one whose reader (`… | head`) has enough."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["run"]:
        return run(argv[1:])
    _show_all_letters()
    with guarded():
        if argv[:2] == ["completion", "candidates"]:
            return _candidates(argv[2:])
        words = [word for word in argv if word != DEBUG]

        def act() -> int:
            arguments = command_line(words[0] if words else None).parse_args(words)
            return arguments.act(arguments)

        return _status_of(act, debug=len(words) < len(argv))


def _status_of(act: Callable[[], int], *, debug: bool) -> int:
    """What the command line ends with; every error is reported, and none is a traceback that nobody asked for."""
    try:
        status = _flushed(act)
    except KeyboardInterrupt:
        print(f"{PREFIX}interrupted; finished stages are kept, the same command goes on after them.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would flush into it at its end
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001
        status = _report(error, debug=debug)
        _let_go_of_what_cannot_be_written()
    return status


def _let_go_of_what_cannot_be_written() -> None:
    """What a full disk did not take Python would write again at its end, and fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _show_all_letters() -> None:
    """A terminal that has not all letters shows the others as `\\u2500`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed(act: Callable[[], int]) -> int:
    """All that was printed is written here, where it is known what a reader's leaving means; help ends by itself."""
    try:
        status = act()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


def _report(error: Exception, *, debug: bool) -> int:
    """The error on stderr: each problem on a line of its own; a traceback only where it was asked for."""
    if debug:
        traceback.print_exception(error)
    known = error if isinstance(error, NpuComposeError) else _translated(error)
    problems = known.problems if isinstance(known, ConfigError) else (str(known),)
    with suppress(OSError):  # where nothing can be written, the status says it
        for problem in problems:
            print(PREFIX + problem, file=sys.stderr)
    return known.exit_status


def _translated(error: Exception) -> NpuComposeError:
    """What was not foreseen: exit status 3, and never a bare traceback. The orchestrator's own errors (they carry an
    exit status) say it already."""
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)[:200]}: " if isinstance(error.filename, (str, bytes)) else ""
        return path_error(error) or NpuComposeError(f"{place}{error.strerror or error}.")
    if isinstance(error, MemoryError):
        return NpuComposeError("there is not enough memory for it.")
    status, problems = getattr(error, "exit_status", None), getattr(error, "problems", (str(error),))
    if status is None:
        where = "(--debug shows where)"
        return NpuComposeError(f"internal error, please report it: {type(error).__name__}: {error} {where}")
    return ConfigError(*problems) if status == ConfigError.exit_status else NpuComposeError(str(error))


def _candidates(words: Sequence[str]) -> int:
    """One candidate a line; nothing where the words make no sense: a shell is no place for an error."""
    from npucompose.completion import candidates

    try:
        found = candidates(command_line(words[0] if words else None), words)
    except NpuComposeError:
        return 0
    print("".join(f"{one}\n" for one in found), end="")
    return 0


def list_choices(arguments: argparse.Namespace) -> int:
    from npucompose.compose.conf import added_dirs, conf_dir, installed_dirs
    from npucompose.report.listing import WITHOUT_FILES, show, yaml_of

    narrowed = arguments.under or arguments.torch_npu
    if (arguments.yaml and arguments.kind != "options") or (
        narrowed and arguments.kind not in ("options", "operators")
    ):
        raise ConfigError(
            "--yaml, --under and --torch-npu are for `npucompose list options`, the last two for `npucompose list "
            f"operators` too, not for '{arguments.kind}'."
        )
    version = arguments.torch_npu
    if arguments.kind == "operators":
        version, said = _operators_shown(version)
        print(f"{PREFIX}{said}", file=sys.stderr if arguments.json else sys.stdout)
    if arguments.kind == "options" and version is None and not arguments.under.startswith("inductor"):
        version, by = _tree_shown()
        print(f"{PREFIX}{by}", file=sys.stderr if arguments.json or arguments.yaml else sys.stdout)
    if arguments.yaml:
        print(yaml_of(arguments.under, version), end="")
        return 0
    packages = installed_dirs()
    show(
        arguments.kind,
        (*added_dirs(arguments.config_dir), conf_dir(), *packages),
        as_json=arguments.json,
        under=arguments.under,
        version=version,
        packages=packages,
        registries=_without_files() if arguments.kind in WITHOUT_FILES else None,
    )
    return 0


def _without_files() -> Registries:
    from npucompose.experiment.stages import STAGES
    from npucompose.recipe.dialects import DIALECTS

    return {"stages": STAGES, "dialects": DIALECTS}


def _operators_shown(asked: str | None) -> tuple[str, str]:
    """(version, counts) of the tables that are asked for; of the torch_npu that is found here where none is."""
    from npucompose.compose.check import found_here
    from npucompose.report.operators import about
    from npucompose.vendor.versions import REFERENCE, known

    found = found_here()
    version = known(asked, "--torch-npu") if asked is not None else found.version if found is not None else REFERENCE
    return version, about(version)


def _tree_shown() -> tuple[str | None, str]:
    """(version, sentence) of the tree that holds here; (None, …) where that is the reference's, as conf/ has it."""
    from npucompose.compose.check import found_here
    from npucompose.vendor.versions import REFERENCE, assumed, tree_of

    found = found_here()
    if found is None:
        return None, f"the options of torch_npu {REFERENCE}: no torch_npu was found here."
    read = assumed(found.version)
    how = f"assumed to be those of {read}, for they could not be read" if read else "as its own classes declare them"
    said = f"the options of torch_npu {found.version}, found by {found.by}, {how}."
    return (None if tree_of(found.version) == tree_of(REFERENCE) else found.version), said


def doctor(arguments: argparse.Namespace) -> int:
    from npucompose.experiment.orchestrator import default_store
    from npucompose.report.doctor import diagnose, show

    if arguments.calibrate:
        from npucompose import recorder

        if (found := recorder.installed()) is None:
            raise ConfigError(f"the times of kernels are those of the native replayer: {recorder.MISSING}.")
        if not found.calibrate():
            raise ConfigError("the times of kernels are those of the native replayer, and there is none here.")
    diagnosis = diagnose(default_store().root)
    show(diagnosis, as_json=arguments.json)
    return diagnosis.exit_status


def fetch(arguments: argparse.Namespace) -> int:
    from npucompose.targets.npu_offline.option_trees import claims_on
    from npucompose.targets.npu_offline.wheel import DEFAULT_VERSION, fetch, pinned, torch_problem

    pin = pinned(arguments.version or DEFAULT_VERSION, arguments.python, arguments.platform)
    tree, already = fetch(pin)
    checked = "verified" if pin.sha256 else "verified by pip against its index (no hash of ours)"
    there = "is in the cache already" if already else f"was downloaded, {checked} and unpacked"
    print(f"torch_npu {pin.version} (Python {pin.python}, {pin.architecture}) {there}: {tree}")
    for line in claims_on(tree, pin.version):
        print(f"  {line}")
    if problem := torch_problem(tree):
        print(PREFIX + problem, file=sys.stderr)
    return 0


def run(argv: Sequence[str], *, program: str = "npucompose run") -> int:
    """`python run.py …`: compose and check first, then let Hydra make the folder and run. Returns the exit status."""
    _show_all_letters()
    with guarded():
        argv = ["debug=true" if word == DEBUG else word for word in argv]
        return _status_of(lambda: _run(argv, program), debug="debug=true" in argv)


def run_arguments(argv: Sequence[str], program: str) -> argparse.Namespace:
    """The options of Hydra, those of RUN_FLAGS, and `overrides`; ConfigError for what is neither."""
    from npucompose.compose.hydra_loader import get_args_parser

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


def _run(argv: Sequence[str], program: str) -> int:
    from npucompose.compose.hydra_choices import translated

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
        statuses.append(_status_of(act, debug="debug=true" in arguments.overrides))

    task = _sweep(arguments, composer, inside) if arguments.multirun else _single(arguments, composer, inside, program)
    refused = _hydra(arguments, program, composer, task)
    return statuses[0] if statuses else refused


def _refuse(program: str, message: str) -> NoReturn:
    raise refusal(message, f"`{program} --hydra-help` lists Hydra's own options.")


def _single(
    arguments: argparse.Namespace, composer: Composer, inside: Callable[[Callable[[], int]], None], program: str
) -> Any:
    """The task that Hydra calls once it has made the folder."""
    from npucompose.report.summary import RunCommand

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
    from npucompose.compose.hydra_loader import run_application

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
    from npucompose.report.summary import render

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
    render(report, terminal, attrs.evolve(asked, folder=_as_typed(run_dir)))
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
