"""A result depends on every file of one's own that the factory imports: a change of one is another key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npucompose.compose.tree import Composer
from npucompose.experiment.job import Job
from npucompose.registry import UserFunction

FILES = {
    "net.py": "import torch\nfrom pkg import a\nimport side.deep as d\n\ndef make(): ...\n",
    "pkg/__init__.py": "raise RuntimeError('ran')\n",
    "pkg/a.py": "from . import b\nfrom .inner.c import thing\nimport net\n",
    "pkg/b.py": "if False:\n    from ..none import x\n",
    "pkg/inner/__init__.py": "",
    "pkg/inner/c.py": "from ...pkg import b\nfrom json import *\nthis is no Python\n",
    "side/deep.py": "def f():\n    import late\n",
    "late.py": "",
    "unused.py": "",
    "pkg/unused.py": "",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sources(name: str, place: Path) -> list[str]:
    return [str(Path(one).relative_to(place)) for one in UserFunction("model.factory", name).source_files()]


def test_every_file_of_ones_own_is_found_by_reading_and_no_other(place: Path) -> None:
    found = sources("net:make", place)
    assert found[0] == "net.py"
    assert set(found) == set(FILES) - {"unused.py", "pkg/unused.py"}
    assert "pkg" not in sys.modules


def test_of_a_module_in_a_package_the_root_is_where_the_package_lies(place: Path) -> None:
    assert set(sources("pkg.a:make", place)) >= {"pkg/a.py", "pkg/b.py", "pkg/inner/c.py", "net.py"}
    assert sources("pkg:make", place) == ["pkg/__init__.py"]


def test_of_an_installed_package_only_its_own_files_are_followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    monkeypatch.syspath_prepend(str(place))
    assert set(sources("pkg.a:make", place)) == {
        "pkg/a.py", "pkg/__init__.py", "pkg/b.py", "pkg/inner/__init__.py", "pkg/inner/c.py"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "other"), [("late.py", True), ("unused.py", False)])
def test_a_changed_file_is_another_key_where_the_factory_imports_it(name: str, other: bool, place: Path) -> None:
    words = ["model=python", "model.factory=net:make", "trust=true"]
    before = Job.from_composed(Composer().compose(words)).key
    (place / name).write_text("changed = 1\n")
    assert (Job.from_composed(Composer().compose(words)).key != before) is other
