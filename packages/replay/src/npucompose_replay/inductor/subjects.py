"""One graph for inference that Inductor compiles, and who makes of it what is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch

from npucompose.recorder import LowerRequest
from npucompose_replay.counted import CountedNumbers

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import Lowered
    from npucompose.targets.backend import Backend
    from npucompose_replay.inductor.frozen_weights import Watch


@attrs.frozen(kw_only=True, eq=False)
class Subject:
    """One graph for inference that Inductor compiles, or has compiled."""

    key: str
    """`graph_3f2a…`, of its operators, arguments and shapes as the passes left them."""
    fixed: frozenset[int]
    """The inputs whose address does not change."""
    watch: Watch | None
    """Over the graph's constants."""
    unfrozen: frozenset[int] = frozenset()
    """Ids of the weights that the graph has as inputs all the same."""
    changed: tuple[torch.Tensor | int, ...] | None = None
    """What AOTAutograd's wrapper does around the graph (`changed_by_a_plain_wrapper`)."""
    written: frozenset[int]
    """The inputs that the graph writes."""
    is_for_operators: bool = False
    """`unfused.is_for_operators`"""
    graph_module: fx.GraphModule
    """As the passes left it; Inductor changes it while it compiles."""
    counted: CountedNumbers | None = None
    """Numbers of the graph that no kernel reads."""
    unfused: Callable[[], fx.GraphModule]
    """The same graph with nothing taken apart or fused, called in the same way; raises `unfused.Untraced`. To be asked
    for while the graph is compiled."""

    def request(self, backend: Backend, graph_module: fx.GraphModule) -> LowerRequest:
        """For recordings that are made of `graph_module`, or that it stands for."""
        return LowerRequest(
            mode=backend.mode,
            graph_module=graph_module,
            example_inputs=(),
            static_inputs=self.fixed,
            options=backend.options,
            memory=backend.common_memory,
            partial=backend.partial,
            at_once=backend.records_at_once,
            only_watched=backend.records_only_watched,
            counted=self.counted,
            constants=self.watch,
            eager_at_hand=True,
            written=self.written,
        )


class Recorder(Protocol):
    """Makes what is called in the place of what Inductor compiles."""

    def wants(self, subject: Subject) -> bool:
        """Whether Inductor has to compile the graph."""
        ...

    def gave_up(self, subject: Subject) -> None:
        """Inductor cannot compile what was wanted: None follows in its place. Raises `unfused.Untraced`."""
        ...

    def lowered(self, subject: Subject, compiled: Any) -> Lowered:
        """What is called: made of what Inductor compiled, or of None where that was not wanted."""
        ...
