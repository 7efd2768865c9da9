"""Where torch.compile cuts a model: its own reasons, each with the model's line."""

from __future__ import annotations

import linecache
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from npucompose.npu.capture.lines import is_models

BRANCH = "which code runs depends on data"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w{1,500}?)_at_\d+")


@frozen(kw_only=True)
class Break:
    """`Break(reason="Dynamo does not know how to trace …", source="model.py:5 in forward: print(x)")`."""

    reason: str
    source: str | None


@contextmanager
def recorded_breaks() -> Iterator[list[Break]]:
    """What torch.compile breaks in here, in order, a line once. Reads the reason that each cut of a graph is given."""
    from torch._dynamo.output_graph import OutputGraph

    found: list[Break] = []
    original: Any = OutputGraph.compile_subgraph
    logger = logging.getLogger("torch._dynamo")
    level = logger.level

    def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
        reason = next((one for one in (*args, *kwargs.values()) if hasattr(one, "user_stack")), None)
        if getattr(reason, "graph_break", False):
            _note(found, reason)
        return original(self, *args, **kwargs)

    OutputGraph.compile_subgraph = compile_subgraph  # type: ignore[method-assign]
    logger.setLevel(logging.ERROR)  # it warns of what is put down here
    try:
        yield found
    finally:
        OutputGraph.compile_subgraph = original
        logger.setLevel(level)


def _note(found: list[Break], reason: Any) -> None:
    made = Break(reason=_words(str(reason.reason)), source=_line(reason.user_stack))
    if made.source is None or made.source not in [one.source for one in found]:
        found.append(made)


def _words(reason: str) -> str:
    """Torch's explanation, else its first line: the rest is about torch itself."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    explained = next((line for line in lines if line.startswith("Explanation: ")), "")
    if lines and lines[0].startswith("generic_jump"):
        return BRANCH
    return (explained.removeprefix("Explanation: ") or (lines[0] if lines else "no reason given")).rstrip(".")


def _line(stack: Any) -> str | None:
    """Of the innermost frame that is a model's; what goes on after a cut has a name of torch's."""
    frame = next((one for one in reversed(list(stack)) if is_models(one.filename)), None)
    if frame is None:
        return None
    name = _RESUMED.sub(r"\1", frame.name)
    code = linecache.getline(frame.filename, frame.lineno).strip()
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {name}: {code}"
