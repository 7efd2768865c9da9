"""What each command takes, and which function acts; loads nothing of what a command does. Its mistakes are errors like
all others: one sentence with what is possible, and exit status 2.
"""

from __future__ import annotations

import argparse
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from npucompose.commands import AS_JSON, INSTALLED, Command, argument, flag, one_of
from npucompose.errors import ConfigError, did_you_mean, unknown
from npucompose.version import __version__

ALIKE = 0.75
"""How near an unknown word has to be to an option where it may be an override that begins with dashes."""
CONFIG_DIR = ("--config-dir", "-cd")
RECIPE_OUT = "recipe.lock.yaml"


def refusal(message: str, advice: str) -> ConfigError:
    """Both as sentences of one paragraph; argparse's about a value of an option that takes none is said otherwise."""
    message = re.sub(r"argument (\S+): ignored explicit argument (.+)", r"\1 takes no value, and \2 is one", message)
    return ConfigError(f"{message.rstrip('.')}{'' if message.endswith('?') else '.'} {advice}")


def unknown_words_text(word: str, options: Sequence[str], *, overrides: bool = False) -> str:
    """`unknown option --jsn. Did you mean '--json'?`; of a word that is no option `'foo' is one argument too many`.

    With `overrides` the command takes an experiment: of `--mode=eager` the text is `… An override has no dashes: write
    mode=eager.`
    """
    if not word.startswith("-"):
        return f"'{word}' is one argument too many"
    name, equals, value = word.partition("=")
    close = did_you_mean(name, options, ALIKE if overrides else 0.6)
    if overrides and not close:
        close = f"An override has no dashes: write {name.lstrip('-')}={value if equals else 'VALUE'}"
    return f"unknown option {name}. {close}".strip()


class ArgumentParser(argparse.ArgumentParser):
    """`npucompose list modez` is `unknown kind 'modez'. Did you mean 'modes'? Choices: …`."""

    def error(self, message: str) -> NoReturn:
        raise refusal(message, f"`{self.prog} --help` shows what is possible.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """What a command does not know it refuses itself, and not the program around it, which has other options."""
        found, unknown_words = super().parse_known_args(args, namespace)
        unknown_words = self._with_the_others(found, unknown_words)
        if unknown_words:
            options = [name for a in self._actions for name in a.option_strings]
            takes = any(a.dest == OVERRIDES.names[0] for a in self._actions)
            self.error(unknown_words_text(unknown_words[0], options, overrides=takes))
        return found, unknown_words

    def _with_the_others(self, found: argparse.Namespace, words: list[str]) -> list[str]:
        """Words behind an option belong to those before it, where a command takes any number: `a=b --capture c=d`.

        argparse gives an argument of any number the first of its words that stand together. What is left is unknown."""
        many = next((one for one in self._actions if not one.option_strings and one.nargs in ("*", "+")), None)
        more = [word for word in words if not word.startswith("-")]
        if many is None or not more:
            return words
        setattr(found, many.dest, [*getattr(found, many.dest), *self._get_values(many, more)])
        return [word for word in words if word.startswith("-")]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest).lower()
            raise ConfigError(unknown(kind, str(value), [str(choice) for choice in action.choices]))


class _Variables(argparse.Action):
    """`--env NAME`, once for each: {name: its value, None where it is not set}."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from npucompose.input_safety import variable

        setattr(namespace, self.dest, {**getattr(namespace, self.dest), values: variable(values)})


def command_line(asked: str | None) -> argparse.ArgumentParser:
    """Every command; only the one that is asked for brings its arguments: `doctor` loads no table of `list`, and one of
    the core's own looks for no installed package."""
    parser = ArgumentParser(prog="npucompose", description="YAML in, a verified compiled graph out.")
    parser.add_argument("--version", action="version", version=f"npucompose {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in (COMMANDS if asked in COMMANDS else every_command(asked)).items():
        inner = commands.add_parser(name, help=command.about)
        if name == asked:
            _declare(inner, command)
    return parser


def every_command(asked: str | None = None) -> dict[str, Command]:
    """{name: command} of the core and of every installed package; ConfigError where the one that is asked for cannot be
    loaded."""
    named = {asked: INSTALLED.get(asked)} if asked is not None and asked in INSTALLED else {}
    return {**COMMANDS, **INSTALLED.every(), **named}


def _declare(parser: argparse.ArgumentParser, command: Command) -> None:
    excluding = any(one.one_of for one in command.arguments)
    group = parser.add_mutually_exclusive_group() if excluding else parser
    for one in command.arguments:
        settings = dict(one.settings)
        if callable(settings.get("choices")):
            settings["choices"] = settings["choices"]()
        (group if one.one_of else parser).add_argument(*one.names, **settings)
    if command.actions:
        actions = parser.add_subparsers(required=True, metavar="ACTION")
        for name, action in command.actions.items():
            _declare(actions.add_parser(name, help=action.about), action)
    else:
        parser.set_defaults(act=lambda arguments: pkgutil.resolve_name(_act_of(command, arguments))(arguments))


def _act_of(command: Command, arguments: argparse.Namespace) -> str:
    return next((act for name, act in command.instead.items() if getattr(arguments, name) is not None), command.act)


def _kinds() -> tuple[str, ...]:
    from npucompose.report.listing import kinds

    return kinds()


def _beginnings() -> tuple[str, ...]:
    return pkgutil.resolve_name("npucompose.cli.new:KINDS")


def _sortable() -> tuple[str, ...]:
    from npucompose.results.record import MEASURED

    return (*MEASURED, "status")


ENV = argument(
    "--env", metavar="NAME", action=_Variables, default={},
    help="allow ${oc.env:NAME} to read this variable, on this command line and in the files of --config-dir",
)  # fmt: skip
RUN_FLAGS = (
    flag("--quiet", "print only the result lines: no progress, no warnings; errors go to stderr"),
    flag("--dry-run", "show what would run and what the store already has; run and write nothing"),
    ENV,
    flag("--force", "run again what the store already has, including every job of a sweep"),
)
"""Of `npucompose run`, beside those of Hydra."""
OVERRIDES = argument("overrides", nargs="*", help="the experiment: group=choice key=value …")
ADDED = argument(*CONFIG_DIR, action="append", default=[], help="a folder with choices of your own")
OTHER_FILE = argument("--config-name", "-cn", default="config", help="a file to use instead of config.yaml")
EXPERIMENT = (OVERRIDES, ADDED, OTHER_FILE, ENV)
DOCTOR = (
    AS_JSON,
    flag("--calibrate", "first measure again how long kernels take here (streams.cost=calibrated)"),
)
TRUST = flag("--trust", "import the model that the recipe names (model=python)")
OUT = argument("--out", metavar="FILE", help="write to this file instead of the screen")
LOCK = argument("lock", type=Path, help="the file, or a run's folder")
ALONE = "; without overrides nothing is compiled and the answer comes from the file alone"

EXPLAIN = (
    *EXPERIMENT,
    argument("--log", action="append", default=[], metavar="FILE", help=f"a log of TorchAir, GE or torch{ALONE}"),
    argument("--dump", action="append", default=[], metavar="FILE", help=f"a dump of a GE graph{ALONE}"),
    flag("--options", "print every value of the experiment and where it was set instead"),
    argument("--under", default="", metavar="PATH", help="with --options: only values below this path"),
    flag("--adapt", "show what the rules of adapt=… would do, as a diff; changes nothing"),
    flag("--capture", "say whether the model would be captured as an NPU graph, and which lines prevent it"),
    argument("--vllm", metavar="RECIPE", help="every compilation option of vLLM and of a recipe: asked, acts, why not"),
    argument("--compilation-config", metavar="JSON", help="with --vllm: what else vLLM is asked for"),
    argument("--max-num-batched-tokens", type=int, metavar="N", help="with --vllm: vLLM's (default: 2048)"),
    AS_JSON,
)
LIST = (
    argument(
        "kind",
        choices=_kinds,
        metavar="KIND",
        help="a group (`mode` or `modes`), keys, options (TorchAir's), operators, socs, …",
    ),
    ADDED,
    argument("--under", default="", metavar="PATH", help="options below this path, operators whose name begins so"),
    argument(
        "--torch-npu",
        "--target-version",
        metavar="VERSION",
        help="for options and operators: of this version (default: the installed one, or 2.13.0)",
    ),
    *one_of(AS_JSON, flag("--yaml", "for options: print the YAML of conf/compiler")),
)
NEW = (
    argument("kind", choices=_beginnings, metavar="KIND", help="model, pass, target or experiment"),
    argument("name", metavar="NAME", help="name of the file and of the choice, for example my_block"),
    argument("--into", metavar="FOLDER", type=Path, default=Path(), help="where (default: here)"),
)
FETCH = (
    argument("package", choices=("torch_npu",), help="what to fetch"),
    argument("--version", help="any version in pip's index (default: 2.13.0, on which execution is proven)"),
    argument("--python", metavar="3.11", help="the Python that the wheel is for (default: this one)"),
    argument("--platform", choices=("x86_64", "aarch64"), help="the wheel's processor (default: this one's)"),
)
REPORT = (
    argument("places", nargs="*", metavar="DIR", help="folders of runs, sweeps or stores (default: what was run here)"),
    flag("--diff", "only what differs between two runs, and where it was set"),
    argument("--sort", default="p50_us", choices=_sortable, help="column to sort by"),
    flag("--descending", "largest first"),
    argument("--limit", type=int, default=50, metavar="N", help="maximum number of lines; 0: all (default: 50)"),
    *one_of(
        flag("--full", "everything about each run"),
        flag("--markdown", "as Markdown, for a pull request"),
        flag("--csv", "as CSV, for a spreadsheet"),
        flag("--json", "with --diff: the differences as JSON"),
        argument(
            "--html",
            metavar="FILE",
            type=Path,
            help="write one HTML page: table, Pareto plots, differences between any two runs",
        ),
    ),
)
RECIPE = {
    "eject": Command(
        about="write an experiment as a plain Python script (torch, torch_npu, torchair)",
        act="npucompose.recipe.command:eject",
        arguments=(*EXPERIMENT, OUT),
    ),
    "import": Command(
        about="write the YAML of a script, or of an engine's configuration or command line; nothing is run",
        act="npucompose.recipe.command:import_",
        arguments=(
            argument("file", help="a script, a configuration (.yaml, .json), a command line (.sh, .txt), or its text"),
            argument("--torch-npu", metavar="VERSION", help="version whose option names it uses (default: 2.13.0)"),
            argument(
                "--vllm-ascend",
                metavar="VERSION",
                help="version whose keys it uses (default: what it or requirements.txt beside it says, or the newest)",
            ),
            argument(
                "--compilation", type=int, metavar="N", help="which one of a script that compiles several (default: 1)"
            ),
            argument(
                "--assume",
                action="append",
                default=[],
                metavar="TEXT=VALUE",
                help='what a condition or a name of the script is: --assume "args.fast=True"; may be repeated',
            ),
            OUT,
        ),
    ),
    "export": Command(
        about="write an experiment as another project's configuration",
        act="npucompose.recipe.command:export",
        arguments=(
            argument("--to", required=True, help="which project: vllm, vllm-ascend or sglang"),
            *EXPERIMENT,
            OUT,
        ),
    ),
    "migrate": Command(
        about="list what changes in a recipe between two versions of torch_npu",
        act="npucompose.experiment.migration:migrate",
        arguments=(
            argument("file", type=Path, help="the YAML of an experiment"),
            argument("--to", required=True, metavar="VERSION", help="the version to run on"),
            argument(
                "--since",
                metavar="VERSION",
                help="the version that it was written for (default: the one it names, or 2.13.0)",
            ),
        ),
    ),
    "lock": Command(
        about="run an experiment and write recipe.lock.yaml: what ran, and its result",
        act="npucompose.experiment.verify:act_lock",
        arguments=(
            OVERRIDES,
            ADDED,
            ENV,
            argument("--out", metavar="FILE", default=RECIPE_OUT, help=f"default: {RECIPE_OUT}"),
        ),
    ),
    "show": Command(about="print a recipe.lock.yaml", act="npucompose.experiment.verify:act_show", arguments=(LOCK,)),
    "verify": Command(
        about="run a recipe.lock.yaml here: what differs, and does the result hold?",
        act="npucompose.experiment.verify:act_verify",
        arguments=(
            argument(
                "--against",
                metavar="FILE",
                help="run nothing: compare with this recipe, or check against a device's result file",
            ),
            argument(
                "--tolerance", type=float, default=0.2, help="share of the speed-up that may be missing (default: 0.2)"
            ),
            argument(
                "--kernels",
                choices=("locked", "measured"),
                default="locked",
                help="compute with the kernels that the recipe names (default), or with those that are faster here",
            ),
            TRUST,
            LOCK,
        ),
    ),
}
COMMANDS = {
    "run": Command(
        about="run an experiment, or a sweep with -m: group=choice key=value …",
        arguments=(argument("overrides", nargs="*", help="the experiment: group=choice key=value …"), *RUN_FLAGS),
    ),
    "explain": Command(
        about="whether GE would build the graph static or an NPU would capture it, and why; runs no stage",
        act="npucompose.experiment.explain:act",
        instead={"vllm": "npucompose.commands:explain_vllm"},
        arguments=EXPLAIN,
    ),
    "list": Command(
        about="list the choices of a group, keys, options", act="npucompose.cli:list_choices", arguments=LIST
    ),
    "new": Command(
        about="write a working model, pass, target or experiment of your own, with its test",
        act="npucompose.cli.new:act",
        arguments=NEW,
    ),
    "doctor": Command(about="show what this machine can do", act="npucompose.cli:doctor", arguments=DOCTOR),
    "fetch": Command(
        about="download Huawei's torch_npu wheel for target=npu_offline",
        act="npucompose.cli:fetch",
        arguments=FETCH,
    ),
    "bisect": Command(
        about="find the first pass that breaks an experiment",
        act="npucompose.experiment.bisect:act",
        arguments=(OVERRIDES, ADDED, ENV),
    ),
    "report": Command(
        about="a table of runs, or the differences between two",
        act="npucompose.experiment.sweep.report:act",
        arguments=REPORT,
    ),
    "completion": Command(
        about="print a shell's completion of commands, groups, choices and keys",
        act="npucompose.cli.completion:act",
        arguments=(argument("shell", choices=("bash", "zsh", "fish"), help="which shell"),),
    ),
    "recipe": Command(about="lock, verify, import and eject experiments", actions=RECIPE),
}
