"""What NPUGraph.debug_dump writes: each task of a captured graph as an event of a Chrome trace.

The form is the one that the wheel's readers take (npu/_npugraph_utils.py, tools/aclgraph_check). A device also writes
how many cores a kernel takes, which nobody knows without CANN: npugraph_ex's deadlock check finds the streams and
events of the graph here, and no kernel that it would count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import define, field

KERNEL, RECORD, WAIT = "KERNEL", "EVENT_RECORD", "EVENT_WAIT"


@define(kw_only=True, eq=False)
class Trace:
    """`trace.kernel("aten.mm", 1)` appends a task; a record gets a handle of its own, which the waits after it name."""

    tasks: list[dict[str, Any]] = field(factory=list)
    _handles: dict[int, int] = field(factory=dict)

    def kernel(self, name: str, stream: int) -> None:
        self._task(name, KERNEL, stream)

    def record(self, event: int, stream: int) -> None:
        self._handles[event] = len(self.tasks) + 1
        self._task(f"{RECORD}_{self._handles[event]}", RECORD, stream)

    def wait(self, event: int, stream: int) -> None:
        """An event that this graph did not record is waited for by its own number, which no record has."""
        handle = self._handles.get(event, -event)
        self._task(f"{WAIT}_{handle}" if handle > 0 else f"{WAIT}_external{event}", WAIT, stream)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.tasks, indent=1), encoding="utf-8")

    def _task(self, name: str, kind: str, stream: int) -> None:
        """Times are the order in which the device was told; a dump of a device has no others."""
        number = len(self.tasks) + 1
        args = {"Task Id": number, "Stream Id": stream, "Task Type": kind}
        self.tasks.append(
            {"name": name, "pid": "npugraph", "tid": f"stream{stream}", "ph": "X", "ts": float(number), "dur": 0.5,
             "args": args}
        )  # fmt: skip
