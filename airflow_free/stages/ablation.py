"""What each pass is worth: the experiment with each of its passes left out, and with ever more of them.

Every list of passes is compiled in one process on one model, compared with eager first, and only those whose results
are right are timed, all in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve

from airflow_free.stage import Facts, Stage
from airflow_free.stages.benchmark import in_turns
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.schema.ablation import ALL, AblationFacts, Variant
from npucompose.schema.facts import facts_of

if TYPE_CHECKING:
    from npucompose.compose.check import Checked
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples

COMPARING = 0.5
"""Share of the progress that compiling and comparing are counted as."""


def check(checked: Checked) -> None:
    """ConfigError where there is nothing to leave out."""
    if checked.experiment.mode.name == "eager":
        raise ConfigError("the stage ablation needs a mode that compiles: mode=eager runs no pass.")
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


class Ablation(Stage["Session"]):
    """Nodes, kernels, results and times of the experiment with fewer of its passes."""

    name: ClassVar[str] = "ablation"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        import torch

        wanted = lists([label for label, _ in live.checked.passes])
        sessions: dict[str, Session] = {}
        variants: dict[str, Variant] = {}
        for at, (name, passes) in enumerate(wanted.items()):
            session = live if name == ALL else live.with_passes(passes)
            variants[name] = _tried(name, passes, session)
            if variants[name].passed:
                sessions[name] = session
            progress(COMPARING * (at + 1) / len(wanted))
        # no_grad also here: a change of the grad mode is a recompilation.
        with torch.no_grad(), _versions_for(sessions):
            samples = in_turns(
                live, dict(_candidates(sessions)), lambda done: progress(COMPARING + (1 - COMPARING) * done)
            )
        facts = AblationFacts(variants=tuple(_with_times(one, samples) for one in variants.values()))
        return {"ablation": facts_of(facts)}


def _tried(name: str, passes: tuple[str, ...], session: Session) -> Variant:
    """Compiled and compared with eager; what one list cannot do is told in its row and ends nothing."""
    from npucompose.compose.comparison import every_step

    try:
        found = every_step(session, lambda _: None).numerics
    except NpuComposeError as error:
        return Variant(name=name, passes=passes, passed=False, problem=str(error))
    graphs = session.compilations
    recordings = session.checked.target.recordings(session.materialised.backend)
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


def _candidates(sessions: Mapping[str, Session]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The detached handle where there is one, else the compiled model, compiled once more where that was forgotten."""
    for name, session in sessions.items():
        inputs = tuple(session.inputs(0).values())
        function = session.detached or session.compiled
        function(*inputs)
        yield name, lambda function=function, inputs=inputs: function(*inputs)


def _versions_for(sessions: Mapping[str, Session]) -> AbstractContextManager[Any]:
    """# Note [One model, many backends]

    Dynamo forgets what it compiled when the next list is compiled from a clean start, and keeps a number of versions of
    one function: here each list of passes is one.
    """
    from torch._dynamo import config

    return config.patch(recompile_limit=config.recompile_limit + len(sessions))


def _with_times(variant: Variant, samples: Mapping[str, Samples]) -> Variant:
    from npucompose.measure.timing import paired_ratio

    own = samples.get(variant.name)
    if own is None:
        return variant
    whole = samples.get(ALL)
    return evolve(variant, timing=own.timing(), ratio=None if whole is None else paired_ratio(own, whole))
