"""Shell completion: candidates for every place of a command line, and bash as a person uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nursery import MAIN, command

from npucompose.cli import main
from npucompose.cli.completion import SHELLS
from tools.layout import choices

ROOT = Path(__file__).parents[2]


def offered(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["completion", "candidates", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["re"], {"report", "recipe"}),
        (["recipe", ""], {"lock", "verify", "eject", "import", "show", "export", "migrate"}),
        (["list", "mo"], {"mode", "modes", "model", "models"}),
        (["list", "--"], {"--json", "--yaml", "--under", "--torch-npu", "--target-version", "--config-dir", "--help"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["report", "--sort", "p5"], {"p50_us"}),
        (["run", "st"], {"streams=", "streams.", "strict="}),
        (["run", "mode=e"], {"mode=eager"}),
        (["run", "mode=eager,re"], {"mode=eager,reduce-overhead"}),
        (["run", "model=add", "passes=[cse,str"], {"passes=[cse,stream_plan"}),
        (["run", "strict="], {"strict=off", "strict=mode", "strict=all"}),
        (["explain", "compile.f"], {"compile.fullgraph="}),
        (["explain", "compile.fullgraph="], {"compile.fullgraph=true", "compile.fullgraph=false"}),
        (["recipe", "lock", "streams.obj"], {"streams.objective="}),
        (["recipe", "eject", "passes.cse."], {"passes.cse.stage="}),
        (["bisect", "compiler.ge_config.oo_l"], {"compiler.ge_config.oo_level="}),
        (["run", "compiler.ge_config.oo_level="], {"compiler.ge_config.oo_level=O1", "compiler.ge_config.oo_level=O3"}),
        (["run", "+experiment=fa_path4"], {"+experiment=fa_path4"}),
        (["run", "~pass"], {"~passes=", "~passes."}),
        (["run", "seed="], set()),
        (["report", "outp"], set()),
        (["nothing", "lik"], set()),
    ],
)
def test_what_may_come_next(words: list[str], wanted: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert set(offered(capsys, *words)) == wanted


def test_the_commands_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"run", "explain", "report", "recipe", "list", "doctor", "completion"} <= set(offered(capsys, ""))
    assert offered(capsys) == offered(capsys, "")


def test_every_group_and_its_choices_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (d for d in (ROOT / "conf").iterdir() if d.is_dir()):
        assert set(offered(capsys, "run", f"{folder.name}=")) == set(choices(folder.name))
        assert f"{folder.name}=" in offered(capsys, "run", folder.name)


def test_choices_of_a_folder_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("name: add\n")
    assert offered(capsys, "explain", "--config-dir", str(tmp_path), "model=mi") == ["model=mine", "model=minilm"]
    assert offered(capsys, "explain", "--config-dir", "nowhere", "model=mi") == ["model=minilm"]


def test_it_loads_no_torch_and_no_hydra() -> None:
    script = (
        "import sys; from npucompose.cli import main; main(['completion', 'candidates', 'run', 'mode=']);"
        "assert not {'torch', 'hydra', 'omegaconf', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def completed(line: str, folder: Path) -> list[str]:
    """What bash puts in the place of the last piece of a line, as `complete` calls our function."""
    (folder / "npucompose").write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{MAIN}' \"$@\"\n")
    (folder / "npucompose").chmod(0o755)
    script = SHELLS["bash"] + f"COMP_LINE='{line}' COMP_POINT={len(line)}\n_npucompose 2>/dev/null\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    environment = {**_environment(), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("npucompose doc", ["doctor"]),
        ("npucompose run mode=eager model=ad", ["add"]),
        ("npucompose run mode=eager,m", ["eager,max-autotune"]),
        ("npucompose run strict= ", None),
        ("npucompose list pipelines", ["pipelines"]),
    ],
)
def test_bash_replaces_what_stands_behind_the_last_sign(line: str, wanted: list[str] | None, tmp_path: Path) -> None:
    found = completed(line, tmp_path)
    if wanted is None:
        assert "mode=" in found
    else:
        assert found == wanted


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_its_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    subprocess.run([shell, "-n", str(path)], check=True)


def test_hydra_completes_run_py(tmp_path: Path) -> None:
    line = "python run.py mode=e"
    environment = {**_environment(), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        command("run.py", "-sc", "query=bash"),
        capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["mode=eager"]
    assert list(tmp_path.iterdir()) == []
