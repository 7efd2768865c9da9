"""A protocol's file: YAML of names, numbers and lines of text, which somebody else may have written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
from attrs import frozen

from npucompose.errors import ConfigError, raise_for, unknown
from npucompose.input_safety import load_yaml
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose_devtools.protocol.model import Declared, HostThread, Protocol, Step

SHAPES = Path(__file__).with_name("shapes")


@frozen(kw_only=True)
class _Loop:
    steps: tuple[str, ...]
    repeat: int = option(1, "iterations", ge=1)


@frozen(kw_only=True)
class _File(Declared):
    """A file as it stands, its steps still text."""

    graphs: Mapping[str, tuple[str, ...]] = option(factory=dict)
    threads: Mapping[str, _Loop]


def read_protocol(path: Path) -> Protocol:
    """ConfigError with each line that is no step, and each name that is not declared."""
    data = load_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no protocol: it has to be a mapping with `streams` and `threads`.")
    try:
        return _protocol(structure(_File, data, ""))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None


def shape(name: str) -> Protocol:
    """One of the protocols that come with the package: `shape("torchair")`."""
    if name not in shapes():
        raise ConfigError(unknown("protocol", name, shapes()))
    return read_protocol(SHAPES / f"{name}.yaml")


def shapes() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in SHAPES.glob("*.yaml")))


def _protocol(file: _File) -> Protocol:
    problems: list[str] = []

    def steps(where: str, lines: tuple[str, ...]) -> tuple[Step, ...]:
        made: list[Step] = []
        for at, line in enumerate(lines):
            try:
                made.append(Step.from_text(line))
            except ConfigError as error:
                problems.append(f"{where}[{at}]: {error}")
        return tuple(made)

    graphs = {name: steps(f"graphs.{name}", lines) for name, lines in file.graphs.items()}
    threads = {
        name: HostThread(steps=steps(f"threads.{name}.steps", loop.steps), repeat=loop.repeat)
        for name, loop in file.threads.items()
    }
    raise_for(problems)
    declared = {field.name: getattr(file, field.name) for field in attrs.fields(Declared)}
    return Protocol(**declared, graphs=graphs, threads=threads)
