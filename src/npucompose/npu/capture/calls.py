"""What functions and operators do to a capture, as data (`calls.yaml`): which synchronise, copy, draw, change streams.

One table for `explain --capture` and for the simulated runtime. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from npucompose.input_safety import load_yaml
from npucompose.table.structure import structure

FILE = Path(__file__).with_name("calls.yaml")
Effect = Literal[
    "synchronises", "reads", "copies", "allocates", "draws", "streams", "captures", "asks", "sets", "launches"
]


@frozen(kw_only=True)
class CaptureCall:
    """One row: `CaptureCall(does="synchronises", rule="synchronise", at="TN core/npu/NPUStream.cpp:735")`."""

    does: Effect
    rule: str | None = None
    """The rule that a call breaks on a captured stream; None: it is legal, or `unknown` says why that is not known."""
    gives: Any = None
    """What a machine without a device answers."""
    unknown: str | None = None
    when: str | None = None
    """The case of an operator that the rule is about; None: every one."""
    at: str | None = None


@frozen(kw_only=True)
class CaptureCalls:
    """The table: `calls().npu["empty_cache"].rule` is "synchronise"."""

    version: int
    npu: Mapping[str, CaptureCall]
    """Functions of torch.npu."""
    compiled: Mapping[str, CaptureCall]
    """Functions of torch_npu._C."""
    methods: Mapping[str, CaptureCall]
    """`Stream.synchronize` and its like."""
    operators: Mapping[str, CaptureCall]
    """`aten::nonzero`: an operator without its overload."""


@cache
def calls() -> CaptureCalls:
    """The table of this version."""
    tree = load_yaml(FILE)
    apart = {key: _apart(rows) if isinstance(rows, dict) else rows for key, rows in tree.items()}
    return structure(CaptureCalls, apart, "capture/calls.yaml")


def _apart(rows: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a b": row}` as `{"a": row, "b": row}`."""
    return {name: row for names, row in rows.items() for name in names.split()}
