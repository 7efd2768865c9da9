"""What each command takes, and which function acts; loads nothing of what a command does. Its mistakes are errors like
all others: one sentence with what is possible, and exit status 2.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from npucompose.errors import ConfigError, unknown
from npucompose.version import __version__

CONFIG_DIR = ("--config-dir", "-cd")
RECIPE_OUT = "recipe.lock.yaml"
KIT_OUT = "device_kit"


class ArgumentParser(argparse.ArgumentParser):
    """`npucompose list modez` is `unknown kind 'modez'. Did you mean 'modes'? Choices: …`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.rstrip('.')}. `{self.prog} --help` shows what is possible.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest).lower()
            raise ConfigError(unknown(kind, str(value), [str(choice) for choice in action.choices]))


def command_line(asked: str | None) -> argparse.ArgumentParser:
    """Every command; only the one that is asked for brings its arguments: `doctor` loads no table of `list`."""
    parser = ArgumentParser(prog="npucompose", description="YAML in, a verified compiled graph out.")
    parser.add_argument("--version", action="version", version=f"npucompose {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (declare, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        if name == asked:
            declare(command)
    return parser


def _acting(name: str) -> Callable[[argparse.Namespace], int]:
    """The function that "module:function" names, imported when it is called."""
    return lambda arguments: pkgutil.resolve_name(name)(arguments)


def _experiment(parser: argparse.ArgumentParser, act: str, *, other_file: bool = True) -> None:
    parser.add_argument("overrides", nargs="*", help="the experiment: group=choice key=value …")
    _config_dir(parser)
    if other_file:
        parser.add_argument("--config-name", "-cn", default="config", help="another file than config.yaml")
    parser.set_defaults(act=_acting(act))


def _config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(*CONFIG_DIR, action="append", default=[], help="a folder with choices of your own")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="the experiment; Hydra reads them")


def _explain(parser: argparse.ArgumentParser) -> None:
    """`npucompose explain experiment=fa_path4`, `npucompose explain --log run.log --dump ge_proto_00000012.txt`."""
    _experiment(parser, "npucompose.experiment.explain:act")
    files = "; without overrides nothing is compiled and only the file speaks"
    for flag, what in (("--log", "a log of TorchAir, GE, torch"), ("--dump", "a dump of a GE graph")):
        parser.add_argument(flag, action="append", default=[], metavar="FILE", help=what + files)
    parser.add_argument(
        "--options", action="store_true", help="instead: every value of the experiment, and who said so"
    )
    parser.add_argument("--under", default="", metavar="PATH", help="with --options: those below this path")
    parser.add_argument("--adapt", action="store_true", help="what the rules of adapt=… would do, as a diff; a dry run")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _list(parser: argparse.ArgumentParser) -> None:
    from npucompose.report.listing import kinds

    about = "a group, as `mode` or `modes`; keys; options (TorchAir's); socs"
    parser.add_argument("kind", choices=kinds(), metavar="KIND", help=about)
    _config_dir(parser)
    parser.add_argument("--under", default="", metavar="PATH", help="options only: the subtree below this path")
    version = "options only: of this version (default: the one found, or 2.13.0)"
    parser.add_argument("--torch-npu", metavar="VERSION", help=version)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--yaml", action="store_true", help="options only: conf/compiler as the table has it")
    parser.set_defaults(act=_acting("npucompose.cli:list_choices"))


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(act=_acting("npucompose.cli:doctor"))


def _fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", choices=("torch_npu",), help="what to fetch")
    parser.add_argument("--version", help="any that pip's index has (default: 2.13.0, on which execution is proven)")
    parser.add_argument("--python", metavar="3.11", help="the Python that the wheel is for (default: this one)")
    parser.add_argument("--platform", choices=("x86_64", "aarch64"), help="the wheel's processor (default: this one's)")
    parser.set_defaults(act=_acting("npucompose.cli:fetch"))


def _bisect(parser: argparse.ArgumentParser) -> None:
    _experiment(parser, "npucompose.experiment.bisect:act", other_file=False)


def _report(parser: argparse.ArgumentParser) -> None:
    from npucompose.results.record import MEASURED

    parser.add_argument("places", nargs="*", metavar="DIR", help="runs, sweeps, stores (default: the store here)")
    parser.add_argument("--diff", action="store_true", help="what differs between two runs, and who said so")
    parser.add_argument("--sort", default="p50_us", choices=(*MEASURED, "status"), help="by which figure")
    parser.add_argument("--descending", action="store_true", help="the largest first")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="so many lines; 0: all (default: 50)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="for a pull request")
    form.add_argument("--csv", action="store_true", help="for a spreadsheet")
    form.add_argument("--json", action="store_true", help="with --diff: the differences as JSON")
    page = "one page: table, Pareto plots, differences between any two runs"
    form.add_argument("--html", metavar="FILE", type=Path, help=page)
    parser.set_defaults(act=_acting("npucompose.experiment.sweep.report:act"))


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    parser.set_defaults(act=_acting("npucompose.completion:act"))


def _device_kit(parser: argparse.ArgumentParser) -> None:
    words = "a recipe (recipe.lock.yaml, or an experiment's YAML and key=value); or: read results.json"
    parser.add_argument("words", nargs="+", metavar="FILE", help=words)
    out = f"of the kit (default: {KIT_OUT}); of what is read: .npucompose/device"
    parser.add_argument("--out", metavar="FOLDER", help=out)
    _config_dir(parser)
    _trust(parser)
    parser.set_defaults(act=_acting("npucompose.experiment.device_kit:act"))


def _trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", action="store_true", help="import the model that the recipe names (model=python)")


def _recipe(parser: argparse.ArgumentParser) -> None:
    """lock, show, verify; eject, import, export, migrate."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    ejected = actions.add_parser("eject", help="the plain Python script (torch, torch_npu, torchair) of an experiment")
    _experiment(ejected, "npucompose.recipe.command:eject")
    imported = actions.add_parser("import", help="the YAML of a script that uses TorchAir; the script is not run")
    imported.add_argument("file", help="the script")
    imported.add_argument("--torch-npu", metavar="VERSION", help="whose option names it uses (default: 2.13.0)")
    imported.set_defaults(act=_acting("npucompose.recipe.command:import_"))
    exported = actions.add_parser("export", help="the same for another project, and what has no equivalent there")
    exported.add_argument("--to", required=True, help="which project: vllm-ascend")
    _experiment(exported, "npucompose.recipe.command:export")
    for action in (ejected, imported, exported):
        action.add_argument("--out", metavar="FILE", help="write here and not on the screen")
    migrated = actions.add_parser("migrate", help="what changes in a recipe between two versions of torch_npu")
    migrated.add_argument("file", type=Path, help="the YAML of an experiment")
    migrated.add_argument("--to", required=True, metavar="VERSION", help="the version that it shall run on")
    since = "the version that it was written for (default: what it says, or 2.13.0)"
    migrated.add_argument("--since", metavar="VERSION", help=since)
    migrated.set_defaults(act=_acting("npucompose.recipe.command:migrate"))
    _locks(actions)


def _locks(actions: Any) -> None:
    locked = actions.add_parser("lock", help="run an experiment, write recipe.lock.yaml: what ran and what came of it")
    _experiment(locked, "npucompose.experiment.verify:act_lock", other_file=False)
    locked.add_argument("--out", metavar="FILE", default=RECIPE_OUT, help=f"default: {RECIPE_OUT}")
    shown = actions.add_parser("show", help="what a recipe.lock.yaml says")
    shown.set_defaults(act=_acting("npucompose.experiment.verify:act_show"))
    verified = actions.add_parser("verify", help="run a recipe.lock.yaml here: what differs, does the result hold?")
    against = "run nothing: compare with this recipe, or refuse what this result file of a device refutes"
    verified.add_argument("--against", metavar="FILE", help=against)
    tolerance = "of the speed-up that may be missing (default 0.2)"
    verified.add_argument("--tolerance", type=float, default=0.2, help=tolerance)
    _trust(verified)
    verified.set_defaults(act=_acting("npucompose.experiment.verify:act_verify"))
    for action in (shown, verified):
        action.add_argument("lock", type=Path, help="the file, or a run's folder")


COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "run": (_run, "compose, compile, capture, replay, benchmark: group=choice key=value …"),
    "explain": (_explain, "why a graph would sink or not; who set which option; runs no stage"),
    "list": (_list, "what can be chosen"),
    "doctor": (_doctor, "what this machine can do"),
    "fetch": (_fetch, "download the genuine torch_npu wheel for target=npu_offline"),
    "bisect": (_bisect, "the first pass that breaks an experiment"),
    "report": (_report, "runs beside each other, or what differs between two"),
    "completion": (_completion, "what a shell needs to complete commands, groups, choices, keys"),
    "device-kit": (_device_kit, "plain scripts that prove a recipe on an NPU; read what came back"),
    "recipe": (_recipe, "an experiment out of npucompose, and in again"),
}
