"""From what is asked (Streams) to a safe plan in the graph: match, assign, order, derive events, emit, validate.

Here: what chooses, orders, predicts, writes or proves the streams of an FX graph; streams are chosen, events follow.
Not here: a pass, a target or a device, of which nothing is known but its `Capabilities`.
"""

from npucompose.streams.emit import strip
from npucompose.streams.execute import made_up_inputs
from npucompose.streams.planning import apply, decision_of, judged, plan, predicted_us
from npucompose.streams.validation import plan_of, validate

__all__ = ["apply", "decision_of", "judged", "made_up_inputs", "plan", "plan_of", "predicted_us", "strip", "validate"]
