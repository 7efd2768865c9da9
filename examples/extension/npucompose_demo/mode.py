"""A mode: the graph is called as the passes left it, nothing is recorded and nothing fused."""

from npucompose.table.modes import ModeSpec

PLAIN_GRAPH = ModeSpec(name="plain_graph")
