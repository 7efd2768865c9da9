"""The command line: `main` is the console script, and here are the commands that are one function. The others lie with
what they do.

Errors are one paragraph on stderr, by status (`statuses.py`):

0 all held; 1 it ran, and a numerics gate or an expectation failed; 2 the configuration is wrong or illegal, nothing was
run and no folder is left; 3 a stage failed, timed out or its process died.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npucompose.cli.arguments import command_line
from npucompose.cli.statuses import PREFIX, show_all_letters, status_of
from npucompose.console import guarded
from npucompose.errors import ConfigError

if TYPE_CHECKING:
    from npucompose.report.listing import Registries

DEBUG = "--debug"
"""Stands anywhere: an error comes with its traceback. For an experiment it is `debug=true`."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["run"]:
        return run(argv[1:])
    show_all_letters()
    with guarded():
        if argv[:2] == ["completion", "candidates"]:
            from npucompose.cli.completion import answer

            return answer(argv[2:])
        words = [word for word in argv if word != DEBUG]

        def act() -> int:
            arguments = command_line(words[0] if words else None).parse_args(words)
            return arguments.act(arguments)

        return status_of(act, debug=len(words) < len(argv))


def run(argv: Sequence[str], *, program: str = "npucompose run") -> int:
    """`python run.py …`: compose and check first, then let Hydra make the folder and run. Returns the exit status."""
    from npucompose.cli.running import run_experiment

    show_all_letters()
    with guarded():
        argv = ["debug=true" if word == DEBUG else word for word in argv]
        return status_of(lambda: run_experiment(argv, program), debug="debug=true" in argv)


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
