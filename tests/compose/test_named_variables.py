"""`--env NAME`: a configuration reads the variables that the person names, as values, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.cli import main
from npucompose.cli.arguments import ENV, OVERRIDES, every_command
from npucompose.compose.references import resolved
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job

CHECK = ["model=mlp", "mode=eager", "pipeline=check"]
ENVIRONMENT = {"WIDTH": "64", "LABEL": "mine", "EMPTY": "", "LATER": "${seed}", "GONE": None}
COMPOSER = Composer(environment=ENVIRONMENT)


def seed(text: str, composer: Composer = COMPOSER) -> object:
    composed = composer.compose([*CHECK, f"seed={text}"])
    assert composed.problems == ()
    return composed.tree["seed"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.env:WIDTH}", 64),
        ("${oc.env:WIDTH,7}", 64),
        ("${oc.env:GONE,7}", 7),
        ("${oc.env:GONE,-0.5}", -0.5),
        ("${oc.env:GONE,1e-3}", 1e-3),
        ("${oc.env:GONE,true}", True),
        ("w${oc.env:WIDTH}", "w64"),
        ("${oc.env:LABEL}", "mine"),
        ("${oc.env:EMPTY}", ""),
        ("${oc.env:LATER}", "${seed}"),
        ("\\${oc.env:WIDTH}", "${oc.env:WIDTH}"),
    ],
)
def test_a_variable_that_was_named_is_read_as_a_value_of_the_command_line(text: str, value: object) -> None:
    assert resolved({"a": text, "seed": 1}, ENVIRONMENT)["a"] == value


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_whatever_a_variable_holds_is_never_followed(value: str) -> None:
    found = resolved({"a": "${oc.env:X}", "b": "=${oc.env:X}", "c": "${a}", "SECRET": 1}, {"X": value})
    assert found["b"] == f"={value}"
    assert found["c"] == found["a"]
    assert not isinstance(found["a"], (dict, list))
    assert found["a"] == value or str(value).strip("+-").replace(".", "").replace("e", "").isalnum()


@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "${oc.env:WIDTHS}", "${oc.env: WIDTH}", "${oc.decode:${oc.env:WIDTH}}", "${oc.env:${name}}"],
)
def test_no_other_variable_and_no_other_resolver(text: str) -> None:
    with pytest.raises(ConfigError, match="uses a resolver"):
        resolved({"a": text, "name": "WIDTH"}, ENVIRONMENT)


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${oc.env:WIDTHS,3}", "${oc.decode:3}"])
def test_nor_on_the_command_line(text: str) -> None:
    (problem,) = COMPOSER.compose([*CHECK, f"seed={text}"]).problems
    assert "uses a resolver" in problem


def test_the_refusal_names_the_switch() -> None:
    (problem,) = Composer().compose(["seed=${oc.env:WIDTH}"]).problems
    assert problem.endswith("`--env WIDTH` on the command line lets it read that variable.")


def test_a_variable_that_is_not_set_is_told_by_name() -> None:
    with pytest.raises(ConfigError, match="seed reads the environment variable GONE, which is not set"):
        COMPOSER.compose([*CHECK, "seed=${oc.env:GONE}"])


def key(overrides: Sequence[str], **environment: str) -> str:
    return Job.from_composed(Composer(environment=environment).compose([*CHECK, *overrides])).key


def test_the_key_holds_what_was_read() -> None:
    assert seed("${oc.env:WIDTH}") == 64
    read = key(["seed=${oc.env:N}"], N="3")
    assert read == key(["seed=3"])
    assert read != key(["seed=${oc.env:N}"], N="4")


@pytest.mark.parametrize(
    "override",
    [
        "tracker.experiment=${oc.env:LABEL}",
        "executor.jobs=${oc.env:WIDTH}",
        "+search.space.seed={one_of:['${oc.env:WIDTH}']}",
    ],
)
def test_what_the_key_would_not_hold_is_refused(override: str) -> None:
    more = ["search=optuna"] if "search" in override else []
    with pytest.raises(ConfigError, match="reads the environment, and is no part of the key"):
        Job.from_composed(COMPOSER.compose([*CHECK, *more, override]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WIDTH", "32")
    monkeypatch.setenv("OTHER", "hunter2")
    (tmp_path / "own" / "model").mkdir(parents=True)
    return tmp_path


def shown(folder: Path, content: str, *flags: str) -> int:
    (folder / "own" / "model" / "mine.yaml").write_text(content)
    return main(
        ["run", "--config-dir", "own", *flags, "model=mine", "mode=eager", "--cfg", "job", "--package", "model"]
    )


def test_a_file_of_ones_own_reads_what_was_named_for_this_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(folder, "name: mlp\nsize: ${oc.env:WIDTH}\n", "--env", "WIDTH") == 0
    assert "size: 32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "flags"),
    [
        ("name: mlp\nsize: ${oc.env:WIDTH}\n", ()),
        ("name: mlp\nsize: ${oc.env:OTHER}\n", ("--env", "WIDTH")),
        ("name: mlp\nsize: '${oc.env:WIDTH}${oc.env:OTHER}'\n", ("--env", "WIDTH")),
        ("name: mlp\nsize: ${oc.env:${oc.env:WIDTH}}\n", ("--env", "WIDTH")),
        ("name: mlp\nsize: ${oc.env:WIDTH,${oc.env:OTHER}}\n", ("--env", "WIDTH")),
    ],
)
def test_a_file_reads_nothing_that_was_not_named(
    content: str, flags: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(folder, content, *flags) == 2
    told = capsys.readouterr()
    assert "model/mine.yaml:2: 'size'" in told.err
    assert "hunter2" not in told.err + told.out


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "A,B", "A B"])
def test_names_of_secrets_and_what_is_no_name_are_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--env", name, "model=mlp"]) == 2
    assert capsys.readouterr().err.startswith(f"npucompose: --env {name}")


COMPOSING = {"run", "explain", "bisect", "device-kit", "eject", "export", "lock"}
"""Commands that compose an experiment of choices; the others read what somebody else may have written."""


def test_each_command_that_composes_an_experiment_takes_the_switch_and_no_other() -> None:
    commands = every_command()
    every = {**commands, **commands["recipe"].actions}
    assert {name for name, command in every.items() if ENV in command.arguments} == COMPOSING
    assert {name for name, command in every.items() if OVERRIDES in command.arguments} <= COMPOSING


def test_explain_composes_with_the_variables_that_were_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "--options", "--under", "model", "model=mlp", "mode=eager", "model.hidden=${oc.env:WIDTH}"]
    assert main([*words, "--env", "WIDTH"]) == 0
    assert "  model.hidden=32\n" in capsys.readouterr().out
    assert main(words) == 2
    assert "`--env WIDTH` on the command line" in capsys.readouterr().err


def test_a_script_and_a_recipe_hold_the_value_that_was_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "eject", "--env", "WIDTH", "mode=max-autotune", "seed=${oc.env:WIDTH}"]) == 0
    out = capsys.readouterr().out
    assert "seed: 32" in out
    assert "oc.env" not in out
