"""The model as Dynamo and AOTAutograd trace it (torch's `aot_eager`): graphs interpreted, nothing recorded or fused.

What lies between eager and a replay, so that one can say where a difference comes from. Knows no report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npucompose.passes.base import STAGES
from npucompose.passes.pipeline import PassPipeline
from npucompose.schema.experiment import Call
from npucompose.targets.compilation import Backend
from npucompose.targets.optional import decompositions

if TYPE_CHECKING:
    from npucompose.compose.session import Session

Made = tuple[int, Call]
"""A call: the step whose inputs it has, and what it changes in them."""


class Traced:
    """A copy of the session's model, compiled with the decompositions of its target; with or without its passes."""

    def __init__(self, session: Session, *, passes: bool) -> None:
        self._session = session
        self.module = _apart(session.state.copy())
        checked = session.checked
        mode = checked.experiment.mode.name
        can = checked.target.capabilities(mode)
        pre, post = (PassPipeline.for_stage(checked.passes if passes else (), stage, can) for stage in STAGES)
        backend = Backend(target=checked.target, mode=mode, options=checked.experiment.compiler, pre=pre, post=post)
        backend.reads_only = True
        backend.decompositions = decompositions(checked.target, session.materialised.backend)
        self._function: Callable[..., Any] = torch.compile(
            self.module, backend=backend, **session.materialised.compile_keywords
        )
        self._made: list[Made] = []
        self._last: tuple[Any, Mapping[str, Any]] | None = None

    def after(self, calls: Sequence[Made]) -> tuple[Any, Mapping[str, Any]]:
        """The last call's result and what it left of its inputs, all `calls` made in turn from the first state."""
        if self._last is None or self._made != list(calls[: len(self._made)]):
            self._session.state.rewind(self.module)
            self._made.clear()
        for step, call in calls[len(self._made) :]:
            inputs = self._session.inputs(step, call)
            self._session.seed(step)
            with _account_kept():
                self._last = self._session.call(self._function, inputs), inputs
            self._made.append((step, call))
        assert self._last is not None
        return self._last


def _apart(module: nn.Module) -> nn.Module:
    """The module with a forward of its own, of the same text.

    # Note [A frame of its own]
    Dynamo keeps what it compiled with the code object of a function, whatever the backend: versions made here would be
    counted with those of the model under test, and be told of when that is compiled again.
    """
    kind = type(module)
    forward = getattr(kind, "forward", None)  # a class of TorchScript has none before its instances
    if not isinstance(forward, FunctionType):
        return module
    own = FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    own.__dict__.update(forward.__dict__)
    module.__class__ = type(kind.__name__, (kind,), {"forward": own, "__module__": kind.__module__})
    return module


@contextmanager
def _account_kept() -> Iterator[None]:
    """Graph breaks are counted for the whole process, and read as those of the model under test."""
    from torch._dynamo.utils import counters

    breaks = counters["graph_break"].copy()
    try:
        yield
    finally:
        counters["graph_break"].clear()
        counters["graph_break"].update(breaks)
