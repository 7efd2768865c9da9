"""The front by itself: what is told to standard error, what is left of a folder, and how a compiled model is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from torch import nn

import npucompose
from npucompose import private
from npucompose.cli import completion, running, statuses
from npucompose.compose import conf, state
from npucompose.errors import CaptureError, ConfigError, MissingExtra, NpuComposeError, RejectedError
from npucompose.results.measured import Numerics
from npucompose_replay.front import detached as recapturing_module

# Compiled models.


@pytest.mark.parametrize("model", [nn.Linear(2, 2), torch.relu])
def test_what_records_nothing_cannot_be_detached(model: Any) -> None:
    fast = npucompose.compile(model, "mode=eager")
    x = torch.ones(1, 2)
    for ask in (lambda: fast.detach(x), fast.recapturing):
        with pytest.raises(CaptureError, match="mode=eager records nothing that could be detached"):
            ask()


def test_recapturing_is_of_the_call_and_looks_after_the_models_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(recapturing_module, "Recapturing", lambda call, **named: asked.append((call, named)) or "made")
    model = nn.Sequential(nn.Linear(2, 2))
    fast = npucompose.compile(model, "mode=reduce-overhead")
    assert fast.recapturing(outputs="keep") == "made"
    ((call, named),) = asked
    assert call is fast
    assert named == {"modules": [model, model[0]], "outputs": "keep"}
    assert fast.recapturing() == "made"
    assert asked[1][1]["outputs"] == "reuse"


def test_a_compiled_module_inside_of_a_compilation_is_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    fast = npucompose.compile(model, "mode=reduce-overhead")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = torch.ones(1, 2)
    assert torch.equal(fast(x), model(x))
    assert fast.materialised.backend.entered_at == [], "nothing was compiled"


# Standard error.


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConfigError("one.", "two."), ["one.", "two."]),
        (MissingExtra("a", "b", "c"), ["a needs the package 'b': pip install 'npucompose[c]'."]),
        (NpuComposeError("only."), ["only."]),
        (RejectedError("one.", "two."), ["one. two."]),
    ],
)
def test_each_problem_stands_on_a_line_and_the_status_is_the_errors(
    error: NpuComposeError, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert statuses._report(error, debug=False) == error.exit_status
    said = capsys.readouterr()
    assert said.err.splitlines() == [statuses.PREFIX + line for line in lines]
    assert said.out == ""
    assert statuses._report(error, debug=True) == error.exit_status
    assert type(error).__name__ in capsys.readouterr().err


def test_candidates_come_a_line_each_and_an_error_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "candidates", lambda parser, words: tuple(words))
    assert completion.answer(["run", "b"]) == 0
    assert capsys.readouterr() == ("run\nb\n", "")
    assert completion.answer([]) == 0
    assert capsys.readouterr() == ("", "")

    def fails(parser: Any, words: Any) -> Any:
        raise ConfigError("no")

    monkeypatch.setattr(completion, "candidates", fails)
    assert completion.answer(["run"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("subdir", "more", "left"),
    [
        (".hydra", [], []),
        (None, [], []),
        (".hydra", ["runs/day/mine.txt"], ["runs", "runs/day", "runs/day/mine.txt"]),
        (".hydra", ["runs/other.txt"], ["runs", "runs/other.txt"]),
    ],
)
def test_of_a_run_that_was_refused_only_what_was_there_before_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subdir: str | None, more: list[str], left: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "day"
    run.mkdir(parents=True)
    (run / "job.log").touch()
    if subdir is not None:
        (run / subdir).mkdir()
        (run / subdir / "config.yaml").touch()
    for name in more:
        (tmp_path / name).touch()
    config = SimpleNamespace(
        runtime=SimpleNamespace(output_dir=str(run)), output_subdir=subdir, job=SimpleNamespace(name="job")
    )
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: config))
    running._leave_no_folder()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == left
    assert tmp_path.is_dir()


# Folders.


def test_the_packaged_configuration_lies_in_the_package_or_beside_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "npucompose"
    (package / "compose").mkdir(parents=True)
    monkeypatch.setattr(conf, "__file__", str(package / "compose" / "conf.py"))
    with pytest.raises(ConfigError, match=r"no conf/config\.yaml in .*npucompose nor beside its checkout"):
        conf.conf_dir()
    for folder in (tmp_path / "conf", package / "conf"):
        folder.mkdir()
        (folder / "config.yaml").touch()
        assert conf.conf_dir() == folder, "the package's own has the say"


def test_what_lies_on_the_way_and_below_is_every_place_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "d").touch()
    assert list(private._way(tmp_path / "a" / "b", tmp_path)) == [tmp_path / "a", tmp_path / "a" / "b"]
    assert list(private._way(tmp_path, tmp_path)) == []
    below = [tmp_path / "a" / name for name in ("b", "b/c", "d")]
    assert sorted(private._below(tmp_path / "a")) == below


def test_a_doubt_about_the_way_is_the_doubt_about_what_lies_within(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    private.make(root / "a", root)
    (root / "a" / "file").touch(0o600)
    assert private.doubt_within(root / "a", root) is None
    (root / "a" / "file").chmod(0o606)
    assert private.doubt_within(root / "a", root) == private.AccessDoubt(
        f"{root / 'a' / 'file'} can be written by others (mode 606)", mine=True
    )
    root.chmod(0o702)
    found = private.doubt_within(root / "a", root)
    assert found == private.AccessDoubt(f"{root} can be written by others (mode 702)", mine=True)


def test_what_others_may_write_is_taken_from_them_and_links_are_left(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    folder.chmod(0o777)
    elsewhere.touch()
    elsewhere.chmod(0o666)
    (folder / "file").touch()
    (folder / "file").chmod(0o664)
    (folder / "link").symlink_to(elsewhere)
    private.close(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "file", elsewhere)] == [0o755, 0o644, 0o666]


# Models that differ from themselves.


def numerics(**more: Any) -> Numerics:
    return Numerics(**{"reference": "eager", "max_abs_err": 0.25, "bitwise": False, "passed": True, **more})


def spot(path: str, known: bool = True) -> Any:
    return SimpleNamespace(path=(path,), known=known)


@pytest.mark.parametrize(
    ("changed", "written", "why"),
    [
        ([], ["w", "b"], "it writes to its parameters ('w', 'b'), which all sides share"),
        ([spot("x")], ["w"], "it writes to its parameters ('w'), which all sides share"),
        ([], [], "none of its attributes changed: it draws numbers from a source of its own"),
    ],
)
def test_why_a_model_differs_from_itself_is_told(changed: list[Any], written: list[str], why: str) -> None:
    for passed in (True, False):
        found = state._unsteady(changed, written, numerics(passed=passed))
        assert found.words is not None
        assert found.words.startswith("the model differs from itself: called twice from one state, eager differs by up")
        assert why in found.words
        assert not found.repeats
        assert found.within is (passed and not written)
        verdict = state.unsteady_result(found)
        if found.within:
            assert verdict is None
            continue
        assert verdict is not None
        assert (verdict.cause, verdict.passed, verdict.bitwise, verdict.max_abs_err) == ("model", False, False, None)
        assert (verdict.model, verdict.problems, verdict.reference) == (found.words, (found.words,), "eager")


def test_a_difference_is_told_as_a_number_or_as_what_is_wrong() -> None:
    assert state._off(numerics(max_abs_err=0.123456)) == "differs by up to 0.123"
    wrong = numerics(max_abs_err=None, problems=("another shape", "another dtype"))
    assert state._off(wrong) == "gives something else (another shape; another dtype)"


def test_the_first_few_names_are_told_and_how_many_more_there_are() -> None:
    names = [f"n{k}" for k in range(state.SHOWN + 2)]
    assert state._listed(names[: state.SHOWN]).endswith(f"'n{state.SHOWN - 1}'")
    assert state._listed(names).endswith(" and 2 more")
    assert f"'n{state.SHOWN}'" not in state._listed(names)


def test_every_source_of_random_numbers_begins_anew() -> None:
    import random

    import numpy as np

    def drawn() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())

    state.seed_all(3)
    first = drawn()
    state.seed_all(3)
    assert drawn() == first
    state.seed_all(4)
    assert not set(drawn()) & set(first)
    state.seed_all(2**32 + 3)  # numpy takes 32 bits
    assert drawn()[2] == first[2]
