"""Our passes in TorchAir's two hooks, with a record of every graph; `replace` through its register_replacement.

# Note [Patterns stay registered]
TorchAir keeps what is registered for the whole process and applies it to every graph, between its two hooks. So each
pattern is registered once, and asks before it replaces whether the graph under compilation is one that wants it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, evolve, field
from torch._inductor import pattern_matcher
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.errors import NpuComposeError
from npucompose.graphs.effects import leaves_in
from npucompose.graphs.matching import value_of
from npucompose.npu.torchair.config import package, torchair_mode
from npucompose.npu.torchair.refusals import separate_overlaps
from npucompose.passes.metadata import same_form
from npucompose.passes.replace import PATTERNS, Replace
from npucompose.passes.replace.rewrite import facts_of
from npucompose.results.graphs import PassRecord

if TYPE_CHECKING:
    from npucompose.passes.pipeline import PassPipeline, Records
    from npucompose.passes.replace import Pattern
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation


WAY = "register_replacement"
_REGISTERED: set[tuple[str, str, int]] = set()
_open: Handed | None = None
"""Whose graph is being compiled; see Note [Patterns stay registered]."""


@define(kw_only=True, eq=False)
class Handed:
    """The pass `replace`, handed over to TorchAir: what it did to the graph under compilation."""

    label: str
    replace: Replace
    _counts: Counter[str] = field(factory=Counter)
    _nodes: int = 0
    _begun: float = 0.0

    def end(self, nodes: int) -> PassRecord:
        """They are done; nodes and seconds are those of all of them."""
        global _open
        _open = None
        outcome = facts_of(self._counts, [PATTERNS.get(name)() for name in self.replace.patterns], way=WAY)
        return PassRecord(
            name=self.label,
            stage=self.replace.stage,
            matches=outcome.matches,
            nodes_before=self._nodes,
            nodes_after=nodes,
            seconds=perf_counter() - self._begun,
            exact=outcome.exact,
            rtol=outcome.rtol,
            atol=outcome.atol,
            rules=outcome.rules,
        )

    def takes(self, pattern: Pattern, names: Sequence[str], match: Any) -> bool:
        """This graph wants the pattern, and its replacement has the form of what it replaces."""
        if pattern.name not in self.replace.patterns:
            return False
        given = [value_of(match.kwargs[name]) for name in names]
        values = given[: len(given) - len(pattern.scalars)]
        numbers = dict(zip(pattern.scalars, given[len(values) :], strict=True))
        if not all(isinstance(value, torch.Tensor) for value in values) or not pattern.fits(values, numbers):
            return False
        made = list(leaves_in(pattern.replace(*given)))
        if not all(same_form(a, value_of(b)) for a, b in zip(made, match.output_nodes(), strict=True)):
            return False
        self._counts[pattern.name] += 1
        return True


def begin_patterns(handed: Handed | None, nodes: int) -> None:
    """TorchAir's own passes begin, on a graph of so many nodes; None: on one that wants no pattern."""
    global _open
    _open = handed
    if handed is not None:
        handed._counts, handed._nodes, handed._begun = Counter(), nodes, perf_counter()


def hand_over(backend: Backend) -> Handed | None:
    """Take `replace` out of the backend's passes where TorchAir can do it in the same place; None elsewhere.

    That is where TorchAir has register_replacement and applies it, the pass is the last one before TorchAir's own,
    nobody wants it held to its promise (`check=per_pass`), which only the graph before and after it can tell, and
    torch gives a check what it needs (`numbers_arrive`).
    """
    pre: PassPipeline = backend.pre
    if not pre.passes or pre.check:
        return None
    label, last = pre.passes[-1]
    can = torchair_mode(backend)
    if not isinstance(last, Replace) or last.via != "auto" or not backend.options[can.fusion_option]:
        return None
    wanted = [PATTERNS.get(name)() for name in last.patterns]
    if any(pattern.scalars for pattern in wanted) and not numbers_arrive():
        return None
    register = getattr(package(can.package), "register_replacement", None)
    if register is None:
        return None
    for pattern in wanted:
        _registered(can.package, register, pattern)
    backend.pre = evolve(pre, passes=pre.passes[:-1])
    return Handed(label=label, replace=last)


def numbers_arrive() -> bool:
    """Whether Inductor's matcher, which TorchAir's is, gives the numbers of a match (`epsilon`) to its check.

    That of torch 2.11 traces the pattern again with them as constants, and then knows only the tensors.
    """
    return hasattr(pattern_matcher, "_unflatten_match_kwargs")


def _registered(name: str, register: Callable[..., Any], pattern: Pattern) -> None:
    tensors = list(pattern.inputs())
    names = [f"tensor_{at}" for at in range(len(tensors))] + list(pattern.scalars)
    for number, (find, dtype) in enumerate(pattern.finds()):
        known = (name, pattern.name, number)
        if known not in _REGISTERED:
            _REGISTERED.add(known)
            register(
                search_fn=_named(find, names),
                replace_fn=_named(pattern.replace, names),
                example_inputs=[tensor.to(dtype) for tensor in tensors],
                trace_fn=_traced,
                extra_check=lambda match: _open is not None and _open.takes(pattern, names, match),
                scalar_workaround=dict(pattern.scalars),
            )


def _named(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function with arguments of these names: TorchAir binds what it finds by name."""

    def call(*given: Any, **by_name: Any) -> Any:
        return function(*given, *(by_name[name] for name in names[len(given) :]))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    call.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [inspect.Parameter(name, kind) for name in names]
    )
    return call


def _traced(function: Callable[..., Any], given: Sequence[Any], **_: Mapping[str, Any]) -> torch.fx.GraphModule:
    """Operators as they stand in TorchAir's graphs: Inductor's way to trace would take them apart."""
    with torch.no_grad():
        return make_fx(function)(*given)


class PassHooks:
    """`before` and `after` are called by TorchAir for each FX graph, in this order, its own passes in between.

    So the record's `text_after` shows what TorchAir's passes did as well.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend, self._can = backend, torchair_mode(backend)
        self._handed = hand_over(backend)
        self._pre = backend.pre.as_torchair_hook(self._keep, backend.constants)
        self._post = backend.post.as_torchair_hook(self._keep, backend.constants)
        self._open: Compilation | None = None

    @property
    def _writes_over_operands(self) -> bool:
        """Whether TorchAir's in-place pass comes after this."""
        option, left_out = self._can.without_in_place or ("", False)
        return bool(option) and bool(self._backend.options[option]) != left_out

    def before(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        self._open = self._backend.begin(graph_module)
        begun = perf_counter()
        self._run(self._pre, graph_module, example_inputs, config)
        self._open.passes_s = perf_counter() - begun
        begin_patterns(self._handed, len(graph_module.graph.nodes))

    def after(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        compilation = self._open
        assert compilation is not None
        if self._handed is not None:
            compilation.passes = (*compilation.passes, self._handed.end(len(graph_module.graph.nodes)))
        begun = perf_counter()
        self._run(self._post, graph_module, example_inputs, config)
        self._open = None
        if self._writes_over_operands and (record := separate_overlaps(graph_module)) is not None:
            compilation.passes = (*compilation.passes, record)
        compilation.passes_s += perf_counter() - begun
        self._backend.finish(compilation, graph_module)
        compilation.settle()

    def _run(self, hook: Callable[[Any, Any, Any], None], graph_module: Any, example_inputs: Any, config: Any) -> None:
        """TorchAir turns whatever is raised in here into an error of its own: ours is kept for `translate_errors`."""
        try:
            hook(graph_module, example_inputs, config)
        except NpuComposeError as error:
            self._backend.refusal = error
            raise

    def _keep(self, records: Records) -> None:
        assert self._open is not None
        self._open.passes = (*self._open.passes, *records)
