"""An old import path works, with one warning, and is the module of the new one."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from npucompose import moved
from tools import layout


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the old names was imported before."""
    for name in [name for name in sys.modules if moved.name_now(name)]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("old", moved.MOVED)
def test_an_old_name_is_the_module_of_the_new_one_with_one_warning(old: str, fresh: None) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = importlib.import_module(old)
        assert importlib.import_module(old) is found
    assert found is importlib.import_module(moved.MOVED[old])
    assert found.__name__ == moved.MOVED[old] == found.__spec__.name
    warned = [str(one.message) for one in said if one.category is DeprecationWarning]
    above = [name for name in moved.MOVED if old.startswith(f"{name}.")]  # is imported first, and was moved, too
    assert warned == [f"{name} is {moved.MOVED[name]} now; the old name goes in 0.3." for name in (*above, old)]


def test_what_lies_below_has_no_second_copy_and_no_warning_of_its_own(fresh: None) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        options = importlib.import_module("npucompose.serving.vllm.options")
    assert options is importlib.import_module("npucompose_vllm.options")
    assert [str(one.message).split()[0] for one in said if one.category is DeprecationWarning] == [
        "npucompose.serving.vllm"
    ]


def test_the_warning_names_the_line_that_imports() -> None:
    script = "import npucompose\nimport npucompose.commands\nimport npucompose.file_commands\n"
    done = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == (
        "<string>:3: DeprecationWarning: npucompose.file_commands is npucompose.commands now; the old name goes in "
        "0.3.\n"
    )


def test_without_the_package_that_has_it_the_error_names_that(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "npucompose_vllm"]:
        monkeypatch.delitem(sys.modules, name)
    vllm = str(layout.import_folders()["npucompose_vllm"].parent)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != vllm])
    with pytest.raises(ModuleNotFoundError) as refused:
        importlib.import_module("npucompose.serving.vllm")
    assert str(refused.value) == (
        "npucompose.serving.vllm is npucompose_vllm now, of npucompose-vllm, which is not installed: "
        "pip install 'npucompose[vllm]'."
    )


def test_no_old_name_is_a_module_of_the_core_again() -> None:
    for old in moved.MOVED:
        place = layout.ROOT.joinpath("src", *old.split("."))
        assert not place.with_suffix(".py").exists()
        assert not (place / "__init__.py").exists()
