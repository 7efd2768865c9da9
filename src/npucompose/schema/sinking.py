"""Will a graph sink? The verdicts, who is to blame, and the numbered steps that led there: values of report.json.

The rooms `sinking` and `report` read and write these; nothing here knows a rule. Certainty:

- `proven`: read from an artefact that shows it (the genuine GE graph, a log of TorchAir, a dump of GE);
- `derived`: concluded from the FX graph, the configuration and the operator table by documented rules;
- `unknown`: neither; `evidence` then says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from npucompose.table.options import option

PATHS = (1, 2, 3, 4, 5, 6)
"""1 to 4 are those of TorchAir's document on FA operators; 5: tiling sink is on, and the operator or the product
cannot; 6: a later tensor was not marked, and its next shape recompiled into a symbolic graph."""


@frozen(kw_only=True)
class Operator:
    """A row of the operator table: an operator whose tiling reads values (src/npucompose/sinking/operators.yaml)."""

    ge: str = option(doc="the operator's type in GE's graph")
    slots: tuple[str, ...] = option(
        factory=tuple, doc="arguments whose values tiling reads: torch's name, or `torch's/GE's` where they differ"
    )
    sinks: bool | None = option(
        None, "is its tiling registered for the device (TILING_ON_AICPU)? null: nobody can tell"
    )
    products: tuple[str, ...] | None = option(None, "where it sinks; null: on every product that sinks tiling")
    host_engine: bool = option(False, "it runs on the host (engine DNN_VM_HOST_CPU), which makes a graph dynamic")
    source: str = option(doc="where that stands")

    def ge_slots(self) -> Mapping[str, str]:
        """{torch's argument: GE's input}."""
        return {slot.partition("/")[0]: slot.rpartition("/")[2] for slot in self.slots}


@frozen(kw_only=True)
class Sinking:
    """What a person adds to the project's own knowledge of operators."""

    operators: Mapping[str, Operator] = option(factory=dict, doc="{namespace.operator: row}, added to the table")
