"""What the runtime refuses, in the words of torch_npu: a table by rule (`task_groups.yaml`), an error with the code.

`raise refusal("begin_outside", stream=3)`: "NPU function error: c10_npu::acl::AclmdlRICaptureTaskGrpBegin(stream),
error code is 107029 (simulator: stream 3 does not capture)".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from attrs import frozen

from npucompose.input_safety import load_yaml
from npucompose.table.structure import structure

FILE = Path(__file__).with_name("task_groups.yaml")


@frozen(kw_only=True)
class Refusal:
    """One row. `call` is the text that torch_npu puts into its error, `why` a pattern of the stream and what it did."""

    call: str
    code: int
    why: str
    source: str


class RuntimeRefusal(RuntimeError):
    """The error of a call that the runtime refused; `code` is the runtime's."""

    code: int


@cache
def table() -> Mapping[str, Refusal]:
    return structure(dict[str, Refusal], load_yaml(FILE), FILE.name)


def refusal(rule: str, *, stream: int, what: str = "") -> RuntimeRefusal:
    row = table()[rule]
    call, why = (text.format(stream=stream, what=what) for text in (row.call, row.why))
    made = RuntimeRefusal(f"NPU function error: {call}, error code is {row.code} (simulator: {why}).")
    made.code = row.code
    return made
