"""A stage: counts the operators that the passes left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from airflow_free.stage import Facts, Stage

if TYPE_CHECKING:
    from npucompose.compose.session import Session


class Census(Stage["Session"]):
    """How often each operator is called in all graphs."""

    name: ClassVar[str] = "census"
    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        graphs = [one.graph_module.graph for one in live.compilations]
        return dict(Counter(str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"))
