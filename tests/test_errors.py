"""What errors say, and what comes through pickle."""

from __future__ import annotations

import errno
import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npucompose import errors
from npucompose.errors import (
    ConfigError,
    MissingExtra,
    NpuComposeError,
    PlanError,
    RejectedError,
    SignatureError,
    raise_for,
    users_line,
)
from npucompose.ops.definitions import UnsupportedArgument
from npucompose_replay.gate import Refused
from tools.layout import product


@pytest.mark.parametrize(
    "error",
    [
        PlanError("race", "mm and add race"),
        MissingExtra("a model", "transformers", "transformers"),
        RejectedError("one", "two"),
        ConfigError("one", "two"),
    ],
)
def test_an_error_comes_through_pickle_with_all_that_it_says(error: Any) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(error, type(back))
    assert (str(back), back.problems) == (str(error), error.problems)
    assert getattr(back, "code", None) == getattr(error, "code", None)


def test_errors_say_what_they_are_made_of() -> None:
    assert str(PlanError("race", "they race")) == "they race [race]"
    assert str(ConfigError("one", "two")) == "one\ntwo"
    assert str(RejectedError("one", "two")) == "one two"
    missing = MissingExtra("target=x", "torch_npu", "npu")
    assert str(missing) == "target=x needs the package 'torch_npu': pip install 'npucompose[npu]'."
    assert (missing.package, missing.extra) == ("torch_npu", "npu")
    assert (NpuComposeError.exit_status, ConfigError.exit_status, PlanError.exit_status) == (3, 2, 2)
    wrong = SignatureError("no", index=3, why="is sparse")
    assert (str(wrong), wrong.index, wrong.why) == ("no", 3, "is sparse")
    assert (SignatureError("no").index, SignatureError("no").why) == (-1, "")


def test_what_is_near_is_offered() -> None:
    assert errors.did_you_mean("benhc", ["bench", "check"]) == "Did you mean 'bench'? "
    assert errors.did_you_mean("xyz", ["bench", "check"]) == ""
    assert errors.did_you_mean("abc", ["abxyz"]) == ""
    assert errors.unknown("pass", "ces", ["cse", "x"]) == "unknown pass 'ces'. Did you mean 'cse'? Choices: cse, x."
    assert errors.unknown("pass", "q", ["cse"], "passes") == "unknown pass 'q' @ passes. Choices: cse."


def test_the_last_line_of_a_traceback_is_the_models() -> None:
    trace = 'File "/a/b.py", line 1, in f\n    first()\nFile "/a/m.py", line 3, in forward\n    return x  \n'
    assert errors.traced_line(trace) == "m.py:3 in forward: return x"
    assert errors.traced_line("nothing") is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied."),
        (OSError(errno.EACCES, "Permission denied", b"/b"), "/b: Permission denied."),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "a path: File name too long."),
        (OSError(errno.ENAMETOOLONG, "too long", "x" * 300), "x" * 200 + ": too long."),
        (OSError(errno.ENOENT, "gone", "/no such/place/file"), "/no such/place is gone: was it deleted meanwhile?"),
        (OSError(errno.ENOENT, "gone", "/tmp/no such file"), None),
        (OSError(errno.ENOENT, "gone"), None),
        (OSError(errno.ENOSPC, "full", "/a"), None),
    ],
)
def test_what_is_wrong_with_a_path_is_a_mistake_of_who_gave_it(error: OSError, words: str | None) -> None:
    told = errors.path_error(error)
    if words is None:
        assert told is None
        return
    assert told is not None
    assert str(told).startswith(words)
    assert told.__cause__ is error


def test_the_last_line_of_a_persons_own_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import json\n\n\ndef f(x):\n    return json.loads(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mine  # pyright: ignore[reportMissingImports]

    with pytest.raises(ValueError, match="Expecting") as found:
        mine.f("{")
    assert users_line(found.value) == "mine.py:5 in f, `return json.loads(x)`"
    (tmp_path / "other.py").write_text("def f(:\n")
    with pytest.raises(SyntaxError) as wrong:
        import other  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert users_line(wrong.value) == "other.py:1, `def f(:`"
    (tmp_path / "reads.py").write_text("def f(text):\n    raise SyntaxError(text)\n")
    import reads  # pyright: ignore[reportMissingImports]

    with pytest.raises(SyntaxError) as raised:
        reads.f("of a language of its own")
    assert users_line(raised.value) == "reads.py:2 in f, `raise SyntaxError(text)`"


def test_code_that_no_person_wrote_is_not_named() -> None:
    with pytest.raises(ConfigError) as ours:
        raise_for(["wrong"])
    ours.value.__traceback__ = ours.value.__traceback__ and ours.value.__traceback__.tb_next
    assert users_line(ours.value) is None
    assert users_line(ValueError("never raised")) is None


SOURCES = tuple(product().values())
_RAISED = re.compile(r"^class \w+\((?:\w+, )*\w*(?:Error|Exception|Request|Refused)(?:, \w+)*\):", re.MULTILINE)


def exceptions_of_ours() -> Iterator[type[BaseException]]:
    """Every class of exceptions in the packages that the project brings."""
    for root in SOURCES:
        for file in root.rglob("*.py"):
            if _RAISED.search(file.read_text(encoding="utf-8")):
                module = importlib.import_module(".".join(file.relative_to(root.parent).with_suffix("").parts))
                for one in vars(module).values():
                    if isinstance(one, type) and issubclass(one, BaseException) and one.__module__ == module.__name__:
                        yield one


def test_every_exception_can_be_made_of_one_text_as_torchair_makes_them_anew() -> None:
    found = list(exceptions_of_ours())
    assert {PlanError, MissingExtra, UnsupportedArgument, Refused} <= set(found)
    for one in found:
        made: Any = one("the words")
        again = pickle.loads(pickle.dumps(made))
        assert "the words" in str(made)
        assert (isinstance(made, type(again)), str(again)) == (True, str(made))
