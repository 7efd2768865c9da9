"""The machine that a model under the simulated capture believes to run on: its runtime, where its tensors lie, the
current stream of each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npucompose.npu.capture.memory import CaptureMemory
from npucompose.npu.capture.places import Places
from npucompose.npu.capture.runtime import DEFAULT, CaptureRuntime


class SimulatedMachine:
    """`SimulatedMachine(CaptureRuntime())`: nothing is captured yet."""

    def __init__(self, runtime: CaptureRuntime) -> None:
        self.runtime = runtime
        self.places = Places()
        self.memory = CaptureMemory(self.places.on_host)
        self.used: set[str] = set()
        """Lines that call streams, events or collectives: torch.compile cannot trace them here."""
        self.registered: list[Any] = []
        """Generators that a graph was given."""
        self.draws: dict[str, None] = {}
        """Lines that draw random numbers on the device, in order."""
        self.generator: Any = None
        """That of the call that is being made: torch wraps it anew for each operator."""
        self.quiet = False
        """What is called now asks for data on this machine and not on a device."""
        self._streams: dict[int, list[int]] = {}

    @property
    def streams(self) -> list[int]:
        """This thread's: the current one is the last, and a thread begins on the default stream."""
        return self._streams.setdefault(threading.get_ident(), [DEFAULT])

    @property
    def stream(self) -> int:
        return self.streams[-1]

    def note_use(self, line: str | None) -> None:
        if self.runtime.capturing and line is not None:
            self.used.add(line)

    def note_draw(self, line: str | None) -> None:
        if self.runtime.capturing and line is not None:
            self.draws[line] = None

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """What torch does in here is this machine's own business."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before
