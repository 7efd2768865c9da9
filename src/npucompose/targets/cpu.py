"""The embedded target: every machine has it. reduce-overhead is record and replay, max-autotune is Inductor."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.machine import cores, cpu_model, cpu_quota, usable_cores
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.recording import (
    CACHE_OPTIONS,
    PoolOf,
    ReplayExecutor,
    WhenFull,
    WhenNew,
    pool_option,
    when_full_option,
    when_new_option,
)
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.table.options import option
from npucompose.targets.base import ModeSupport
from npucompose.targets.recorded import RecordedTarget
from npucompose.vendor.devices import cpu

UNRECORDED = "none"
"""In the place of a replayer where no recorder is installed."""


@frozen(kw_only=True)
class CpuTarget(RecordedTarget):
    """Records the AOT graph once with fixed buffers and replays it as a flat list of kernel calls.

    Streams of a plan run on threads of their own, or in one legal order where there is one core or no native replayer.
    """

    name: ClassVar[str] = "cpu"
    follows_inputs: ClassVar[bool] = True
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        GE: ModeSupport(fuses=True, replays_fused=True, trains=True, options=CACHE_OPTIONS[GE].supported),
        **{mode: ModeSupport(captures=True, options=CACHE_OPTIONS[mode].supported) for mode in (ACLGRAPH, NPUGRAPH_EX)},
        "eager": ModeSupport(compiles=False),
    }

    executor: ReplayExecutor = option(
        "auto",
        "what replays the recorded kernels: native (C++), portable (no compiler needed), auto: native if possible",
    )
    when_new: WhenNew = when_new_option()
    when_full: WhenFull = when_full_option()
    pool: PoolOf = pool_option()
    stream_threads: int | None = option(
        None,
        "threads that streams run on, including the calling one; null: one for each core; 1: only the calling one",
        ge=1,
        le=4096,
        optional=True,
    )
    stream_spin_us: float = option(
        100.0, "how long a stream's thread spins while it waits, before it sleeps", ge=0, le=1e9
    )
    stream_cores: tuple[int, ...] = option(
        factory=tuple, doc="cores that the threads except the calling one are bound to, in order; []: any but its own"
    )

    stream_fallback: bool = option(
        True,
        "if streams take longer than one stream (a busy machine), continue on one stream with the same bits, and "
        "try the streams again later",
    )
    kernels: Mapping[str, str] = option(
        factory=dict,
        doc="{part of a graph: who computes it}, measured or not; a recipe's lock has those of the run that it is of",
    )

    @property
    def workers_count(self) -> int:
        """Threads that streams may run on."""
        return self.stream_threads or usable_cores()

    def capabilities(self, mode: str) -> Capabilities:
        known = {} if (found := self.recording) is None else found.capabilities(mode)
        return Capabilities(
            target=self.name,
            mode=mode,
            captures=self.support(mode).captures,
            device_model=cpu(usable_cores()),
            profiles=True,
            **known,
        )

    def check(self, mode: str) -> None:
        super().check(mode)
        if beyond := [core for core in self.stream_cores if core not in cores()]:
            raise ConfigError(
                f"target.stream_cores: {', '.join(map(str, beyond))} cannot be used by this process. "
                f"Its cores: {', '.join(map(str, sorted(cores())))}."
            )
        self.check_recording(mode)

    def identity(self) -> Mapping[str, str]:
        quota = cpu_quota()
        return {
            "cpu": cpu_model(),
            "machine": platform.machine(),
            "cores": str(usable_cores()),
            **({} if quota is None else {"cpu_quota": f"{quota:g}"}),
            "replayer": UNRECORDED if (found := self.recording) is None else found.replayer,
        }
