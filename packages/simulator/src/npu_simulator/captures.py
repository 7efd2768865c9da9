"""The captures that are open on the device: the rules of npu/capture, and a RuntimeError where one is broken.

`explain --capture` goes on after a refusal, to find the next; a device stops at the first. So does this.
"""

from __future__ import annotations

import threading
import warnings

from attrs import define, field

from npu_simulator.refusals import runtime_error
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.rules import CaptureMode, rules
from npucompose.npu.capture.simulated.runtime import Capture, CaptureRuntime

ONLY_WARNED = (207000,)
"""What a device does not support is a warning of torch_npu's (Ascend/pytorch 9e73e708, core/npu/NPUException.h:147)."""


@define(kw_only=True, eq=False)
class RefusingRuntime(CaptureRuntime):
    """`RefusingRuntime(torch_npu="2.13.0")`: the rules of that wheel."""

    noted: list[str] = field(factory=list[str])
    """What a device does without a word and a replay does not, a sentence each; `take_notes` hands them on."""

    def refuse(self, rule: str, what: str, source: str | None, *, sure: bool = True, fix: str | None = None) -> None:
        """Raise what the device raises; a rule without a code and a sentence is noted, and so is what is not known."""
        row = rules().of(rule)
        if not row.holds(self.torch_npu):
            return
        where = source or model_line()
        if row.code in ONLY_WARNED:
            warnings.warn(str(runtime_error(row, what, where)), stacklevel=2)
        elif sure and (row.code is not None or row.raises is not None):
            raise runtime_error(row, what, where, self._mode(), fix)
        else:
            instead = f" Instead: {fix}." if fix else ""
            self.noted.append(f"{what}{f' at {where}' if where else ''}: {row.forbids}.{instead}")

    def end(self, stream: int = 1, source: str | None = None) -> None:
        try:
            super().end(stream, source)
        finally:
            over = [number for number, record in self._events.items() if record.capture not in (None, *self.captures)]
            for number in over:
                del self._events[number]

    def _close(self, capture: Capture, source: str | None) -> None:
        super()._close(capture, source)
        if capture.lost:
            self.refuse("capture_lost", "the capture ends", source)

    def forget(self, event: int) -> None:
        """The event is gone."""
        self._events.pop(event, None)

    def take_notes(self) -> list[str]:
        taken, self.noted = self.noted, []
        return taken

    def _mode(self) -> CaptureMode:
        """The mode that decides about this thread."""
        mine = threading.get_ident()
        own = [one for one in self.captures if one.thread == mine] or self.captures
        return own[0].mode if own else self.mode
