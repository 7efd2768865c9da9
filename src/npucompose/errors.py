"""Every exception of the project, the sentences they share, and text as it may be shown. Knows nothing but words.

An error is for the person at the command line: where, what was given, what is possible. Each class carries the exit
status that the command line ends with: 2 the configuration is wrong or illegal, 3 a stage failed.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from airflow_free.errors import visible as visible
from npucompose.packages import folder_of, folders, not_installed


class NpuComposeError(Exception):
    """The base: str(e) is one paragraph that a person can act on; no traceback is needed to understand it.

    Each class can be made of one text alone: TorchAir raises what it catches anew, as `type(e)("…")`.
    """

    exit_status: ClassVar[int] = 3


class ConfigError(NpuComposeError):
    """The configuration is wrong or illegal: nothing was run. `problems` holds one sentence for each mistake."""

    exit_status: ClassVar[int] = 2

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__("\n".join(problems))


def raise_for(problems: Collection[str]) -> None:
    """Raise a ConfigError that holds them all; go on where there is none."""
    if problems:
        raise ConfigError(*problems)


class PlanError(ConfigError):
    """A stream plan that cannot be followed or cannot be made safe; `code` is stable, the text names the nodes."""

    def __init__(self, code: str, problem: str | None = None) -> None:
        self.code = "" if problem is None else code
        super().__init__(code if problem is None else f"{problem} [{code}]")

    def __reduce__(self) -> tuple[type[PlanError], tuple[str, ...]]:
        words = self.problems[0]
        return type(self), (self.code, words.removesuffix(f" [{self.code}]")) if self.code else (words,)


class MissingExtra(ConfigError):
    """An optional package is not installed; the text says which extra brings it."""

    def __init__(self, where: str, package: str | None = None, extra: str = "") -> None:
        self.package, self.extra = package or "", extra
        needs = f"{where} needs the package '{package}': pip install 'npucompose[{extra}]'."
        super().__init__(where if package is None else needs)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, ...]]:
        return ConfigError, self.problems


class FetchError(NpuComposeError):
    """A file could not be downloaded, is not the one that was pinned, or cannot be unpacked."""


class CompileError(NpuComposeError, RuntimeError):
    """torch.compile could not make a graph of the model. What it raises itself is a RuntimeError too."""


class PassError(NpuComposeError):
    """A pass raised or left an invalid graph; the text names the pass."""


class RejectedError(CompileError):
    """The model asks an operator for a mode that an adaptation rule rejects; `problems` has one sentence a node."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(" ".join(problems))

    def __reduce__(self) -> tuple[type[RejectedError], tuple[str, ...]]:
        return type(self), self.problems


class CaptureError(NpuComposeError):
    """A graph that cannot be captured: the text names the operator and the model's source line."""


class SignatureError(NpuComposeError):
    """A captured graph was called with other shapes, dtypes, strides or devices than it was captured for.

    Where one input may not come in at all, `index` is its number among the graph's and `why` goes on from its name.
    """

    def __init__(self, words: str, *, index: int = -1, why: str = "") -> None:
        super().__init__(words)
        self.index, self.why = index, why


class FrozenWeightError(NpuComposeError):
    """A weight that was frozen has changed, and `inductor.frozen_weights` is `error`; the text names the weight."""


def first_raised(error: BaseException) -> BaseException:
    """What `error` is of the same class as, and was raised while that was handled: TorchAir raises what it catches
    anew, with a traceback in its text, which not every class keeps."""
    while type(error.__context__) is type(error):
        assert error.__context__ is not None
        error = error.__context__
    return error


def did_you_mean(name: str, choices: Iterable[str], alike: float = 0.6) -> str:
    """`Did you mean 'bench'? ` or an empty string; 'benhc' among bench, check gives the former."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=alike)
    return f"Did you mean '{close[0]}'? " if close else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def unknown(kind: str, name: str, choices: Sequence[str], where: str = "", more: str = "") -> str:
    """`unknown pass 'ces'. Did you mean 'cse'? Choices: cse, dead_code.`, with ` @ where` before the full stop.

    `more` stands behind all. Of what a package brings that is not installed: the package, the line that installs it.
    """
    if lacking := not_installed(kind, name, where):
        return lacking
    at = f" @ {where}" if where else ""
    return f"unknown {kind} '{name}'{at}. {did_you_mean(name, choices)}Choices: {listed(choices)}.{more}"


def traced_line(trace: str) -> str | None:
    """`m.py:3 in forward: return x.item()`, from the last frame of a traceback's text; None where there is none."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s+(.+)', trace)
    if not frames:
        return None
    file, line, function, code = frames[-1]
    return f"{file.rpartition('/')[2]}:{line} in {function}: {code.strip()}"


def users_line(error: BaseException) -> str | None:
    """``my_pass.py:3 in f, `x[0]` ``: the last line of a person's own code that the exception went
    through; of a file that is no Python, the line that is not. None where no such code is in it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(error.filename)}:{error.lineno}, `{(error.text or '').strip()}`"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_persons_own(f.filename)]
    if not frames:
        return None
    last = frames[-1]
    code = f", `{last.line}`" if last.line else ""
    return f"{shown_path(last.filename)}:{last.lineno} in {last.name}{code}"


def is_persons_own(file: str) -> bool:
    """An installed extension lies within Python's folder, and is somebody's own."""
    return not file.startswith(_not_theirs()) and ("site-packages" in file or not file.startswith(_PYTHON))


def shown_path(path: str) -> str:
    """As a person would type it here."""
    here = f"{os.getcwd()}{os.sep}"
    return path.removeprefix(here)


@cache
def _not_theirs() -> tuple[str, ...]:
    """Beginnings of the file names in a traceback that a person did not write."""
    return (*folders(), *folder_of("torch"), "<")


_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"

OF_A_PATH = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


def path_error(error: OSError) -> ConfigError | None:
    """What is wrong with a path that somebody gave, or with a folder that is gone; None for every other mistake."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    told = None
    if error.errno in OF_A_PATH:
        told = ConfigError(f"{path[:200] or 'a path'}: {error.strerror}.")
    elif error.errno == errno.ENOENT and path and not Path(path).parent.is_dir():
        told = ConfigError(
            f"{str(Path(path).parent)[:200]} is gone: was it deleted meanwhile? What was finished is in the store, and "
            "the same command goes on after it."
        )
    if told is not None:
        told.__cause__ = error
    return told
