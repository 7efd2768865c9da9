"""Static or dynamic, and why: verdicts, the table of value-dependent operators, the numbered diagnosis.

Here: rules about captured FX graphs, the configuration and facts that a target hands in. Not here: a target, anything
that is started, or the form of a log or dump. Importing this loads no torch; `sinking.reading`, which reads an FX
graph, does.
"""

from npucompose.npu.static_graph.artefacts import with_artefacts
from npucompose.npu.static_graph.diagnosis import diagnose, not_compiled, not_known
from npucompose.npu.static_graph.facts import Change, FxFacts, GeFacts, SinkingQuestion, UnknownForm
from npucompose.npu.static_graph.operators import OperatorTable, shipped_table

__all__ = [
    "Change", "FxFacts", "GeFacts", "OperatorTable", "SinkingQuestion", "UnknownForm", "diagnose", "not_compiled",
    "not_known", "shipped_table", "with_artefacts",
]  # fmt: skip
