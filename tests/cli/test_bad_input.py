"""Bad input: one clear paragraph, exit 2, nothing run, no folder left behind. Each case is (command line, words)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npucompose.cli import main, run

LONG = "x" * 3000
CASES: dict[str, tuple[list[str], list[str]]] = {
    "unknown group choice": (
        ["mode=reduce-overhaed"],
        ["unknown mode 'reduce-overhaed'", "Did you mean 'reduce-overhead'?", "Choices: eager, max-autotune"],
    ),
    "unknown pass": (["passes=[cse,ded_code]"], ["unknown pass 'ded_code'", "Did you mean 'dead_code'?"]),
    "unknown model": (["model=gpt_decod"], ["unknown model 'gpt_decod'", "Did you mean 'gpt_decode'?"]),
    "unknown key": (["compile.fulgraph=true"], ["unknown key 'fulgraph' of compile", "Did you mean 'fullgraph'?"]),
    "unknown top-level key": (["sede=1"], ["unknown key 'sede'", "Did you mean 'seed'?"]),
    "unknown key added with +": (
        ["+compile.fulgraph=true"],
        ["unknown key 'fulgraph' @ compile", "Did you mean 'fullgraph'?"],
    ),
    "unknown top-level key added with +": (["+sede=1"], ["unknown key 'sede'", "Did you mean 'seed'?"]),
    "unknown option of a pass": (["+passes.cse.stge=pre", "passes=cse"], ["unknown key 'stge' @ passes.cse"]),
    "unknown compiler option": (
        ["+compiler.ge_config.oo_levle=O1"],
        ["oo_levle", "Did you mean", "oo_level"],
    ),
    "wrong type": (["benchmark.min_calls=many"], ["'min_calls' must be an integer: 'many' @ benchmark"]),
    "out of range": (["streams.max_streams=0"], ["'max_streams' must be >= 1: 0 @ streams"]),
    "wrong enum": (["strict=mod"], ["'strict' must be one of off, mode, all: 'mod'", "Did you mean 'mode'?"]),
    "wrong compiler value": (
        ["compiler.ge_config.oo_level=O2"],
        ["compiler.ge_config.oo_level takes O1 | O3; given O2"],
    ),
    "two wrong fields at once": (
        ["benchmark.min_calls=many", "seed=-1", "model=gpt_decod"],
        ["'min_calls' must be an integer: 'many'", "'seed' must be >= 0: -1", "unknown model 'gpt_decod'"],
    ),
    "an option illegal in the mode": (
        ["compiler.ge_config.oo_level=O1"],
        ["compiler.ge_config.oo_level=O1 has no effect in mode=reduce-overhead", "max-autotune"],
    ),
    "tiling sink outside max-autotune": (["tiling=sink"], ["tiling_schedule_optimize", "mode=reduce-overhead"]),
    "an option without meaning on the target, strict=all": (
        ["mode=max-autotune", "compiler.ge_config.oo_level=O1", "strict=all"],
        ["compiler.ge_config.oo_level=O1", "target=cpu", "strict=all"],
    ),
    "a pass named twice": (["passes=[cse,cse]"], ["'cse' is named twice @ passes=[cse,cse]"]),
    "a pass named by two files": (["passes=[clean,cse]"], ["'cse' is named twice", "passes/clean and passes/cse"]),
    "contradictory pass order": (["passes=[stream_plan,dead_code]"], ["stream_plan", "dead_code"]),
    "a time limit longer than clocks take": (
        ["pipeline.time_limit_s=3000000"],
        ["'time_limit_s' must be <= 2000000: 3000000.0 @ pipeline"],
    ),
    "a time limit without an end": (["pipeline.time_limit_s=1e308"], ["'time_limit_s' must be <= 2000000"]),
    "no number": (
        ["benchmark.min_seconds=nan"],
        ["'min_seconds' must be a number of at most 64 bits, and finite: nan"],
    ),
    "a number that is no float": (
        [f"benchmark.min_seconds=1{'0' * 400}"],
        ["'min_seconds' must be a number of at most 64 bits, and finite: a number of 1,329 bits"],
    ),
    "a seed of 31 digits": ([f"seed=1{'0' * 30}"], ["'seed' must be an integer of 64 bits: a number of 100 bits"]),
    "a seed of 5,000 digits": ([f"seed={'9' * 5000}"], [f"'seed={'9' * 55}…' is not an override: Exceeds the limit"]),
    "more threads than there can be": (["benchmark.threads=100000000"], ["'threads' must be <= 4096: 100000000"]),
    "a key of 3,000 letters": ([f"+passes.{LONG}={{pass: cse}}"], ["is no key: it has 3,007 characters"]),
    "a choice of 3,000 letters": ([f"model={LONG}"], ["unknown model 'xxxx"]),
    "a choice of 20,000 letters": ([f"model={'x' * 20_000}"], [f"unknown model '{'x' * 60}…' @ model={'x' * 54}…."]),
    "a pass of 20,000 letters": ([f"passes=[{'x' * 20_000}]"], [f"unknown pass '{'x' * 60}…'"]),
    "a folder of 3,000 letters": (["--config-dir", LONG], [f"--config-dir {LONG}: File name too long."]),
    "a file of 3,000 letters": (["--config-name", LONG], ["the name of a file of conf/, without .yaml"]),
    "a run in a folder of 3,000 letters": ([f"hydra.run.dir={LONG}"], ["cannot be written", "File name too long"]),
    "a run where nothing can be written": (
        ["hydra.run.dir=/proc/x"],
        ["the folder of the run cannot be written: /proc/x"],
    ),
    "a resolver whose name is another value": (
        ["tracker.experiment=oc.env", "pipeline.name='${${tracker.experiment}:HOME}'"],
        ["it uses a resolver; a value may only refer to another one"],
    ),
    "not an override": (["seed"], ["'seed' is not an override"]),
    "a sweep without -m": (["mode=eager,max-autotune"], ["several values", "-m"]),
    "model=python without trust": (
        ["model=python", "model.factory=os:getcwd"],
        ["model=python imports code", "trust=true", "command line"],
    ),
    "target=cuda without the device": (["target=cuda", "mode=eager"], ["target=cuda needs device cuda:0", "cpu"]),
    "a stage unknown": (["pipeline.stages=[bench]"], ["unknown stage 'bench'", "benchmark"]),
    "null_device has nothing to compare": (["target=null_device"], ["null_device", "pipeline=compile_only"]),
    "unknown target": (["target=gpu"], ["unknown target 'gpu'", "Choices: cpu"]),
    "an override with dashes": (
        ["--mode=eager"],
        ["unknown option --mode. An override has no dashes: write mode=eager"],
    ),
    "an override with one dash": (["-mode=eager"], ["An override has no dashes: write mode=eager"]),
    "a flag with a value": (["--dry-run=1"], ["--dry-run takes no value, and '1' is one"]),
    "a flag that is nearly one": (["--dryrun"], ["Did you mean '--dry-run'?"]),
    "a key that Hydra has not": (["hydra.foo=1"], ["unknown key 'hydra.foo'"]),
    "no override at all": (["=1"], ["'=1' is not an override: it names no key"]),
    "unknown Hydra option": (["--fast"], ["unknown option --fast"]),
    "a sweep's flag among the overrides": (["model=add", "-m", "mode=eagr,eagger"], ["'eagr'", "'eagger'"]),
}


@pytest.mark.parametrize(("command", "words"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_one_clear_paragraph_and_leaves_nothing(
    command: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status = run(command, program="run.py")
    told = capsys.readouterr()
    assert status == 2, told
    for word in words:
        assert word in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []


def test_trust_from_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "conf"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "sly.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: python\nmodel:\n  factory: os:getcwd\ntrust: true\n"
    )
    monkeypatch.chdir(tmp_path)
    status = run(["--config-dir", str(folder), "experiment=sly"], program="run.py")
    told = capsys.readouterr().err
    assert status == 2
    assert "(conf/experiment/sly.yaml:6)" in told
    assert sorted(p.name for p in tmp_path.iterdir()) == ["conf"]


def test_a_missing_config_dir_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["--config-dir", "nowhere"], program="run.py") == 2
    assert "--config-dir nowhere: no such folder" in capsys.readouterr().err


def test_a_missing_optional_package_says_which_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert run(["model=minilm"], program="run.py") == 2
    told = capsys.readouterr().err
    assert "pip install 'npucompose[minilm]'" in told


@pytest.mark.parametrize(
    "place", ["npucompose.experiment.job.Job.from_composed", "npucompose.experiment.run.run_experiment"]
)
def test_a_mistake_of_ours_is_a_paragraph_and_exit_3(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, broken)
    assert run(["model=add"], program="run.py") == 3
    told = capsys.readouterr().err
    assert "internal error, please report it: ZeroDivisionError: division by zero (--debug shows where)" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "command",
    [
        ["recipe", "show", LONG],
        ["recipe", "verify", LONG],
        ["recipe", "verify", "--against", LONG, LONG],
        ["recipe", "import", LONG],
        ["recipe", "eject", "--config-name", LONG],
        ["report", LONG],
        ["report", LONG, LONG],
        ["explain", "--config-dir", LONG],
        ["list", "models", "--config-dir", LONG],
        ["bisect", "--config-dir", LONG],
    ],
    ids=lambda command: command[0] + " " + command[1][:9],
)
def test_a_path_that_the_system_does_not_take_is_a_sentence(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith("npucompose: ")
    assert told.count("\n") == 1


def test_a_folder_that_is_deleted_while_a_sweep_writes_to_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.experiment.sweep import run as sweeping

    def deleted(points: object) -> str:
        shutil.rmtree("multirun")
        return "{}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeping, "membership", deleted)
    assert run(["-m", "model=add,mlp", "target=null_device", "pipeline=compile_only"], program="run.py") == 2
    told = capsys.readouterr().err
    assert "npucompose: multirun/" in told
    assert "is gone: was it deleted meanwhile?" in told
    assert "Traceback" not in told
