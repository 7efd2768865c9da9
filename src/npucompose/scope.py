"""Streams and order written in a model's source, as TorchAir's users write them; they work on every target.

    with npucompose.scope.npu_stream_switch("shared_expert"):
        shared = self.shared_expert(x)

Under torch.compile a scope becomes the operators of TorchAir (`scope_enter`, `scope_exit`), its own where it is loaded,
those of `npucompose.ops` elsewhere; in eager it does nothing. The pass `stream_plan` proves what is written and derives
the events that the data need, so that nobody has to write those. Where torchair is wanted it must be loaded before
this module is: its operators act while it converts a graph, and what is defined already it leaves alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npucompose.ops import air

_LABEL, _PRIORITY = "_user_stream_label", "_user_stream_priority"

air.define()
_enter: Any = torch.ops.air.scope_enter
_exit: Any = torch.ops.air.scope_exit


class StreamSwitch:
    """`with npu_stream_switch("s"):` … what is called inside runs on stream "s"."""

    def __init__(self, tag: str, priority: int) -> None:
        self.keys = [_LABEL, _PRIORITY]
        self.values = [tag, str(priority)]

    def __enter__(self) -> None:
        _enter(self.keys, self.values)

    def __exit__(self, *_: object) -> None:
        _exit()


def npu_stream_switch(stream_tag: str, stream_priority: int = 0) -> StreamSwitch:
    """Put what is called in the `with` block on the stream of that name, as `torchair.scope.npu_stream_switch` does."""
    return StreamSwitch(stream_tag, stream_priority)


def record() -> torch.Tensor:
    """A point on the current stream that `wait` can name: everything before it."""
    return torch.ops.air.record()


def wait(tensors: Sequence[torch.Tensor]) -> None:
    """What follows on the current stream starts after each of `tensors`, records or values, is there."""
    torch.ops.air.wait(list(tensors))


def use(namespace: str) -> None:
    """Write scopes with the operators of `torch.ops.<namespace>` from now on: the target knows whose it reads."""
    global _enter, _exit
    space = getattr(torch.ops, namespace)
    _enter, _exit = space.scope_enter, space.scope_exit
