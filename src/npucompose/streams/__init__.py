"""From what is asked (Streams) to a safe plan in the graph: match, assign, order, derive events, emit, validate.

Streams are chosen, events follow. Knows no device: what a device can do comes in as `Capabilities`.
"""

from npucompose.streams.emit import strip
from npucompose.streams.execute import made_up_inputs
from npucompose.streams.planning import apply, decision_of, judged, plan
from npucompose.streams.validation import plan_of, validate

__all__ = ["apply", "decision_of", "judged", "made_up_inputs", "plan", "plan_of", "strip", "validate"]
