"""How the command line itself speaks: mistakes in its words, mistakes of ours, a reader that leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from npucompose import cli
from npucompose.cli import main
from npucompose.cli.arguments import command_line
from npucompose.cli.statuses import INTERRUPTED, PIPE_CLOSED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list modez", "unknown kind 'modez'. Did you mean 'mode'? Choices: passes, "),
        ("explian", "unknown command 'explian'. Did you mean 'explain'? Choices: run, "),
        ("recipe lok", "unknown action 'lok'. Did you mean 'lock'? Choices: "),
        ("fetch torchair", "unknown package 'torchair'. Choices: torch_npu."),
        ("report --pareto", "unknown option --pareto. `npucompose report --help` shows what is possible."),
        ("explain --log", "argument --log: expected one argument. `npucompose explain --help` shows"),
        ("list", "the following arguments are required: KIND. `npucompose list --help` shows"),
        ("", "the following arguments are required: COMMAND."),
        ("run --no-such-option", "unknown option --no-such-option. "),
    ],
)
def test_a_word_that_there_is_not_is_one_sentence_with_what_there_is(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"npucompose: {said}")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("command", ["explain", "run", "recipe lock", "bisect"])
def test_debug_adds_the_traceback_wherever_it_stands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), "mode=eger"]
    assert main(words) == 2
    short = capsys.readouterr().err
    for at in (len(words), len(words) - 1):
        assert main([*words[:at], "--debug", *words[at:]]) == 2
        long = capsys.readouterr().err
        assert long.startswith("Traceback")
        assert long.endswith(short)


def raising(error: BaseException) -> object:
    def act(arguments: object) -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyError("mode"), 3, "internal error, please report it: KeyError: 'mode' (--debug shows where)"),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted; "),
    ],
)
def test_a_mistake_of_ours_and_ctrl_c_are_no_tracebacks_either(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "doctor", raising(error))
    assert main(["doctor"]) == status
    told = capsys.readouterr().err
    assert told.startswith(f"npucompose: {said}")
    assert "Traceback" not in told


def test_the_package_is_the_command_of_its_python() -> None:
    told = [
        subprocess.run([sys.executable, *given], capture_output=True, text=True, check=False)
        for given in (("-m", "npucompose", "--version"), ("-m", "npucompose", "list", "nothing"))
    ]
    assert (told[0].returncode, told[0].stdout.split()[0]) == (0, "npucompose")
    assert (told[1].returncode, told[1].stderr.splitlines()[0][:12]) == (2, "npucompose: ")


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    code = "import sys; from npucompose.cli import main; sys.exit(main(['list', 'keys', '--json'] ))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == PIPE_CLOSED


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (["a=b", "--capture", "c=d", "--log", "x", "e=f"], ["a=b", "c=d", "e=f"]),
        (["--capture", "c=d"], ["c=d"]),
        (["a=b", "c=d", "--capture"], ["a=b", "c=d"]),
        (["--log", "x"], []),
    ],
)
def test_options_stand_anywhere_among_the_overrides(words: list[str], overrides: list[str]) -> None:
    found = command_line("explain").parse_args(["explain", *words])
    assert (found.overrides, found.capture, found.log) == (overrides, "--capture" in words, ["x"] * ("--log" in words))


def test_one_word_too_many_stays_one_behind_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "show", "a", "--debug", "b"]) == 2
    assert "'b' is one argument too many" in capsys.readouterr().err
    assert main(["explain", "a=b", "--capture", "--lgo=x"]) == 2
    assert "unknown option --lgo. Did you mean '--log'?" in capsys.readouterr().err
