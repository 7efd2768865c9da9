"""A graph of Dynamo's that an earlier process has recorded: it is replayed, until somebody wants more of it than that.

See Note [Beyond the recording].

# Note [Beyond the recording]
A call of another signature, somebody who wants to see every operator, and the account of the graph have it compiled,
under what held while Dynamo traced it, as it would have been at first. The recording stays the graph's first one.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config

from npucompose.recorder import LowerRequest
from npucompose_replay import gate
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.interface import SeenCall, note, watchers
from npucompose_replay.memory.arena import Arena
from npucompose_replay.memory.inputs import signature
from npucompose_replay.operands import sharing
from npucompose_replay.written_plan import read_plan

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend
    from npucompose_replay.front.generated_cache import HowOften
    from npucompose_replay.inductor.frozen_weights import Watch
    from npucompose_replay.kept.files import KeptFiles
    from npucompose_replay.products.winners import Winners

Compiling = Callable[..., Callable[..., Any]]
"""`CpuTarget._through_inductor`."""


@define(kw_only=True, eq=False)
class RestoredGraph:
    """Called with Dynamo's inputs: replays what was kept, until somebody wants more than that."""

    backend: Backend
    weights: Sequence[torch.Tensor]
    """The constants of Dynamo's graph, which the facts have the numbers of."""
    winners: Winners
    graph_module: fx.GraphModule
    """Dynamo's."""
    facts: Mapping[str, Any]
    files: KeptFiles
    watch: Watch
    how: Callable[[LowerRequest], HowOften]
    compiling: Compiling
    recording: CapturedGraph | None = None
    """Made at the first call: memory is planned over the inputs that come."""
    hits: int = 0
    _glance: tuple[Any, ...] = ()
    _sources: tuple[str | None, ...] = field(init=False)
    _context: Any = field(init=False)
    _freezing: bool = field(init=False)
    """What held while Dynamo traced."""
    _full: Callable[..., Any] | None = None
    _lock: Any = field(factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        backend = self.backend
        self._sources, self._freezing = backend.sources, bool(inductor_config.freezing)
        self._context = copy.copy(TracingContext.try_get())
        backend.restored.append(self)
        self.watch.let_go.append(self._forget)

    def __call__(self, *given: Any) -> Any:
        if self._full is None:
            inputs = [self.weights[at] if kind == "weight" else given[at] for kind, at in self.facts["inputs"]]
            outputs = self._replayed(inputs)
            if outputs is not None:
                self.hits += 1
                return outputs
        return self.full()(*given)

    def _replayed(self, inputs: list[Any]) -> list[Any] | None:
        if gate.has_onlookers():
            return None
        if self.recording is None:
            with self._lock:
                self.recording = self.recording or self._made(inputs)
        if self.recording is None or self._within_a_replay:
            return None
        outputs = self.recording.try_replay(inputs)
        if outputs is not None and watchers:
            note(SeenCall(self.recording, inputs, outputs, self._how["capture_limit"], self.watch))
        return outputs

    def _made(self, inputs: list[Any]) -> CapturedGraph | None:
        """None for inputs of another signature than the recording's, and where its kernels cannot be loaded."""
        if gate.first_refused(inputs) or sharing(inputs) or list(signature(inputs)) != self.facts["signature"]:
            return None
        self._glance = tuple(value.shape for value in inputs)
        try:
            plan = read_plan(
                self.facts["plan"],
                weights=self.weights,
                constants=self.files.constants,
                libraries=self.files.libraries,
                inputs=inputs,
            )
        except (OSError, AttributeError):  # a library that cannot be loaded here, or is another
            return None
        how = self._how
        return CapturedGraph.from_plan(
            plan,
            inputs,
            executor=how.get("executor", "native"),
            clone_output=how.get("clone_output", False),
            workers=how.get("workers"),
            arena=self._request.memory,
        )

    @property
    def _within_a_replay(self) -> bool:
        memory = self._request.memory
        return isinstance(memory, Arena) and memory.is_mine()

    @property
    def _how(self) -> HowOften:
        return self.how(self._request)

    @functools.cached_property
    def _request(self) -> LowerRequest:
        backend = self.backend
        return LowerRequest(
            mode=backend.mode,
            graph_module=self.graph_module,
            example_inputs=(),
            static_inputs=frozenset(),
            options=backend.options,
            memory=backend.common_memory,
            partial=backend.partial,
            at_once=backend.records_at_once,
            only_watched=backend.records_only_watched,
        )

    def full(self) -> Callable[..., Any]:
        """What the graph is compiled to, which all calls are made through from now on."""
        with self._lock:
            if self._full is None:
                self._full = self._compiled()
                self._forget()
        return self._full

    def _compiled(self) -> Callable[..., Any]:
        backend, context, known = self.backend, self._context, len(self.backend.made)
        self._forget()
        fakes = [_fake(node.meta["example_value"], context.fake_mode) for node in self._placeholders]
        backend.resume(self._sources, fakes)
        with tracing(context), torch.no_grad(), inductor_config.patch(freezing=self._freezing):
            compiled = self.compiling(backend, self.graph_module, fakes, self.winners, None, self.watch)
        for made in backend.made[known:]:
            if isinstance(made.lowered, GraphCache) and self.recording is not None:
                made.lowered.adopt(self.recording, self._glance)
        return compiled

    @property
    def _placeholders(self) -> Sequence[fx.Node]:
        return self.graph_module.graph.find_nodes(op="placeholder")

    def _forget(self) -> None:
        """It is not called any more, or in another way."""
        restored = self.backend.restored
        restored[:] = [one for one in restored if one is not self]


def _fake(like: torch.Tensor, mode: Any) -> torch.Tensor:
    """A tensor without values, of the form of another."""
    with mode:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def called(restored: RestoredGraph) -> Callable[..., Any]:
    """A function of its own, which Dynamo calls; it holds the watch."""

    def call(*inputs: Any) -> Any:
        return restored(*inputs)

    call.watch = restored.watch  # type: ignore[attr-defined]
    return call
