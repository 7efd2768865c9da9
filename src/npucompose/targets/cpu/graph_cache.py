"""One compiled graph, a recording for each signature it is called with: what `lower` returns for captured modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from npucompose.targets.base import LowerRequest
from npucompose.targets.cpu import WhenFull, forks
from npucompose.targets.cpu.arena import Arena
from npucompose.targets.cpu.captured_graph import CapturedGraph, ExecutorName
from npucompose.targets.cpu.inputs import signature
from npucompose.targets.cpu.threads import Workers


class Recording(Protocol):
    """What a cache holds, whatever device made it."""

    last_outputs: list[Any]
    seconds: float

    def replay(self, *inputs: Any) -> list[Any]: ...

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None: ...

    def facts(self) -> Mapping[str, Any]: ...


class GraphCache:
    """Called with the list of a graph's inputs; captures each new signature, up to `capture_limit` recordings.

    `when_full` says what comes then. `eager`, TorchAir's way: one warning, and new signatures run the graph as it is;
    recorded ones are still replayed. `replace`: the recording that was used longest ago makes place for the new one
    (detached handles of it stay good).
    """

    _boxed_call = True

    def __init__(
        self,
        request: LowerRequest,
        *,
        capture_limit: int,
        clone_output: bool = False,
        executor: ExecutorName = "native",
        when_full: WhenFull = "eager",
        workers: Workers | None = None,
    ) -> None:
        self.request = request
        self.capture_limit = capture_limit
        self.clone_output = clone_output
        self.executor: ExecutorName = executor
        self.when_full: WhenFull = when_full
        self.workers = workers
        self.arena: Arena = request.memory if isinstance(request.memory, Arena) else Arena()
        """What all recordings on this device compute in between lies here: they replay one at a time."""
        self.captured: list[Recording] = []
        """The one used last stands last."""
        self.last: Recording | None = None
        """The recording used last; None before the first call and after an eager one."""
        self.capture_seconds = 0.0
        self.observer: Callable[[GraphCache, list[Any]], None] | None = None
        """Told of every call and its inputs, before it runs (see targets/detached.py)."""
        self._warned: set[str] = set()
        self._lock = forks.lock()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self.is_within_a_replay():
            self._warn_once("within a replay", _within_a_replay)
            return self._as_it_is(inputs)
        if self.observer is not None:
            self.observer(self, list(inputs))
        last = self.last
        outputs = last.try_replay(inputs) if last is not None else None
        return outputs if outputs is not None else self._other(inputs)

    def _other(self, inputs: list[Any]) -> list[Any]:
        with self._lock:  # two threads with one new signature make one recording
            for captured in reversed(self.captured):
                outputs = captured.try_replay(inputs)
                if outputs is not None:
                    self.captured.remove(captured)
                    self.captured.append(captured)
                    self.last = captured
                    return outputs
            if len(self.captured) == self.capture_limit and self.when_full == "replace":
                del self.captured[0]
            if len(self.captured) < self.capture_limit:
                return self._capture(inputs)
            self._warn_once("full", lambda: _full(self.capture_limit, inputs))
            self.last = None
        return self._as_it_is(inputs)

    def is_within_a_replay(self) -> bool:
        """This thread is replaying what lies in the same memory: an operator of that graph has called this one."""
        return self.arena.is_mine()

    def _as_it_is(self, inputs: list[Any]) -> list[Any]:
        return list(self.request.graph_module(*inputs))

    def _capture(self, inputs: list[Any]) -> list[Any]:
        captured = self.recorded(inputs)
        self.captured.append(captured)
        self.capture_seconds += captured.seconds
        self.last = captured
        return captured.replay(*inputs)

    def recorded(self, inputs: list[Any]) -> Recording:
        """A recording of the graph for the signature of `inputs`."""
        return CapturedGraph.capture(
            self.request.graph_module,
            inputs,
            static=self.request.static_inputs,
            executor=self.executor,
            clone_output=self.clone_output,
            workers=self.workers,
            arena=self.arena,
        )

    def _warn_once(self, kind: str, words: Callable[[], str]) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(words(), RuntimeWarning, stacklevel=3)


def _full(limit: int, inputs: list[Any]) -> str:
    return (
        f"capture_limit={limit} recordings of this graph are made; new signatures, such as {signature(inputs)}, run "
        "without replay from now on. Raise capture_limit, use fewer shapes, or let them take the place of the "
        "recording used longest ago: target.when_full=replace."
    )


def _within_a_replay() -> str:
    return (
        "an operator of a recorded graph calls a compiled graph whose recordings lie in the same memory: that one runs "
        "without replay there. target.pool=graph gives each graph memory of its own."
    )
