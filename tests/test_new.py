"""`npucompose new`: what it writes is legal, works and passes its own test; what is there is never written over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npucompose.api import checked
from npucompose.cli import main
from npucompose.cli.new import BEGINNINGS, KINDS, TEXTS, write
from npucompose.errors import ConfigError
from npucompose.report.listing import choices

ROOT = Path(__file__).parents[1]
NAME = "my_thing"


def installed(folder: Path) -> Path:
    """What pip leaves of the package that its pyproject.toml describes."""
    project = (folder / NAME / "pyproject.toml").read_text()
    (name,) = re.findall(r'^name = "(.*)"$', project, re.MULTILINE)
    (point,) = re.findall(
        rf'^\[project\.entry-points\."npucompose\.targets"\]\n{NAME} = "(.*)"$', project, re.MULTILINE
    )
    about = folder / f"{name}-0.1.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text(f"[npucompose.targets]\n{NAME} = {point}\n")
    (about / "METADATA").write_text(f"Name: {name}\nVersion: 0.1\n")
    return folder / NAME


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_test_of_what_is_written_passes_and_fails_where_the_thing_is_broken(kind: str, tmp_path: Path) -> None:
    files = write(kind, NAME, tmp_path)
    places = [tmp_path, *([installed(tmp_path)] if kind == "target" else []), ROOT / "src", ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(files[-1])]

    def tested() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = tested()
    assert done.returncode == 0, done.stdout + done.stderr
    thing, *_ = [file for file in files if file.suffix in (".py", ".yaml") and file.name != "__init__.py"]
    broken = {
        "model": ('{"x": ', '{"z": '),
        "pass": ("node.args[1] == 2", "node.args[1] == 3"),
        "target": ("return self.run(*given)", "return [2 * one for one in self.run(*given)]"),
        "experiment": ("recompiles: 0", "streams: 7"),
    }[kind]
    text = thing.read_text()
    assert broken[0] in text
    thing.write_text(text.replace(*broken))
    assert tested().returncode == 1


def test_what_is_written_is_legal_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, name in (("model", "my_model"), ("pass", "my_pass"), ("experiment", "my_experiment")):
        write(kind, name, Path())
    found = checked(
        ["experiment=my_experiment", "model=my_model", "passes=my_pass", "trust=true"], config_dirs=["my_conf"]
    )
    assert found.model is not None
    assert found.model.title == "my_model"
    assert [label for label, _ in found.passes] == ["my_pass"]
    docs = {
        one.name: one.doc for kind in ("models", "passes", "experiments") for one in choices(kind, [Path("my_conf")])
    }
    assert all(docs[name].startswith(f"{name}: ") for name in ("my_model", "my_pass", "my_experiment"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_is_written_and_none_is_left_unnamed(kind: str, tmp_path: Path) -> None:
    for file in write(kind, NAME, tmp_path):
        text = file.read_text()
        assert "NAME" not in text
        assert "CLASS" not in text
        if file.suffix == ".py":
            compile(text, str(file), "exec")


def test_every_text_belongs_to_a_kind() -> None:
    assert {text for one in BEGINNINGS.values() for text in one.files.values()} == {f.name for f in TEXTS.iterdir()}


def test_it_says_what_it_wrote_and_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "experiment", NAME, "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path}/my_conf/experiment/my_thing.yaml",
        f"wrote {tmp_path}/test_my_thing.py",
        f"next in {tmp_path}:",
        "  npucompose run --config-dir my_conf experiment=my_thing",
        "  python -m pytest test_my_thing.py",
    ]


@pytest.mark.parametrize("there", ["test_my_thing.py", "my_conf/model/my_thing.yaml", "my_thing.py"])
def test_nothing_is_written_where_one_file_is_there(there: str, tmp_path: Path) -> None:
    file = tmp_path / there
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"there already, and not written over\. Nothing was written"):
        write("model", NAME, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "My", "a-b", "../a", "a/b", "1a", "class", "a" * 51, "ä", "a.b"])
def test_a_name_that_is_no_module_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a model"):
        write("model", name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("model", "mlp", "model=mlp is npucompose's own already"),
        ("pass", "cse", "passes=cse is npucompose's own already"),
        ("target", "cpu", "target=cpu is npucompose's own already"),
        ("experiment", "decode", "experiment=decode is npucompose's own already"),
        ("model", "json", "'json' is a module of Python that is installed here"),
    ],
)
def test_a_name_that_means_something_already_is_refused(kind: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        write(kind, name, tmp_path)
    assert words in str(refused.value)


def test_an_unknown_kind_is_refused_with_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "modle", NAME]) == 2
    assert "unknown kind 'modle'. Did you mean 'model'? Choices: model, pass, target, experiment." in (
        capsys.readouterr().err
    )
