"""A recipe locked here, verified in another checkout and another environment: all equal, or each difference named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import attr
import attrs
import pytest
from sweeping import ROOT

from tools.layout import python_path

pytestmark = pytest.mark.slow
CODE = ("src", "packages", "airflow_free", "conf", "run.py", "pyproject.toml")
EXPERIMENT = ["model=add", "passes=[cse,stream_plan]", "pipeline=check"]
CALL = "import sys; from npucompose.cli import main; sys.exit(main(sys.argv[1:]))"


class Place:
    """A checkout, and the interpreter that runs it."""

    def __init__(self, checkout: Path, python: Path, folder: Path) -> None:
        self.checkout, self.python, self.folder = checkout, python, folder

    def recipe(self, *words: str) -> tuple[int, str]:
        path = python_path(self.checkout)
        done = subprocess.run(
            [str(self.python), "-c", CALL, "recipe", *words],
            cwd=self.folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def differences(self, *words: str) -> tuple[int, set[str]]:
        """The exit status, and what is named: {"versions.attrs"}."""
        status, told = self.recipe("verify", *words)
        return status, set(re.findall(r"^  (\S+): locked", told, re.MULTILINE))


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(ROOT, Path(sys.executable), tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Place:
    """The code copied, an environment made; its libraries are this one's, found by a .pth file."""
    checkout, environment = tmp_path / "checkout", tmp_path / "environment"
    for name in CODE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        checkout.mkdir(exist_ok=True)
        copy(ROOT / name, checkout / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (libraries_of(environment) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Place(checkout, environment / "bin" / "python", tmp_path)


def libraries_of(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def test_all_is_equal_elsewhere_and_each_thing_that_is_changed_is_named(here: Place, elsewhere: Place) -> None:
    assert here.recipe("lock", *EXPERIMENT, "--out", "a.yaml")[0] == 0
    status, told = elsewhere.recipe("verify", "a.yaml")
    assert status == 0, told
    assert "the recipe holds here: ok" in told
    assert "differ" not in told
    assert elsewhere.recipe("lock", *EXPERIMENT, "seed=1", "--out", "b.yaml")[0] == 0
    assert here.differences("a.yaml", "--against", "b.yaml") == (1, {"configuration.seed"})
    source = elsewhere.checkout / "src" / "npucompose" / "passes" / "simplify.py"
    source.write_text(source.read_text() + "\n# another thought\n")
    assert elsewhere.differences("a.yaml") == (0, {"sources.npucompose.passes.simplify"})
    shutil.copy2(ROOT / "src" / "npucompose" / "passes" / "simplify.py", source)
    another_version_of_attrs(libraries_of(elsewhere.checkout.parent / "environment"))
    assert elsewhere.differences("a.yaml") == (0, {"versions.attrs"})


def another_version_of_attrs(libraries: Path) -> None:
    """The same package under another version number, before the one that is installed."""
    for package in (attr, attrs):
        folder = Path(str(package.__file__)).parent
        shutil.copytree(folder, libraries / folder.name)
    version = metadata.version("attrs")
    info = libraries / "attrs-1.2.3.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.4\nName: attrs\nVersion: 1.2.3\nSummary: was {version}\n"
    )
