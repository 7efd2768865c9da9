"""Reading an FX graph: who depends on whom, what a node does to memory, what matches it, what a graph is called.

What rewrites a graph belongs into passes/, what plans its streams into streams/; nothing here knows a device.
"""

from npucompose.graphs.dependence import Aliases, Allocation, Dependence, Edge, allocations, written_inputs
from npucompose.graphs.describe import Snapshot, fingerprint, op_counts, printed, symbols
from npucompose.graphs.effects import is_planned

__all__ = [
    "Aliases",
    "Allocation",
    "Dependence",
    "Edge",
    "Snapshot",
    "allocations",
    "fingerprint",
    "is_planned",
    "op_counts",
    "printed",
    "symbols",
    "written_inputs",
]
