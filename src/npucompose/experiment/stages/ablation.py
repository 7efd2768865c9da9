"""What each pass contributes: the experiment with each of its passes left out, and with ever more of them.

Every list of passes is compiled in one process on one model, compared with eager first, and only those whose results
are right are timed, all in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve

from airflow_free.stage import Facts, Stage
from npucompose.errors import ConfigError
from npucompose.experiment.stages.benchmark import compared, in_one_process
from npucompose.results.measured import ALL, AblationFacts, Variant
from npucompose.table.modes import MODES
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.check import Checked
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples


def check(checked: Checked) -> None:
    """ConfigError where there is nothing to leave out."""
    mode = checked.experiment.mode.name
    if not MODES.get(mode).compiles:
        raise ConfigError(f"the stage ablation needs a mode that compiles: mode={mode} runs no pass.")
    if not checked.passes:
        raise ConfigError("the stage ablation needs passes to leave out; name some: passes=[cse,stream_plan].")


def lists(labels: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """{name: passes}: all of them, each left out, and the first ones up to each; no list twice.

    `lists(["a", "b", "c"])` is all, without a, without b, without c (which is up to b), up to a, no pass.
    """
    found = {ALL: tuple(labels)}
    for left_out in labels:
        found[f"without {left_out}"] = tuple(label for label in labels if label != left_out)
    for count in range(len(labels) - 1, 0, -1):
        found[f"up to {labels[count - 1]}"] = tuple(labels[:count])
    found["no pass"] = ()
    names: dict[tuple[str, ...], str] = {}
    for name, passes in found.items():
        names.setdefault(passes, name)
    return {name: passes for passes, name in names.items()}


class AblationStage(Stage["Session"]):
    """Nodes, kernels, results and times of the experiment with fewer of its passes."""

    name: ClassVar[str] = "ablation"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        passes = lists([label for label, _ in live.checked.passes])
        wanted = {name: partial(live.with_passes, some) for name, some in passes.items()} | {ALL: lambda: live}
        variants, samples = in_one_process(
            live, wanted, lambda name, session: _tried(name, passes[name], session), progress
        )
        return {"ablation": facts_of(AblationFacts(variants=tuple(_with_times(one, samples) for one in variants)))}


def _tried(name: str, passes: tuple[str, ...], session: Session) -> Variant:
    """What one list of passes cannot do is told in its row."""
    found = compared(session)
    if isinstance(found, str):
        return Variant(name=name, passes=passes, passed=False, problem=found)
    graphs = session.compilations
    recordings = session.materialised.backend.recordings()
    return Variant(
        name=name,
        passes=passes,
        nodes=sum(graph.nodes_after for graph in graphs),
        kernels=sum(one["kernels"] for one in recordings) if recordings else None,
        passes_s=sum(graph.passes_s for graph in graphs),
        passed=found.passed,
        bitwise=found.bitwise,
        max_abs_err=found.max_abs_err,
        problem="; ".join(found.problems) or None,
    )


def _with_times(variant: Variant, samples: Mapping[str, Samples]) -> Variant:
    from npucompose.measure.timing import paired_ratio

    own = samples.get(variant.name)
    if own is None:
        return variant
    whole = samples.get(ALL)
    return evolve(variant, timing=own.timing(), ratio=None if whole is None else paired_ratio(own, whole))
