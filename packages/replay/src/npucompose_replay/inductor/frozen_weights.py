"""Weights that Inductor has frozen into a graph are watched: a graph whose weights have changed is not called again.

A `Weight` knows by what it has changed and under which name; a `Watch` is over the weights of one graph. Knows Dynamo's
guards and its lists of versions; how a graph is compiled is the business of others.

# Note [A guard of ours, and a token that it hangs on]
A frozen graph is right for the weights as they were. Dynamo guards which objects they are and nothing else of them, so
each frozen graph gets one more guard, asked after all others: does its `Watch` hold? Where it does not, Dynamo traces
again and asks the backend, which lets go of the token of the old watch: Dynamo drops a version of a function together
with any object that it is guarded by (so it drops the versions of a module that is gone), and with it the packed
weights. What remains is an empty place in Dynamo's list of versions, which counts for its limit of recompilations;
`FrozenWeights.make_room` clears a full list, between two calls.
"""

from __future__ import annotations

import ctypes
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import count
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._C._dynamo.guards import TensorGuards
from torch._dynamo import config
from torch._dynamo.eval_frame import remove_from_cache
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from npucompose.errors import FrozenWeightError
from npucompose_replay import gate
from npucompose_replay.operands import memory_at

if TYPE_CHECKING:
    from torch import fx


SAMPLE = 64
"""So many bytes of a weight on the CPU are compared: writes through `.data` leave no other trace."""
_STEP = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]|\.(\w+)")


class Weight:
    """A tensor that Dynamo made an attribute of its graph. `change` says in words what has become of it."""

    def __init__(self, tensor: torch.Tensor, name: str, root: weakref.ref[nn.Module] | None) -> None:
        self.tensor, self.name, self.root = tensor, name, root
        self.frozen = False
        """A constant of the graph; otherwise the graph reads it, and only its layout is part of the graph."""
        self.watchable = is_watchable(tensor)
        self._layout = _layout(tensor)
        self.version = tensor._version if self.watchable else 0
        self.address = tensor.data_ptr() if self.watchable else 0
        self.sample = _sample(tensor) if self.watchable else None
        self.sampled = bytes(self.sample) if self.sample is not None else b""

    def change(self) -> str | None:
        """`fc.weight was written to`; None where it is as it was."""
        root = None if self.root is None else self.root()
        if root is not None and _reached(root, self.name) is not self.tensor:
            return f"{self.name} was replaced or deleted"
        if _layout(self.tensor) != self._layout:
            return f"{self.name} has another dtype, device, shape or stride"
        if not self.frozen:
            return None
        if self.tensor.data_ptr() != self.address:
            return f"{self.name} was given other memory"
        if self.tensor._version != self.version:
            return f"{self.name} was written to"
        if self.sample is not None and bytes(self.sample) != self.sampled:
            return f"{self.name} was written to through .data"
        return None


def is_watchable(tensor: torch.Tensor) -> bool:
    """Not so an inference tensor, which counts no versions, and a tensor that has no memory of its own."""
    strided = tensor.layout == torch.strided and tensor.device.type != "meta"
    return strided and not tensor.is_inference() and not is_traceable_wrapper_subclass(tensor)


def weights_of(graph_module: fx.GraphModule) -> list[Weight]:
    """The tensors that a graph of Dynamo names as its own attributes, under the names that the model has for them."""
    sources: Mapping[str, Any] = getattr(graph_module, "_param_name_to_source", None) or {}
    modules = modules_at_hand()
    found: dict[int, Weight] = {}
    for name in dict.fromkeys(str(node.target) for node in graph_module.graph.nodes if node.op == "get_attr"):
        tensor = getattr(graph_module, name, None)
        if isinstance(tensor, torch.Tensor) and id(tensor) not in found:
            found[id(tensor)] = _placed(tensor, _text(sources.get(name)) or name, modules)
    return list(found.values())


def modules_at_hand() -> dict[str, nn.Module]:
    """The modules that Dynamo has met in what it is tracing, by its names of them."""
    context = TracingContext.try_get()
    met: Mapping[str, Any] = {} if context is None else context.module_context.nn_modules
    return {name: module for name, module in met.items() if isinstance(module, nn.Module)}


def _placed(tensor: torch.Tensor, text: str, modules: Mapping[str, nn.Module]) -> Weight:
    """`L['self']._modules['fc']._parameters['weight']` is `fc.weight` of the module `L['self']`."""
    for root in sorted((name for name in modules if text.startswith(name)), key=len):
        name = _name(text[len(root) :])
        if name and _reached(modules[root], name) is tensor:
            return Weight(tensor, name, weakref.ref(modules[root]))
    return Weight(tensor, text, None)


def _name(steps: str) -> str:
    """Dotted; empty where a step is none of a module's own."""
    found = list(_STEP.finditer(steps))
    return ".".join(step[1] or step[2] for step in found) if "".join(step[0] for step in found) == steps else ""


def _reached(root: nn.Module, name: str) -> Any:
    """What the module has under a dotted name; None where it has nothing."""
    return reduce(lambda value, step: getattr(value, step, None), name.split("."), root)


def _text(source: Any) -> str:
    name: Any = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    stride = tensor.stride() if tensor.layout == torch.strided else ()
    return tensor.dtype, tensor.device, tuple(tensor.shape), stride


def _sample(tensor: torch.Tensor) -> memoryview | None:
    """The memory in the middle of a tensor on the CPU, live; to be read as long as the tensor's address holds."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return None
    extent = (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
    taken = min(SAMPLE, extent)
    begin = tensor.data_ptr() + (extent - taken) // 2
    return memory_at(begin, taken)


_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr


class _Token:
    """Lives as long as a version of a function may be called."""


class Watch:
    """The weights of one frozen graph. `holds` is asked before each call of the graph, and takes a few µs.

    It lives as long as the code of the graph, which holds it. It is the `Constants` of a recording.
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = tuple(weights)
        self.tensors = [weight.tensor for weight in weights]
        self.native: Any = None
        """The same in C++, a Weights of the native replayer: its yes is one; None where nobody made it."""
        self._layouts = _layouts(self.tensors)
        self._token: _Token | None = _Token()
        self.code: CodeType | None = None
        """Whose versions Dynamo counts."""
        self.let_go: list[Callable[[], None]] = []
        """What to do when the graph is dropped."""
        gone = _releasing(self)
        self._roots = [weakref.ref(root, gone) for root in {w.root() for w in weights if w.root is not None} if root]
        self.froze({id(tensor) for tensor in self.tensors})

    def froze(self, kept: set[int]) -> None:
        """All weights but those with these ids are constants of the graph; the others are read at every call."""
        for weight in self.weights:
            weight.frozen = id(weight.tensor) not in kept
        frozen = [weight for weight in self.weights if weight.frozen]
        self.frozen = [weight.tensor for weight in frozen]
        """The weights that are constants of the graph."""
        self._versions, self._addresses = [w.version for w in frozen], [w.address for w in frozen]
        self._samples = [weight.sample for weight in frozen if weight.sample is not None]
        self._sampled = b"".join(weight.sampled for weight in frozen)

    def checked_by(self, made: Any) -> None:
        """Have `made`, an empty Weights of the native replayer, asked first."""
        if self.change() is not None or any(map(gate.why_not, self.tensors)):
            return
        for one in self.weights:
            sampled: Any = None if one.sample is None else one.sample.obj
            sample_at = 0 if sampled is None else ctypes.addressof(sampled)
            made.add(one.tensor, one.frozen, one.version, one.address, sample_at, one.sampled)
        self.native = made

    def holds(self) -> bool:
        """What the graph was compiled for has not changed since. A sample is read where its address still holds."""
        if self.native is not None and self.native.hold():
            return True
        if (
            list(map(_VERSION, self.frozen)) == self._versions
            and list(map(_ADDRESS, self.frozen)) == self._addresses
            and self._layouts.check(*self.tensors)
            and b"".join(self._samples) == self._sampled
        ):
            return True
        if self.change() is not None:
            return False
        # Torch's check of layouts looks at more than layouts: requires_grad, and whether inference mode is on.
        self._layouts = _layouts(self.tensors)
        return True

    def change(self) -> str | None:
        """`fc.weight was written to`, of the first weight that has changed; None where none has."""
        return next((change for weight in self.weights if (change := weight.change())), None)

    def concerns(self, modules: Sequence[nn.Module], weights: Sequence[Weight]) -> bool:
        """It watches weights of one of these modules, or one of these weights."""
        mine = {id(root()) for root in self._roots} | {id(tensor) for tensor in self.tensors}
        return not mine.isdisjoint({*map(id, modules), *(id(weight.tensor) for weight in weights)})

    def install(self) -> None:
        """Have Dynamo make the guard when it finishes the version under way; nothing where it is not tracing."""
        context = TracingContext.try_get()
        if context is not None:
            context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(self._guard))

    def _guard(self, builder: Any, _: Any) -> None:
        """Dynamo keeps a guard as long as the weights are there: it may not hold the watch, which holds them."""
        known = weakref.ref(self)

        def holds(_: Any) -> bool:
            watch = known()
            return watch is not None and watch.holds()

        self.code = builder.f_code
        builder.id_ref(self._token, "the state of its frozen weights")
        last = builder.guard_manager.root.add_epilogue_lambda_guard
        words = ["no frozen weight has changed"]
        try:
            last(holds, words, None)
        except TypeError:  # up to 2.10 torch takes no stack beside them
            last(holds, words)

    def release(self) -> None:
        """Dynamo drops the version that this watch belongs to, and with it goes what it was made of."""
        self._token = None
        while self.let_go:
            self.let_go.pop()()


def _releasing(watch: Watch) -> Callable[[Any], None]:
    """For the end of a model, whose weights shall not live on in a watch."""
    known = weakref.ref(watch)

    def release(_: Any) -> None:
        if (still := known()) is not None:
            still.release()

    return release


def _layouts(tensors: Sequence[torch.Tensor]) -> Any:
    """Torch's own check of dtype, device, sizes and strides, in C++."""
    make: Any = TensorGuards
    return make(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    )


@define(eq=False, slots=False)
class FrozenWeights:
    """The watches of one compiled model. `policy` says what becomes of a change: `refreeze` or `error`."""

    policy: str
    shared: bool = False
    """Of whatever models come, not of one: only what concerns the model at hand is looked at."""
    watches: weakref.WeakValueDictionary[int, Watch] = field(factory=weakref.WeakValueDictionary)
    """{number: watch}, in the order of compilation."""
    worn: set[CodeType] = field(factory=set[CodeType])
    """Code whose list of versions has empty places."""
    uncounted: bool = False
    """A version was dropped since the lists were counted."""
    full: bool = False
    """One of the lists is full: what changes next would meet Dynamo's limit."""
    _count: Iterator[int] = field(factory=count)

    def __attrs_post_init__(self) -> None:
        _ALL.add(self)

    def watch(self, graph_module: fx.GraphModule) -> Watch | None:
        """A watch over the tensors that Dynamo made constants of this graph; None where it made none.

        What was frozen before and has changed since is dealt with first: let go, with one warning, or refused with a
        FrozenWeightError.
        """
        weights = weights_of(graph_module)
        self._settle(weights)
        if not weights:
            return None
        watch = Watch(weights)
        self.watches[next(self._count)] = watch
        watch.install()
        return watch

    def _settle(self, weights: Sequence[Weight]) -> None:
        at_hand = list(modules_at_hand().values())
        watches = [w for w in list(self.watches.values()) if not self.shared or w.concerns(at_hand, weights)]
        changes = {watch: change for watch in watches if (change := watch.change()) is not None}
        if changes:
            self._drop(changes)

    def _drop(self, changes: Mapping[Watch, str]) -> None:
        first = next((change for watch, change in changes.items() if watch.frozen), None)
        if first is not None and self.policy == "error":
            raise FrozenWeightError(
                f"a frozen weight has changed: {first}. Compile the model again for its new weights; with "
                "inductor.frozen_weights=refreeze that happens by itself, with inductor.freezing=false weights may "
                "change freely."
            )
        for watch in changes:
            watch.release()
            self.worn |= {watch.code} if watch.code is not None else set()
        self.uncounted = True
        if first is None:
            return
        warnings.warn(
            f"frozen weights have changed ({first}): they are frozen anew, and the graph is compiled again. "
            "With inductor.freezing=false weights may change freely.",
            RuntimeWarning,
            stacklevel=2,
        )

    def count_places(self) -> None:
        """After a call in which a version was dropped: is a list full that has empty places?"""
        self.uncounted, self.full = False, any(map(_is_full, self.worn))

    def make_room_for_changes(self) -> None:
        """Before a call that finds changed weights where a list is full, and Dynamo would refuse one version more."""
        changes = {watch: change for watch in list(self.watches.values()) if (change := watch.change()) is not None}
        if changes:
            self._drop(changes)
            self.make_room()

    def make_room(self) -> bool:
        """Between two calls: clear the lists of versions that are full and have empty places; whether one was."""
        full = set(filter(_is_full, self.worn))
        for watch in [watch for known in list(_ALL) for watch in list(known.watches.values()) if watch.code in full]:
            watch.release()
        for code in full:
            remove_from_cache(code)
        self.worn -= full
        self.uncounted = self.full = False
        return bool(full)


_ALL: weakref.WeakSet[FrozenWeights] = weakref.WeakSet()
"""Models of one class have their versions in one list."""


def _is_full(code: CodeType) -> bool:
    return len(_debug_get_cache_entry_list(code)) >= config.recompile_limit
