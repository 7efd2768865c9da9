"""The command line: arguments, ends, lists, Hydra's own."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose import cli
from npucompose.cli import completion, running, statuses
from npucompose.cli.arguments import command_line, every_command
from npucompose.commands import Command
from npucompose.errors import ConfigError, NpuComposeError
from tests.test_completion import parser
from tests.test_visible import Terminal


def test_arguments_are_refused_in_our_words() -> None:
    made = parser()
    for words, said in (
        (["one", "--kind", "c"], "unknown kind 'c'. Choices: a, b."),
        (["two", "deep", "3"], "Choices: 1, 2."),
        (["one", "--out"], "argument --out: expected one argument. `p one --help` shows what is possible."),
    ):
        with pytest.raises(ConfigError) as refused:
            made.parse_args(words)
        assert said in str(refused.value)
    with pytest.raises(ConfigError, match=r"^it ends\. `p --help` shows what is possible\.$"):
        made.error("it ends...")


def paths(commands: Mapping[str, Command]) -> Iterator[list[str]]:
    """`["doctor"]`, `["recipe", "eject"]`, …: each command that acts."""
    for name, command in commands.items():
        yield from ([name, *inner] for inner in paths(command.actions)) if command.actions else ([name],)


@pytest.mark.parametrize("words", [one for one in paths(every_command()) if one != ["run"]], ids=" ".join)
def test_what_a_command_does_not_know_it_refuses_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With words that stand for all that it wants."""
    wanted = {
        "list": ["modes"],
        "new": ["pass", "x"],
        "fetch": ["torch_npu"],
        "completion": ["bash"],
        "compare-dumps": ["eager", "graph"],
        "profile": ["file", "--soc", "a2", *(["--cann", "8"] if words[-1] == "import" else [])],
    }
    given = wanted.get(words[0], [])
    if words[0] in ("recipe", "device-kit", "sizes", "protocol"):
        given = ["--to", "2.14.0", "file"] if words[-1] in ("migrate", "export") else ["file"]
    assert cli.main([*words, *given, "--jsn"]) == 2
    said = capsys.readouterr().err
    program = " ".join(["npucompose", *words])
    assert said.startswith("npucompose: unknown option --jsn. ")
    assert said.endswith(f"`{program} --help` shows what is possible.\n")
    known = command_line(words[0])
    assert ("Did you mean '--json'?" in said) == ("--json" in parser_of(known, words)._option_string_actions)


def parser_of(parser: Any, words: Sequence[str]) -> Any:
    for word in words:
        parser = next(a for a in parser._actions if isinstance(a.choices, dict)).choices[word]
    return parser


def test_a_run_names_the_flag_that_is_like_one_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--quite"]) == 2
    assert capsys.readouterr().err == (
        "npucompose: unknown option --quite. Did you mean '--quiet'? "
        "`npucompose run --hydra-help` lists Hydra's own options.\n"
    )
    assert cli.main(["doctor", "more"]) == 2
    assert "'more' is one argument too many. `npucompose doctor --help`" in capsys.readouterr().err


def raised(error: BaseException) -> Any:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("one", "two"), 2, ["npucompose: one", "npucompose: two"]),
        (NpuComposeError("three"), 3, ["npucompose: three"]),
        (OSError(errno.EACCES, "Permission denied", "/a"), 2, ["npucompose: /a: Permission denied."]),
        (OSError(errno.ENOSPC, "full"), 3, ["npucompose: full."]),
        (OSError(errno.EFBIG, "File too large", "/b"), 3, ["npucompose: /b: File too large."]),
        (MemoryError(), 3, ["npucompose: there is not enough memory for it."]),
        (ValueError("x"), 3, ["npucompose: internal error, please report it: ValueError: x (--debug shows where)"]),
    ],
)
def test_every_end_has_its_status_and_its_words(
    error: Exception, status: int, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert statuses.status_of(raised(error), debug=False) == status
    assert capsys.readouterr().err.splitlines() == said
    assert statuses.status_of(raised(error), debug=True) == status
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("\n".join(said) + "\n")


def test_what_was_printed_is_flushed_and_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    assert statuses.status_of(lambda: 5, debug=False) == 5
    assert out.flushed == 1
    with pytest.raises(SystemExit):
        statuses.status_of(raised(SystemExit(0)), debug=False)
    assert out.flushed == 2, "help ends by itself, and is flushed too"
    closed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "dup2", lambda one, other: closed.append((one, other)))
    monkeypatch.setattr(os, "open", lambda path, flags: 7 if (path, flags) == (os.devnull, os.O_WRONLY) else -1)
    assert statuses.status_of(raised(BrokenPipeError()), debug=False) == statuses.PIPE_CLOSED
    assert closed == [(7, 42)]
    monkeypatch.setattr(out, "flush", raised(BrokenPipeError()))
    assert statuses.status_of(raised(SystemExit(0)), debug=False) == statuses.PIPE_CLOSED


def test_the_command_line_is_that_of_the_process_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["npucompose", "completion", "fish"])
    assert cli.main() == 0
    assert capsys.readouterr().out == completion.FISH
    assert cli.main(["completion", "candidates", "no such", ""]) == 0
    assert capsys.readouterr().out == "".join(
        f"{name}\n"
        for name in (
            "run",
            "explain",
            "list",
            "new",
            "doctor",
            "fetch",
            "bisect",
            "report",
            "completion",
            "recipe",
            "compare-dumps",
            "device-kit",
            "profile",
            "protocol",
            "sizes",
        )
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "modes", "--yaml"], "--yaml, --under and --torch-npu are for `npucompose list options`"),
        (["list", "modes", "--under", "debug"], "not for 'modes'."),
        (["list", "modes", "--torch-npu", "2.6.0"], "not for 'modes'."),
        (["run", "--config-path", "x"], "--config-path would replace the packaged conf/"),
        (["run", "--experimental-rerun", "x.pickle"], "--experimental-rerun would unpickle a file"),
        (["run", "--help", "no_such=1"], "no_such"),
        (["run", "search=optuna", "model=add"], "search=optuna asks for many trials: it needs -m."),
    ],
)
def test_what_cannot_be_meant_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_lists_are_of_the_folder_the_tree_and_the_version_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mode" / "zebra.yaml").write_text("# striped\n")
    assert cli.main(["list", "modes", "--config-dir", str(tmp_path), "--json"]) == 0
    assert '"striped"' in capsys.readouterr().out
    assert cli.main(["list", "options", "--yaml", "--under", "debug", "--torch-npu", "2.6.0"]) == 0
    told = capsys.readouterr().out
    assert "# Every option of debug in torch_npu 2.6.0.post5, at its default" in told
    assert cli.main(["list", "options", "--under", "debug.run_eagerly", "--torch-npu", "2.6.0"]) == 0
    assert capsys.readouterr().out.count("run_eagerly") == 1


def test_bisecting_ends_with_who_is_guilty(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import npucompose.experiment.bisect

    for guilty, status in ((None, 0), ("cse", 1)):

        def bisected(composed: Any, store: Any, tell: Any, guilty: str | None = guilty) -> Any:
            assert composed.tree["model"]["name"] == "add"
            tell("a line")
            return SimpleNamespace(guilty=guilty, error="why")

        monkeypatch.setattr(npucompose.experiment.bisect, "bisect", bisected)
        assert cli.main(["bisect", "model=add"]) == status
        last = (
            "it holds with all of its passes." if guilty is None else "passes.cse is the first pass that breaks it: why"
        )
        assert capsys.readouterr().out.splitlines() == ["  a line", last]


def test_fetching_says_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npucompose.targets.npu_offline import wheel

    asked: list[Any] = []
    for already, problem, words in (
        (True, None, "is in the cache already"),
        (False, "of another torch", "was downloaded"),
    ):
        monkeypatch.setattr(wheel, "torch_problem", lambda tree, problem=problem: problem)
        monkeypatch.setattr(wheel, "fetch", lambda pin, already=already: (Path("/tree"), already))
        monkeypatch.setattr(
            wheel,
            "pinned",
            lambda *given: (
                asked.append(given)
                or SimpleNamespace(version="2.13.0", python="3.11", architecture="x86_64", sha256="0")
            ),
        )
        assert cli.main(["fetch", "torch_npu", *(["--version", "2.6.0", "--python", "3.9"] if already else [])]) == 0
        told = capsys.readouterr()
        assert told.out.startswith(f"torch_npu 2.13.0 (Python 3.11, x86_64) {words}")
        first, *claims = told.out.splitlines()
        assert first.endswith(": /tree")
        assert [line.partition(":")[0] for line in claims] == ["  execution"]
        assert told.err == (f"npucompose: {problem}\n" if problem else "")
    assert asked == [("2.6.0", "3.9", None), (wheel.DEFAULT_VERSION, None, None)]


def test_the_doctor_looks_at_the_store_that_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.experiment.orchestrator import default_store
    from npucompose.report import doctor

    seen: list[Any] = []
    monkeypatch.setattr(doctor, "diagnose", lambda store: seen.append(store) or SimpleNamespace(exit_status=3))
    monkeypatch.setattr(doctor, "show", lambda found, as_json: seen.append(as_json))
    assert cli.main(["doctor"]) == 3
    assert cli.main(["doctor", "--json"]) == 3
    assert seen == [default_store().root, False, default_store().root, True]


def test_hydra_s_ends_become_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.compose import sources

    before = list(sys.argv)
    composer: Any = SimpleNamespace(application=lambda: "loader", config_name="name")
    for code, status in ((None, 0), (0, 0), (1, 2), ("words", 2)):

        def run(*given: Any, code: Any = code) -> None:
            assert given == ("a", "loader", "name", "t")
            assert sys.argv[0] == "mine"
            raise SystemExit(code)

        monkeypatch.setattr(sources, "run_application", run)
        assert running._hydra("a", "mine run", composer, "t") == status  # type: ignore[arg-type]
        assert sys.argv == before
    monkeypatch.setattr(sources, "run_application", lambda *given: None)
    assert running._hydra("a", "mine run", composer, "t") == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["mode=eager"], ["single", "hydra"]),
        (["-m", "mode=eager"], ["sweep", "hydra"]),
        (["--help"], ["look", "hydra"]),
        (["--hydra-help"], ["look", "hydra"]),
        (["--cfg", "job"], ["look", "hydra"]),
        (["--info"], ["look", "hydra"]),
        (["--shell-completion", "query=bash"], ["hydra"]),
    ],
)
def test_hydra_answers_what_is_its_own(words: list[str], done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in ("single", "sweep", "hydra"):
        monkeypatch.setattr(running, f"_{name}", lambda *given, name=name: said.append(name) or 7)
    composed = SimpleNamespace(problems=())
    composer = SimpleNamespace(compose=lambda overrides: said.append("look") or composed)
    monkeypatch.setattr(running, "_composer", lambda arguments: composer)
    assert cli.run(words) == 7
    assert said == done


def test_a_composer_is_of_the_folder_and_the_name_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(**words: Any) -> Any:
        made = {"config_dir": None, "config_path": None, "experimental_rerun": None, "config_name": None, "env": {}}
        return SimpleNamespace(**{**made, **words})

    (tmp_path / "mine.yaml").write_text("defaults:\n- config\n- _self_\nseed: 41\n")
    assert running._composer(given()).compose([]).tree["seed"] != 41
    assert running._composer(given(config_dir=str(tmp_path), config_name="mine")).compose([]).tree["seed"] == 41
    monkeypatch.setattr(running, "_hydra", lambda *given: 7)
    assert cli.run(["--cfg", "job", "no_such=1"]) == ConfigError.exit_status
    assert cli.run(["--cfg", "job", "model=add"]) == 7


@pytest.mark.parametrize("end", [0, 1, ConfigError("refused"), None])
def test_the_end_of_a_task_inside_hydra_is_the_end_of_the_command(
    end: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(job: Any, asked: Any, arguments: Any) -> int:
        if isinstance(end, NpuComposeError):
            raise end
        return end

    def hydra(arguments: Any, program: str, composer: Any, task: Any) -> int:
        if end is not None:
            task(None)
        return 9

    monkeypatch.setattr(running, "_hydra", hydra)
    monkeypatch.setattr(running, "_run_here", act)
    assert cli.run(["model=add"]) == (9 if end is None else 2 if isinstance(end, ConfigError) else end)
    assert ("refused" in capsys.readouterr().err) == isinstance(end, ConfigError)


def test_a_sweep_tells_what_is_illegal_and_ends_as_its_runs_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.experiment.sweep import command

    sweep = SimpleNamespace(illegal_lines=lambda: ["a=1 is illegal"], act=None)
    monkeypatch.setattr(command, "planned", lambda overrides, composer: sweep)
    monkeypatch.setattr(running, "_hydra", lambda *given: 9)
    assert cli.run(["-m", "model=add"]) == 9
    assert capsys.readouterr().err == "npucompose: a=1 is illegal\n"
    for end, status in ((lambda: 1, 1), (raised(ConfigError("x")), 2)):
        monkeypatch.setattr(running, "_hydra", lambda *given, end=end: sweep.act(end) or 9)
        assert cli.run(["-m", "model=add"]) == status
        capsys.readouterr()


@pytest.mark.parametrize("others", [True, False])
def test_of_a_refused_run_nothing_is_left_but_what_others_put_there(
    others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    from hydra.core.hydra_config import HydraConfig

    run_dir = tmp_path / "outputs" / "day" / "time"
    (run_dir / ".hydra").mkdir(parents=True)
    (run_dir / ".hydra" / "config.yaml").touch()
    if others:
        (run_dir.parent / "theirs").touch()
    did: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "shutdown", lambda: did.append("closed"))
    for subdir, log in ((".hydra", False), (None, False), (".hydra", True)):
        run_dir.mkdir(parents=True, exist_ok=True)
        if log:
            (run_dir / "run.log").touch()
        config = SimpleNamespace(
            runtime=SimpleNamespace(output_dir=str(run_dir)), output_subdir=subdir, job=SimpleNamespace(name="run")
        )
        monkeypatch.setattr(HydraConfig, "get", lambda config=config: config)
        running._leave_no_folder()
        assert not run_dir.exists()
        assert run_dir.parent.exists() is others
        assert tmp_path.exists()
    assert did == ["closed"] * 3
