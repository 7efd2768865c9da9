"""The stage `capture`: what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve

from airflow_free.stage import Facts, Stage
from npucompose.results.measured import MemoryFacts
from npucompose.results.record import CaptureFacts
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session


class CaptureStage(Stage["Session"]):
    """What was recorded: kernels, memory, and whether the recording can be called without torch.compile's guards."""

    name: ClassVar[str] = "capture"
    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        live.compiled  # noqa: B018  the first call records
        recordings = live.materialised.backend.recordings()
        handle = live.detached
        module = live.built.module
        memory = MemoryFacts(
            weights_bytes=sum(weight.nbytes for weight in module.parameters()),
            buffers_bytes=sum(buffer.nbytes for buffer in module.buffers()),
            **live.checked.target.device_memory(),
        )
        facts: dict[str, Any] = {"recordings": recordings, "capture": None, "memory": facts_of(memory)}
        if recordings:
            facts["capture"] = facts_of(
                CaptureFacts(
                    seconds=sum(r["seconds"] for r in recordings),
                    captures=len(recordings),
                    kernels=sum(r["kernels"] for r in recordings),
                    executor=_named(recordings, "executor"),
                    why_executor=_named(recordings, "executor_reason"),
                    detached=handle is not None,
                    why_attached=live.why_attached or None,
                    ran=live.materialised.backend.statistics.if_any(),
                )
            )
            facts["memory"] = facts_of(
                evolve(
                    memory,
                    pool_bytes=_summed(recordings, "pool_bytes"),
                    shared_pool_bytes=_shared(recordings),
                    unplanned_bytes=_summed(recordings, "unplanned_bytes"),
                    live_bytes=_summed(recordings, "live_bytes"),
                )
            )
        return facts


def _summed(recordings: list[Mapping[str, Any]], name: str) -> int | None:
    """None where a recording does not know."""
    values = [recording.get(name) for recording in recordings]
    return None if None in values else sum(value for value in values if value is not None)


def _shared(recordings: list[Mapping[str, Any]]) -> int | None:
    """The slabs of all recordings, each once; None where a recording does not know them."""
    if any("slabs" not in recording for recording in recordings):
        return None
    return sum({number: nbytes for recording in recordings for number, nbytes in recording["slabs"]}.values())


def _named(recordings: list[Mapping[str, Any]], name: str) -> str | None:
    """The different words of all recordings, in order; None where none says anything."""
    return ", ".join(dict.fromkeys(str(r[name]) for r in recordings if r.get(name))) or None
