"""Files that may be a stranger's, and code that a configuration names: read, found and imported within limits."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from airflow_free import foreign_files
from npucompose.errors import ConfigError
from npucompose.input_safety import MOST_BYTES, RECIPE, load_yaml, plain_yaml, read_text
from npucompose.registry import UserFunction, working_directory_importable


def test_a_file_is_read_up_to_its_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(file) == "a\nb", "without a mark, with the line ends of text"
    file.write_bytes(b"x" * 10)
    assert read_text(file, 10) == "x" * 10
    with pytest.raises(ConfigError, match=rf"^{file} has 10 bytes; a file of more than 9 is not read\.$"):
        read_text(file, 9)
    assert (MOST_BYTES, RECIPE.most_values, RECIPE.deepest, RECIPE.aliases) == (16 * 2**20, 500_000, 32, False)


def test_what_is_longer_than_it_says_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 10)
    real = os.fstat

    def smaller(handle: int) -> Any:
        found = real(handle)
        return os.stat_result([*found[:6], 3, *found[7:10]])

    monkeypatch.setattr(foreign_files.os, "fstat", smaller)
    with pytest.raises(ConfigError, match=rf"^{file} is longer than 9 bytes and is not read\.$"):
        read_text(file, 9)
    assert read_text(file, 10) == "x" * 10


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, words in (
        ("nothing", "there is no such file"), ("pipe", "is no file"), (".", "is no file"), ("bytes", "is not text in"),
        ("x" * 300, "cannot be read: .*File name too long"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            read_text(tmp_path / name)


def test_yaml_is_plain_data_and_named_where_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: [1, x]\n")
    assert load_yaml(file) == {"a": [1, "x"]}
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match=f"^{file}:2: "):
        load_yaml(file)
    with pytest.raises(ConfigError, match=r"^mine:1"):
        plain_yaml("a: &x 1", "mine")


# Code.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return tmp_path


def of(name: str) -> UserFunction:
    return UserFunction("the.option", name)


def test_a_function_is_found_in_the_working_directory_first_and_imported_when_it_is_asked_for(here: Path) -> None:
    (here / "of_a_user.py").write_text("def make(): return 3\nvalue = 4\n")
    try:
        assert of("of_a_user:make").module == "of_a_user"
        assert of("of_a_user:make").source_files() == (str(here / "of_a_user.py"),)
        assert "of_a_user" not in sys.modules
        assert of("of_a_user:make").load()() == 3
        assert str(here) not in sys.path
        for name in ("value", "missing"):
            with pytest.raises(ConfigError, match=rf"^the\.option 'of_a_user:{name}': .*of_a_user\.py has no such"):
                of(f"of_a_user:{name}").load()
    finally:
        sys.modules.pop("of_a_user", None)


def test_the_parts_of_a_dotted_name_are_found_one_in_the_other(here: Path) -> None:
    (here / "of_a_user" / "deep").mkdir(parents=True)
    (here / "of_a_user" / "deep" / "inner.py").write_text("")
    (here / "of_a_user" / "plain.py").write_text("")
    assert of("of_a_user.deep.inner:f").source_files() == (str(here / "of_a_user" / "deep" / "inner.py"),)
    assert of("of_a_user.deep:f").source_files() == (), "a folder without a file has none"
    for name in ("of_a_user.nothing", "of_a_user.plain.inner", "of_a_user.nothing.inner", "of_nobody.inner"):
        with pytest.raises(ConfigError, match=f"there is no module '{name}' in the working directory {here} nor on"):
            of(f"{name}:f").check()
        assert of(f"{name}:f").source_files() == ()
    of("json.decoder:f").check()
    assert of("sys:f").source_files() == (), "a module that is built in has no file"


def test_a_module_that_an_import_hook_brings_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "hidden").mkdir()
    (here / "hidden" / "of_a_hook.py").write_text("")

    class Hook:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return PathFinder.find_spec(name, [str(here / "hidden")]) if name == "of_a_hook" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook()])
    assert of("of_a_hook:f").source_files() == (str(here / "hidden" / "of_a_hook.py"),)


def test_the_working_directory_is_taken_out_again_whatever_happens(here: Path) -> None:
    with pytest.raises(KeyError), working_directory_importable():  # noqa: PT012
        assert sys.path[0] == str(here)
        raise KeyError
    assert str(here) not in sys.path
    with working_directory_importable():
        sys.path.remove(str(here))
