"""The stage `sequence`: the calls that an experiment declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from airflow_free.stage import Facts, Stage
from npucompose.experiment.stages.facts import comparison_account, graphs_account
from npucompose.results.record import CallFacts, SequenceFacts
from npucompose.schema.experiment import Call, call_text
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.comparison import Compared
    from npucompose.compose.session import Session


class SequenceStage(Stage["Session"]):
    """The calls of `model.sequence`, the example inputs first, each compared with eager; what each compiled again.

    Runs after the benchmark, whose compiled model must not know other shapes yet.
    """

    name: ClassVar[str] = "sequence"
    needs: ClassVar[tuple[str, ...]] = ("replay",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.compose.comparison import compared, named

        live, before = _as_after_the_first_call(live)
        results: dict[str, Compared] = {}
        backend = live.materialised.backend
        ran = backend.statistics
        for at, call in enumerate(live.calls):
            name = named(at, call)
            results[name] = compared(live, live.compiled, at, call, name=name)
            progress((at + 1) / len(live.calls))
        return {
            "sequence": facts_of(
                SequenceFacts(
                    calls=tuple(_call_facts(c, r) for c, r in zip(live.calls, results.values(), strict=True)),
                    graphs=len(live.compilations),
                    captures=len(backend.recordings()) - before,
                    ran=backend.statistics.since(ran).if_any(),
                )
            ),
            **graphs_account(live),
            **comparison_account(live, results),
        }


def _as_after_the_first_call(live: Session) -> tuple[Session, int]:
    """A session in which only the example inputs were compiled, and how many recordings are not its own.

    A model may vary its numbers from step to step (`model.grow`), so that the comparison compiled more than that: then
    a new session starts over, and the calls are counted as in a process of their own.
    """
    if live.compiled_once:
        return live, 0
    again = type(live)(live.checked, live.folders)
    return again, len(again.materialised.backend.recordings())


def _call_facts(call: Call, result: Compared) -> CallFacts:
    return CallFacts(
        call=call_text(call),
        recompiles=len(result.recompiles),
        passed=result.numerics.passed,
        max_abs_err=result.numerics.max_abs_err,
    )
