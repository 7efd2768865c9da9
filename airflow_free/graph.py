"""Stages as a graph: which ones are wanted, and in what order. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from attrs import field, frozen

from airflow_free.stage import Stage
from npucompose.errors import ConfigError, listed, unknown


def _can_be_ordered(_: Any, __: Any, stages: Mapping[str, Stage[Any]]) -> None:
    for stage in stages.values():
        for need in stage.needs:
            if need not in stages:
                raise ConfigError(unknown("stage", need, list(stages), where=f"needs of stage '{stage.name}'"))
    try:
        tuple(TopologicalSorter({name: stage.needs for name, stage in stages.items()}).static_order())
    except CycleError as error:
        raise ConfigError(f"stages need each other in a circle: {' -> '.join(error.args[1])}.") from error


@frozen
class StageGraph:
    """Stages by name, in the order given; wrong when two share a name, a need is unknown or needs run in a circle.

    `StageGraph.of([Compile(), Capture(), Replay()]).order(["replay"])` is compile, capture, replay.
    """

    stages: Mapping[str, Stage[Any]] = field(validator=_can_be_ordered)

    @staticmethod
    def of(stages: Iterable[Stage[Any]]) -> StageGraph:
        by_name: dict[str, Stage[Any]] = {}
        for stage in stages:
            if stage.name in by_name:
                raise ConfigError(f"two stages are named '{stage.name}'.")
            by_name[stage.name] = stage
        return StageGraph(by_name)

    def order(
        self, wanted: Iterable[str], *, where: str = "pipeline.stages", cannot_measure: str | None = None
    ) -> tuple[Stage[Any], ...]:
        """The wanted stages and all they need, needs first, otherwise in the order of the graph.

        `cannot_measure` says why a time means nothing here ("target=npu_offline is a stand-in and has no speed"): then
        a stage that measures is refused.
        """
        chosen: dict[str, None] = {}
        problems: list[str] = []
        for name in wanted:
            if name not in self.stages:
                problems.append(unknown("stage", name, list(self.stages), where=where))
                continue
            self._add(name, chosen)
        measuring = [name for name in chosen if self.stages[name].measures]
        if cannot_measure is not None and measuring:
            problems.append(f"{cannot_measure}; stage {listed(measuring)} measures @ {where}.")
        if problems:
            raise ConfigError(*problems)
        return tuple(self.stages[name] for name in chosen)

    def _add(self, name: str, chosen: dict[str, None]) -> None:
        needs = self.stages[name].needs
        for need in [known for known in self.stages if known in needs]:
            self._add(need, chosen)
        chosen.setdefault(name)
