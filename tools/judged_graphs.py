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
from torch.utils._pytree import tree_flatten

import npucompose
from npucompose.targets.input_sources import kind_of_source, sources_of
from npucompose_replay.operands import layout_of

Mode = Literal["reduce-overhead", "max-autotune"]
Kind = Literal["right", "as inductor", "wrong", "refused", "skipped"]
CHOICES = {
    "reduce-overhead": ("mode=reduce-overhead",),
    "max-autotune": ("mode=max-autotune", "inductor.fallback_random=true", "target.measure_ms=20"),
}
TORCHS = {"reduce-overhead": "aot_eager", "max-autotune": "inductor"}
"""The backend of torch's that does what the mode does, but for the recording."""
TOLERANCE = {
    torch.float64: 1e-6,
    torch.complex128: 1e-6,
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 6e-2,
}
"""Relative to the largest number of a tensor, and absolute, where kernels are a compiler's own."""


class Uncopied(Exception):
    """An input of which no second one can be made."""


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
            }

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
        return Verdict("as inductor", against_eager.words) if against_torch.kind == "right" else against_torch

    def _against(
        self, ways: Mapping[str, Callable[..., Any]], name: str, ours: Calls, pool: Pool, *, exact: bool
    ) -> Verdict:
        theirs = self._calls(ways, name, pool)
        if theirs.error is not None:
            return Verdict("skipped", f"{name} raises {_words(theirs.error)}")
        if ours.error is not None:
            return Verdict("refused", f"call {len(ours.made)}: {_words(ours.error)}")
        wrong = difference(ours, theirs, exact=exact)
        if not wrong:
            return Verdict("right")
        if difference(theirs, self._calls(ways, name, pool), exact=exact):
            return Verdict("skipped", f"{name} gives other results each time")
        return Verdict("wrong", wrong)

    def _calls(self, ways: Mapping[str, Callable[..., Any]], name: str, pool: Pool) -> Calls:
        self._judge.stage(name)
        try:
            return calls(ways[name], pool)
        finally:
            self._judge.stage("test")


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:400]}"


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


# -- inputs


class Pool:
    """`inputs(k)` for call k: copies of what came, overlapping as they did; a module's own tensors are the same."""

    def __init__(
        self, given: Sequence[Any], fixed: frozenset[int], graph: fx.GraphModule, *, training: bool = False
    ) -> None:
        self._given, self._fixed, self.training = list(given), fixed, training
        self._kept = {value.untyped_storage()._cdata: value for value in _constants(graph)}
        self._bytes = {key: value.untyped_storage().clone() for key, value in self._kept.items()}
        _Copies(self._given).row()  # raises where there can be none

    def inputs(self) -> Iterator[list[Any]]:
        """Of the calls, each made when it is asked for; with gradients two calls, of leaves of their own."""
        if self.training:
            for flipped in (False, True):
                self._restore()
                yield [
                    _leaf(value, of) for value, of in zip(_Copies(self._given, flipped).row(), self._given, strict=True)
                ]
            return
        first, before = _Copies(self._given).row(), _Copies(self._given).row()
        for number in range(4):
            self._restore()
            if number == 0 or (number == 1 and _unchanged(first, before)):
                yield first
                continue
            row = _Copies(self._given, flipped=number == 2).row()
            for i in self._fixed:
                _lay_back(first[i], before[i])
                row[i] = first[i]
            yield row

    def _restore(self) -> None:
        for key, value in self._kept.items():
            storage, was = value.untyped_storage(), self._bytes[key]
            if storage.nbytes() == was.nbytes() and not torch.equal(_bytes_of(storage), _bytes_of(was)):
                storage.copy_(was)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]


def _constants(graph: fx.GraphModule) -> list[torch.Tensor]:
    named = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    values: list[Any] = [
        functools.reduce(lambda at, step: getattr(at, step, None), name.split("."), graph) for name in named
    ]
    return [value for value in values if type(value) in (torch.Tensor, torch.nn.Parameter) and _plain(value)]


def _leaf(value: Any, of: Any) -> Any:
    return value.requires_grad_() if isinstance(of, torch.Tensor) and of.requires_grad else value


def _plain(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized


def _unchanged(row: Sequence[Any], before: Sequence[Any]) -> bool:
    pairs = [(a, b) for a, b in zip(row, before, strict=True) if isinstance(a, torch.Tensor)]
    try:
        return all(layout_of(a) == layout_of(b) and not far(a, b, exact=True) for a, b in pairs)
    except (RuntimeError, NotImplementedError):
        return False


def _lay_back(value: Any, before: Any) -> None:
    if isinstance(value, torch.Tensor) and _plain(value) and value.shape == before.shape:
        value.copy_(before)


class _Copies:
    def __init__(self, given: Sequence[Any], flipped: bool = False) -> None:
        self._given, self._flipped = given, flipped
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._dtypes: dict[int, set[torch.dtype]] = {}
        for value in given:
            if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter) and _plain(value):
                self._dtypes.setdefault(value.untyped_storage()._cdata, set()).add(value.dtype)

    def row(self) -> list[Any]:
        made: dict[int, Any] = {}
        for value in self._given:
            if id(value) not in made:
                made[id(value)] = self._copy(value)
        return [made[id(value)] for value in self._given]

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        try:
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or not _plain(value):
                return copy.deepcopy(value.detach())
            layout = layout_of(value)
            if layout.conj or layout.neg:
                return layout.over(self._storage(value))
            made = torch.empty(0, dtype=value.dtype)
            made.set_(self._storage(value), value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]
        except Exception as error:  # noqa: BLE001 - of a tensor of any kind
            raise Uncopied(f"an input cannot be copied: {_words(error)}") from None
        return torch.nn.Parameter(made, requires_grad=False) if isinstance(value, torch.nn.Parameter) else made

    def _storage(self, value: torch.Tensor) -> torch.UntypedStorage:
        key = value.untyped_storage()._cdata
        if key not in self._storages:
            self._storages[key] = made = value.untyped_storage().clone()
            if self._flipped and len(self._dtypes[key]) == 1 and made.nbytes() % value.element_size() == 0:
                row = torch.empty(0, dtype=value.dtype).set_(made)  # type: ignore[call-overload]
                row.copy_(row.flip(0))
        return self._storages[key]


# -- calls, and how far they are apart


EXACTLY = ("random numbers", "lies in")
"""What is compared only where bits are."""


@define
class Calls:
    made: list[dict[str, Any]] = field(factory=list)
    """For each call copies of results and inputs afterwards, where results lie, and the state of random numbers."""
    held: list[list[Any]] = field(factory=list)
    """The results themselves, once all calls were made."""
    error: BaseException | None = None


def calls(way: Callable[..., Any], pool: Pool) -> Calls:
    found, results = Calls(), []
    for number, inputs in enumerate(pool.inputs()):
        torch.manual_seed(number)
        try:
            leaves = tree_flatten(way(*inputs))[0]
            if pool.training:
                _backward(leaves)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is judged
            found.error = error
            return found
        results.append(leaves)
        seen: dict[str, Any] = {"random numbers": torch.get_rng_state()}
        for i, leaf in enumerate(leaves):
            seen[f"result {i}"], seen[f"result {i} lies in"] = _kept(leaf), _place(leaf, leaves[:i], inputs)
        for i, value in enumerate(inputs):
            seen[f"input {i} afterwards"] = _kept(value)
            if pool.training and isinstance(value, torch.Tensor) and value.is_leaf:
                seen[f"gradient {i}"] = _kept(value.grad)
        found.made.append(seen)
    found.held = [[_kept(leaf) for leaf in leaves] for leaves in results]
    return found


def _backward(leaves: Sequence[Any]) -> None:
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(leaf) for leaf in wanted])


def _place(leaf: Any, earlier: Sequence[Any], inputs: Sequence[Any]) -> str:
    """Which input a result is, or whose memory it lies in."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.numel():
        return ""
    for i, value in enumerate(inputs):
        if value is leaf:
            return f"input {i}"
    for name, row in (("input", inputs), ("result", earlier)):
        for i, value in enumerate(row):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and _shares(value, leaf):
                return f"memory of {name} {i}"
    return ""


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return bool(a.untyped_storage().data_ptr()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def _kept(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or not _plain(leaf):
        try:
            return copy.deepcopy(leaf.detach())
        except Exception:  # noqa: BLE001 - of a tensor of any kind
            return str(type(leaf))
    if _is_gone(leaf):
        return f"a tensor whose memory is gone: {leaf.untyped_storage().nbytes()} bytes are left"
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype) if _dense(leaf) else leaf.clone()
    return made.copy_(leaf.detach()) if _dense(leaf) else made


def _is_gone(leaf: torch.Tensor) -> bool:
    """Whether its elements reach beyond its storage: a graph may have given that memory back."""
    if not leaf.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return (leaf.storage_offset() + last + 1) * leaf.element_size() > leaf.untyped_storage().nbytes()


def _dense(leaf: torch.Tensor) -> bool:
    return not layout_of(leaf).overlaps_itself()


def difference(ours: Calls, theirs: Calls, *, exact: bool) -> str:
    """'' or where the two are apart."""
    for number, (a, b) in enumerate(zip(ours.made, theirs.made, strict=True)):
        if a.keys() != b.keys():
            return f"call {number}: {len(a)} values in place of {len(b)}"
        for name, mine in a.items():
            if (exact or not name.endswith(EXACTLY)) and (words := far(mine, b[name], exact=exact)):
                return f"call {number}, {name}: {words}"
    for number, (a, b) in enumerate(zip(ours.held, theirs.held, strict=True)):
        for i, (mine, other) in enumerate(zip(a, b, strict=True)):
            if words := far(mine, other, exact=exact):
                return f"result {i} of call {number}, held to the end: {words}"
    return ""


def far(a: Any, b: Any, *, exact: bool) -> str:
    """'' or how a value differs."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a is b or not isinstance(a, (int, float, str, bool)) or a == b or a != a)
        return "" if same else f"{a!r:.60} where torch has {b!r:.60}"
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return f"{a.dtype}{list(a.shape)} where torch has {b.dtype}{list(b.shape)}"
    if type(a) not in (torch.Tensor, torch.nn.Parameter) or not _plain(a):
        return ""
    if _is_gone(a) or _is_gone(b):
        return "a tensor whose memory is gone"
    if exact and layout_of(a).stride != layout_of(b).stride:
        return f"strides {a.stride()} where torch has {b.stride()}"
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if not a.numel() or torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))):
        return ""
    if not (a.is_floating_point() or a.is_complex()):
        return f"{int((a != b).sum())} of {a.numel()} elements differ"
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    special = ~(torch.isfinite(x) & torch.isfinite(y))
    if bool((special & ~((x == y) | (torch.isnan(x) & torch.isnan(y)))).any()):
        return "a number that is none, or infinite, on one side"
    apart = float((x - y).abs().masked_fill(special, 0).max())
    allowed = 0.0 if exact else TOLERANCE.get(a.dtype, 0.0) * (1 + float(y.abs().masked_fill(special, 0).max()))
    return "" if apart <= allowed else f"differs by {apart:.3g}"
