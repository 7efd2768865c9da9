"""model=python: what a factory may return, and one paragraph for each way it can fail."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.models.base import Built
from npucompose.models.python import Python

HEAD = """
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x, n=1):
        return x * self.weight * n
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Writes mymodel.py into a working directory that is not on sys.path; the import is undone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "mymodel", raising=False)

    def write(body: str) -> Path:
        path = tmp_path / "mymodel.py"
        path.write_text(HEAD + dedent(body))
        return path

    yield write
    sys.modules.pop("mymodel", None)


def test_a_module_and_its_inputs_become_a_model(written) -> None:
    path = written(
        """
        def make():
            return Scale(), {"x": torch.randn(2, 3).t().contiguous().t(), "n": 2}
        """
    )
    model = Python(factory="mymodel:make")
    built, again = model.build(5), model.build(5)
    assert model.source_files() == (str(path),)
    assert not built.module.training
    assert not built.module.weight.requires_grad
    assert torch.equal(built.module.weight, again.module.weight)
    first, same, second = built.inputs(0), again.inputs(0), built.inputs(1)
    assert torch.equal(first["x"], same["x"])
    assert first["x"].data_ptr() != built.inputs(0)["x"].data_ptr()
    assert first["x"].stride() == second["x"].stride() == (1, 2)
    assert not torch.equal(first["x"], second["x"])
    assert torch.equal(first["x"].flatten().sort().values, second["x"].flatten().sort().values)
    assert second["n"] == 2
    assert str(Path.cwd()) not in sys.path


def test_integers_and_masks_are_the_same_in_every_step(written) -> None:
    written("def make():\n    return Scale(), {'x': torch.arange(3), 'n': torch.tensor([True, False, False])}")
    built = Python(factory="mymodel:make").build(0)
    assert all(torch.equal(built.inputs(0)[key], built.inputs(4)[key]) for key in ("x", "n"))


def test_a_factory_may_return_a_built_and_may_ask_for_the_seed(written) -> None:
    written(
        """
        from npucompose.models.base import Built

        def make(seed):
            return Built(module=Scale(), inputs=lambda step: {"x": torch.full((3,), float(seed + step))}, steps=2)
        """
    )
    built = Python(factory="mymodel:make").build(7)
    assert isinstance(built, Built)
    assert not built.module.training
    assert (built.steps, built.inputs(1)["x"].tolist()) == (2, [8.0] * 3)


def test_it_needs_trust_and_its_file_is_found_without_running_it(written) -> None:
    path = written("raise RuntimeError('ran')")
    model = Python(factory="mymodel:make")
    assert Python.needs_trust
    model.check()
    assert model.source_files() == (str(path),)


def test_parents_of_a_dotted_module_are_not_imported_to_find_it(written, tmp_path: Path) -> None:
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('ran')")
    (package / "inner.py").write_text("")
    model = Python(factory="mypackage.inner:make")
    model.check()
    assert model.source_files() == (str(package / "inner.py"),)
    assert "mypackage" not in sys.modules


@pytest.mark.parametrize("factory", ["mymodel", "mymodel:", ":make", "my-model:make", "mymodel:make()", "a:b:c", ""])
def test_a_factory_of_another_form_is_refused(factory: str) -> None:
    with pytest.raises(ConfigError, match="needs the form module:function"):
        Python(factory=factory).check()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import not_there_at_all", "importing 'mymodel' raised ModuleNotFoundError: No module named"),
        ("import sys; sys.exit(3)", "importing 'mymodel' raised SystemExit: 3"),
        ("make = 3", r"mymodel.py has no such function"),
        ("def make():\n    raise KeyError('oops')", "calling it raised KeyError: 'oops'"),
        ("def make():\n    raise TypeError('no')", "calling it raised TypeError: no"),
        ("def make(x):\n    pass", "cannot be called with no arguments: 'x' has no default and is missing"),
        ("def make():\n    return Scale()", "gave a Scale without inputs, and the configuration says none"),
        ("def make():\n    return 3", "returned an int; it must return"),
        ("def make():\n    return Scale(), torch.ones(3)", "returned a tuple of a Scale and a Tensor"),
        ("def make():\n    return 1, 2, 3", "returned a tuple of 3"),
        ("def make():\n    return Scale(), {'y': 1}", "forward of Scale cannot be called with the inputs y"),
    ],
)
def test_a_factory_that_fails_is_one_paragraph_that_names_it(written, body: str, words: str) -> None:
    written(body)
    with pytest.raises(ConfigError, match=words) as caught:
        Python(factory="mymodel:make").build(0)
    assert str(caught.value).startswith("model.factory 'mymodel:make'")
    assert "\n" not in str(caught.value)


def test_a_module_that_does_not_exist_is_named_with_where_it_was_sought(written, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no module 'nowhere_to_be_found' in the working directory {tmp_path}"):
        Python(factory="nowhere_to_be_found:make").check()
