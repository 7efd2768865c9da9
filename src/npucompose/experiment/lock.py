"""recipe.lock.yaml: an experiment with all that its result depended on, and the result. Data only; it names no code.

It is made of the same ingredients as the keys of the store, so nothing can count there and be missing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import attrs
import yaml
from attrs import field, frozen

from airflow_free.keys import Ingredients, digest
from airflow_free.store import write_atomically
from npucompose.errors import ConfigError
from npucompose.experiment.orchestrator import translate_errors
from npucompose.input_safety import load_yaml
from npucompose.results.measured import Numerics
from npucompose.results.record import BenchmarkFacts, Expectation, GraphFacts, Report
from npucompose.table.gone import without_gone
from npucompose.table.structure import facts_of, of_facts
from npucompose.version import __version__

SCHEMA = 1
"""1: the first. A field may come without a new number: a reader takes its default (docs/stability.md)."""
FILE_NAME = "recipe.lock.yaml"
EXCLUDED = frozenset({"trust", "debug"})
"""Fields of an experiment that do not belong to a recipe, by name; every other one counts. Trust is never shared."""


@frozen(kw_only=True)
class Result:
    """What came of it, in the words of the report; samples where something was measured."""

    status: Literal["ok", "uncompiled", "expect_failed", "numerics_failed"]
    numerics: Numerics | None = None
    benchmark: BenchmarkFacts | None = None
    expectations: tuple[Expectation, ...] = ()
    """Each `expect.x` and what came out; none where the version that wrote it kept the status alone."""


@frozen(kw_only=True)
class Locked:
    """One lock file."""

    schema: int = SCHEMA
    configuration: str
    """sha256 of `experiment`: tells whether it was changed after locking."""
    experiment: Mapping[str, Any]
    versions: Mapping[str, str]
    device: Mapping[str, str]
    sources: Mapping[str, str]
    """{module: sha256} of the rooms that decide a result, of the passes, of the model."""
    graphs: tuple[GraphFacts, ...] = ()
    result: Result
    lacks: frozenset[str] = field(default=frozenset(), eq=False)
    """Facts of graphs that a file does not name (`graph_0.partition`): the version that wrote it had none. Unlike null,
    which says that there was nothing. Not written."""

    @staticmethod
    def from_report(ingredients: Ingredients, report: Report) -> Locked:
        experiment = {k: v for k, v in ingredients.values.items() if k not in EXCLUDED}
        if kernels := {one.key: one.winner for graph in report.graphs for one in graph.winners}:
            target = experiment["target"]
            experiment["target"] = {**target, "kernels": {**target["kernels"], **kernels}}
        return Locked(
            configuration=digest(experiment),
            experiment=experiment,
            versions=ingredients.versions,
            device=ingredients.device,
            sources=ingredients.code,
            graphs=report.graphs,
            result=Result(
                status=cast("Any", report.status),
                numerics=report.numerics,
                benchmark=report.stages.benchmark,
                expectations=report.expectations,
            ),
        )

    def without_measured(self) -> Locked:
        """The same with no kernel pinned that nobody but a measurement chose."""
        target = self.experiment.get("target")
        if not isinstance(target, Mapping) or "kernels" not in target:
            return self
        measured = {one.key for graph in self.graphs for one in graph.winners if one.by != "pinned"}
        kernels = {key: value for key, value in target["kernels"].items() if key not in measured}
        return attrs.evolve(self, experiment={**self.experiment, "target": {**target, "kernels": kernels}})

    def text(self) -> str:
        about = "# What was run and what came of it. `npucompose recipe verify` on another machine says what differs.\n"
        written = {name: value for name, value in facts_of(self).items() if name != "lacks"}
        return about + yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)

    def write(self, folder: Path) -> Path:
        path = folder / FILE_NAME
        write_atomically(path, self.text())
        return path


def read(place: Path) -> Locked:
    """The lock in a file or a run directory. ConfigError when it is none, or was changed after it was locked."""
    path = place / FILE_NAME if place.is_dir() else place
    data = load_yaml(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        what = "it has no key 'schema'" if found is None else f"its schema is {found!r}"
        raise ConfigError(
            f"{path} is no recipe of schema {SCHEMA}: {what}. This is npucompose {__version__}{_written_by(data)}; "
            "`npucompose recipe lock` writes a recipe."
        )
    try:
        locked = of_facts(Locked, {name: value for name, value in data.items() if name != "lacks"}, where=str(path))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from error
    locked = attrs.evolve(locked, lacks=frozenset(_lacking(data, locked)))
    named = sorted(EXCLUDED.intersection(locked.experiment))
    if named:
        raise ConfigError(f"{path}: experiment.{named[0]} is not a recipe's to say.")
    with translate_errors():
        unchanged = digest(locked.experiment) == locked.configuration
    if not unchanged:
        raise ConfigError(
            f"{path}: its experiment was changed after it was locked. Lock the changed experiment instead: "
            "npucompose recipe lock …"
        )
    return attrs.evolve(locked, experiment=without_gone(locked.experiment))


def _lacking(data: Mapping[str, Any], locked: Locked) -> Iterator[str]:
    for written, graph in zip(data.get("graphs", ()), locked.graphs, strict=True):
        yield from _absent(written, facts_of(graph), graph.id)


def _absent(written: Any, whole: Mapping[str, Any], at: str) -> Iterator[str]:
    """Paths of `whole` that `written` has no key for; what it names is looked into."""
    for name, value in whole.items():
        if name not in written:
            yield f"{at}.{name}"
        elif isinstance(value, Mapping):
            yield from _absent(written[name], cast("Mapping[str, Any]", value), f"{at}.{name}")


def _written_by(data: Any) -> str:
    """`; the file was written by 0.3.0`, where it says so."""
    versions = data.get("versions") if isinstance(data, dict) else None
    by = versions.get("npucompose") if isinstance(versions, dict) else None
    return f"; the file was written by {by}" if isinstance(by, str) else ""
