"""`npucompose new model|pass|target|experiment NAME`: files to begin with that work, and the test of them.

The files are texts in new_files/, in which NAME is the name and CLASS the same as the name of a class.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from npucompose.compose.conf import choices_of
from npucompose.errors import raise_for

TEXTS = Path(__file__).with_name("new_files")
CONF = "my_conf"
FORM = re.compile(r"[a-z][a-z0-9_]{0,49}", re.ASCII)


@frozen(kw_only=True)
class Beginning:
    """What one kind begins with."""

    group: str
    """The group of conf/ whose choice it becomes."""
    files: Mapping[str, str]
    """{file to write: its text}; the test comes last."""
    module: str = ""
    """The module that it makes importable."""
    commands: tuple[str, ...]
    """What to type next, in the folder of the files."""


BEGINNINGS: Mapping[str, Beginning] = {
    "model": Beginning(
        group="model",
        files={
            "NAME.py": "model.py.txt",
            f"{CONF}/model/NAME.yaml": "model.yaml.txt",
            "test_NAME.py": "test_model.py.txt",
        },
        module="NAME",
        commands=(
            f"npucompose run --config-dir {CONF} model=NAME trust=true",
            f"npucompose run -m --config-dir {CONF} model=NAME model.args.width=128,256 trust=true",
            "python -m pytest test_NAME.py",
        ),
    ),
    "pass": Beginning(
        group="passes",
        files={
            "NAME.py": "pass.py.txt",
            f"{CONF}/passes/NAME.yaml": "pass.yaml.txt",
            "test_NAME.py": "test_pass.py.txt",
        },
        module="NAME",
        commands=(
            f"npucompose run --config-dir {CONF} passes=NAME check=per_pass trust=true",
            "python -m pytest test_NAME.py",
        ),
    ),
    "target": Beginning(
        group="target",
        files={
            "NAME/pyproject.toml": "target.toml.txt",
            "NAME/npucompose_NAME/__init__.py": "target_init.py.txt",
            "NAME/npucompose_NAME/target.py": "target.py.txt",
            "NAME/test_NAME.py": "test_target.py.txt",
        },
        module="npucompose_NAME",
        commands=(
            "pip install -e NAME",
            "npucompose run target=NAME mode=reduce-overhead",
            "python -m pytest NAME/test_NAME.py",
        ),
    ),
    "experiment": Beginning(
        group="experiment",
        files={f"{CONF}/experiment/NAME.yaml": "experiment.yaml.txt", "test_NAME.py": "test_experiment.py.txt"},
        commands=(f"npucompose run --config-dir {CONF} experiment=NAME", "python -m pytest test_NAME.py"),
    ),
}
KINDS = tuple(BEGINNINGS)


def act(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.into
    written = write(arguments.kind, arguments.name, folder)
    print("".join(f"wrote {file}\n" for file in written), end="")
    at = "" if folder == Path() else f" in {folder}"
    print(f"next{at}:")
    print("".join(f"  {_named(line, arguments.name)}\n" for line in BEGINNINGS[arguments.kind].commands), end="")
    return 0


def write(kind: str, name: str, folder: Path) -> tuple[Path, ...]:
    """The files that were written. ConfigError, and none of them is, where the name cannot be or one is there."""
    beginning = BEGINNINGS[kind]
    files = {folder / _named(file, name): TEXTS / text for file, text in beginning.files.items()}
    raise_for(_problems(kind, name, tuple(files)))
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(_named(text.read_text(encoding="utf-8"), name))
    return tuple(files)


def _problems(kind: str, name: str, files: tuple[Path, ...]) -> list[str]:
    if not FORM.fullmatch(name) or keyword.iskeyword(name):
        shown = name if len(name) <= 50 else f"{name[:50]}…"
        return [f"'{shown}' cannot be the name of a {kind}: small letters, digits and _, a letter first (my_{kind})."]
    if there := [str(file) for file in files if file.exists() or file.is_symlink()]:
        return [f"{', '.join(there)}: there already, and not written over. Nothing was written; take another name."]
    beginning = BEGINNINGS[kind]
    if name in choices_of(beginning.group):
        return [f"{beginning.group}={name} is npucompose's own already: take another name, as my_{name}."]
    module = _named(beginning.module, name)
    if module and importlib.util.find_spec(module) is not None:
        return [f"'{module}' is a module of Python that is installed here: take another name, as my_{name}."]
    return []


def _named(text: str, name: str) -> str:
    return text.replace("NAME", name).replace("CLASS", "".join(part.title() for part in name.split("_")))
