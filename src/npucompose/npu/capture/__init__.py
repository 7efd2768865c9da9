"""Will a model be captured as an NPU graph: the rules of a capture, a simulated one, and the verdict.

Here: the public rules of the runtime as data, a model's call under them, what FX graphs show of them. Not here: a
target, anything that is compiled or started. Importing this loads no torch; `capture.watch` and `capture.reading` do.
"""

from npucompose.npu.capture.legality import CaptureQuestion, Seen, judge
from npucompose.npu.capture.rules import CAPTURE_MODES, CaptureMode, CaptureRule, CaptureRules, rules
from npucompose.npu.capture.runtime import CaptureRuntime

__all__ = [
    "CAPTURE_MODES", "CaptureMode", "CaptureQuestion", "CaptureRule", "CaptureRules", "CaptureRuntime", "Seen", "judge",
    "rules",
]  # fmt: skip
