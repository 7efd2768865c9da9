"""Dynamo's graphs, called through a backend of ours and through torch's own on copies of the same inputs, and compared.

`Judge(mode).judging(backend)` is a backend that has `backend` compile each graph, as if it were not there, and
judges the graph when it is first called. Four calls: the inputs that came, the same again, other values at other
addresses, and the first values at new addresses; all results are held and looked at once more in the end.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from attrs import define, field, frozen
from torch import fx
from torch._dynamo import lookup_backend
from torch._dynamo.exc import RestartAnalysis
from torch._guards import TracingContext, tracing

import npucompose
from npucompose.targets.compilation import kind_of_source, sources_of
from tools.judged_calls import Calls, calls, difference, in_words
from tools.judged_inputs import Pool, Uncopied

Mode = Literal["reduce-overhead", "max-autotune"]
Kind = Literal["right", "as inductor", "wrong", "refused", "skipped"]
CHOICES = {
    "reduce-overhead": ("mode=reduce-overhead",),
    "max-autotune": ("mode=max-autotune", "inductor.fallback_random=true"),
}
TORCHS = {"reduce-overhead": "aot_eager", "max-autotune": "inductor"}
"""The backend of torch's that does what the mode does, but for the recording."""


@frozen
class Verdict:
    kind: Kind
    words: str = ""


@define
class Judge:
    """What is found of the graphs of one test; `stage` is told what happens now, for who watches from outside."""

    mode: Mode
    stage: Callable[[str], None]
    found: list[Verdict] = field(factory=list)

    def judging(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        def compiling(graph: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Callable[..., Any]:
            judged = _Judged(self, copied(graph), list(inputs), _fixed(graph)) if _has_operators(graph) else None
            called = backend(graph, inputs, **keywords)

            def call(*given: Any) -> Any:
                nonlocal judged
                waiting, judged = judged, None
                if waiting is not None:
                    self.found += waiting.verdicts(given)
                return called(*given)

            return call

        for name in ("reset", "get_compiler_config"):
            if hasattr(backend, name):
                setattr(compiling, name, getattr(backend, name))
        return compiling


def copied(graph: fx.GraphModule) -> fx.GraphModule:
    """A graph of its own over the same tensors and submodules, with all that Dynamo noted on it."""
    made: Any = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    made.meta.update(graph.meta)
    if hasattr(graph, "_param_name_to_source"):
        made._param_name_to_source = graph._param_name_to_source
    for node, before in zip(made.graph.nodes, graph.graph.nodes, strict=True):
        if hasattr(before, "_dynamo_source"):
            node._dynamo_source = before._dynamo_source
    return made


def _has_operators(graph: fx.GraphModule) -> bool:
    return any(node.op not in ("placeholder", "output", "get_attr") for node in graph.graph.nodes)


def _fixed(graph: fx.GraphModule) -> frozenset[int]:
    """The inputs that are a module's own, whose addresses stay."""
    return frozenset(i for i, source in enumerate(sources_of(graph)) if kind_of_source(source) is not None)


class _Judged:
    """One graph, compiled while Dynamo traces and called later: for inference and, where they are wanted, gradients."""

    def __init__(self, judge: Judge, graph: fx.GraphModule, inputs: list[Any], fixed: frozenset[int]) -> None:
        self._judge, self._graph, self._fixed = judge, graph, fixed
        wanted = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        self._ways = {training: self._compiled(training, inputs) for training in (False, *((True,) if wanted else ()))}

    def _compiled(self, training: bool, inputs: list[Any]) -> dict[str, Callable[..., Any]]:
        with torch.set_grad_enabled(training):  # torch's first: what takes torch too long is not held against us
            return {
                "torch's": self._way("torch's", lambda: lookup_backend(TORCHS[self._judge.mode]), inputs),
                "ours": self._way("ours", lambda: npucompose.backend(*CHOICES[self._judge.mode]), inputs),
                "eager": copied(self._graph).forward,
                "torch's, frozen": self._later("torch's, frozen", lambda: _freezing, inputs),
            }

    def _later(self, name: str, backend: Callable[[], Callable[..., Any]], inputs: list[Any]) -> Callable[..., Any]:
        """Compiled when it is first called, in the context of now: few graphs ask for it."""
        context = copy.copy(TracingContext.try_get())

        @functools.cache
        def made() -> Callable[..., Any]:
            with tracing(context):
                return self._way(name, backend, inputs)

        return lambda *given: made()(*given)

    def _way(self, name: str, backend: Callable[[], Callable[..., Any]], inputs: list[Any]) -> Callable[..., Any]:
        context = copy.copy(TracingContext.try_get())
        self._judge.stage(name)
        try:
            with _quiet(), tracing(context), _config(self._judge.mode):
                return backend()(copied(self._graph), list(inputs))
        except RestartAnalysis:  # torch's own way to have the function traced anew
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is judged
            return _raising(error)
        finally:
            self._judge.stage("test")

    def verdicts(self, given: Sequence[Any]) -> Iterator[Verdict]:
        for training, ways in self._ways.items():
            try:
                pool = Pool(given, self._fixed, self._graph, training=training)
            except Uncopied as why:
                yield Verdict("skipped", str(why))
                continue
            with (
                _quiet(),
                torch.random.fork_rng(devices=()),
                _config(self._judge.mode),
                torch.set_grad_enabled(training),
            ):
                yield self._verdict(ways, pool)

    def _verdict(self, ways: Mapping[str, Callable[..., Any]], pool: Pool) -> Verdict:
        ours = self._calls(ways, "ours", pool)
        if self._judge.mode == "reduce-overhead":
            return self._against(ways, "torch's", ours, pool, exact=True)
        against_eager = self._against(ways, "eager", ours, pool, exact=False)
        if against_eager.kind in ("right", "skipped"):
            return against_eager
        against_torch = self._against(ways, "torch's", ours, pool, exact=False)
        if against_torch.kind == "skipped":
            return against_torch
        if against_torch.kind == "right" or self._is_as(ways, "torch's, frozen", ours, pool):
            return Verdict("as inductor", against_eager.words)
        return against_torch

    def _is_as(self, ways: Mapping[str, Callable[..., Any]], name: str, ours: Calls, pool: Pool) -> bool:
        """Whether another way gives the same results, or raises the same error."""
        theirs = self._calls(ways, name, pool)
        if ours.error is None or theirs.error is None:
            return ours.error is theirs.error and not difference(ours, theirs, exact=False)
        return in_words(ours.error) == in_words(theirs.error)

    def _against(
        self, ways: Mapping[str, Callable[..., Any]], name: str, ours: Calls, pool: Pool, *, exact: bool
    ) -> Verdict:
        theirs = self._calls(ways, name, pool)
        if theirs.error is not None:
            return Verdict("skipped", f"{name} raises {in_words(theirs.error)}")
        if ours.error is not None:
            return Verdict("refused", f"call {len(ours.made)}: {in_words(ours.error)}")
        wrong = difference(ours, theirs, exact=exact)
        if not wrong:
            return Verdict("right")
        if difference(theirs, self._calls(ways, name, pool), exact=exact):
            return Verdict("skipped", f"{name} gives other results each time")
        return Verdict("wrong", wrong)

    def _calls(self, ways: Mapping[str, Callable[..., Any]], name: str, pool: Pool) -> Calls:
        self._judge.stage(name)
        try:
            return calls(ways[name], pool.inputs(), training=pool.training)
        finally:
            self._judge.stage("test")


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


def _freezing(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Inductor with what the mode switches on there: weights as constants, and its choice among kernels."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, config_patches={"freezing": True, "max_autotune": True})  # type: ignore[no-any-return]


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _config(mode: Mode) -> Iterator[None]:
    from torch._inductor import config

    settings = {"fallback_random": True, "compile_threads": 1}
    with config.patch(settings) if mode == "max-autotune" else warnings.catch_warnings():
        yield
