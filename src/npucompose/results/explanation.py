"""What `npucompose explain` found: the verdicts on a graph, and what logs and dumps of a device say beside them."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from npucompose.results.artefacts import CapturedGraph, CaptureError
from npucompose.results.sinking import SinkingFacts


@frozen(kw_only=True)
class Explanation:
    """What `npucompose explain` found."""

    asked: Mapping[str, str]
    """{group: choice} of what was explained, or `file`."""
    sinking: SinkingFacts
    compile_s: float
    """Seconds of the compilation that it took; 0 where only files were read."""
    diagnosis_s: float
    """Seconds of all that came after it."""
    implied: tuple[str, ...] = ()
    """What an option that was asked for demands of the caller, a sentence each."""
    recording: tuple[str, ...] = ()
    """Sentences about graphs that cannot be recorded whole, here or on an NPU."""
    notes: tuple[str, ...] = ()
    """What else the compilation showed, a sentence each."""
    printed: tuple[str, ...] = ()
    """Lines that the model printed meanwhile."""
    errors: tuple[CaptureError, ...] = ()
    """Error codes of the runtime in the logs that were read."""
    captured: tuple[CapturedGraph, ...] = ()
    """Captured graphs that were read."""
