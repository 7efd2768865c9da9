"""Calls of what torch.compile made: beyond Dynamo's versions, and counted.

# Note [Beyond Dynamo's versions]
torch keeps `torch._dynamo.config.recompile_limit` (8) versions of one function. The call for which it would make one
more raises under fullgraph, before anything of the function has run. From then on the function is compiled as under
shapes=auto: what changes from call to call becomes a symbol, and one version serves the shapes that are left, with a
recording for each signature where the mode records. A function that makes a version of its own all the same for every
call (its code reads a size, or a number) runs eagerly when as many versions again are made.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from attrs import define, field
from torch._dynamo import config, eval_frame
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.utils._pytree import tree_flatten

_UNLIMITED = 1 << 30
_MOST_REMEMBERED = 4096
"""Calls that are known to be beyond all versions. A call that is forgotten costs a try (some ms), nothing else."""


class Versions:
    """`call(*args, **kwargs)` is `compiled(*args, **kwargs)`; see Note [Beyond Dynamo's versions].

    `with_symbols()` compiles the function anew with dynamic=None, `eager` is the function itself.
    """

    def __init__(
        self, compiled: Callable[..., Any], *, with_symbols: Callable[[], Callable[..., Any]], eager: Callable[..., Any]
    ) -> None:
        self._compiled = compiled
        self._with_symbols: Callable[[], Callable[..., Any]] | None = with_symbols
        self._eager = eager
        self._left = 0
        """Versions beyond torch's limit that may be made yet."""
        self._beyond: set[Any] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._beyond and _form(args, kwargs) in self._beyond:
            return self._eager(*args, **kwargs)
        try:
            return self._compiled(*args, **kwargs)
        except FailOnRecompileLimitHit:
            pass  # handled outside, so that what is raised there does not carry this one along
        return self._another(args, kwargs)

    def _another(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._with_symbols is not None:
            self._compiled, self._with_symbols = self._with_symbols(), None
            self._left = config.recompile_limit
        if self._left > 0:
            self._left -= 1
            try:
                with config.patch(recompile_limit=_UNLIMITED, accumulated_recompile_limit=_UNLIMITED):
                    return self._compiled(*args, **kwargs)
            except TorchDynamoException as error:
                why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error).strip() else ""
        else:
            why = "every call wants a version of its own"
        if not self._beyond:
            warnings.warn(
                f"torch.compile has made all the versions of one function that it keeps ({why}): calls that fit none "
                "of them run eagerly from now on. TORCH_LOGS=recompiles shows what changes between the calls.",
                RuntimeWarning,
                stacklevel=3,
            )
        if len(self._beyond) == _MOST_REMEMBERED:
            self._beyond.clear()
        self._beyond.add(_form(args, kwargs))
        return self._eager(*args, **kwargs)


def _form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a version may depend on, roughly: two calls of one form may still want two versions."""
    leaves, spec = tree_flatten((args, kwargs))
    structure = str(spec)  # which torch 2.7 cannot hash
    return structure, tuple(
        (leaf.dtype, leaf.device, leaf.shape, leaf.stride())
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf if isinstance(leaf, (int, float, str, bytes)) else None)
        for leaf in leaves
    )


@define(eq=False)
class Repeated:
    """`watched(called, graph)` counts until `close()`; runs on other shapes are recorded apart, and count apart."""

    _seen: Counter[tuple[str, tuple[Any, ...]]] = field(factory=Counter)
    _open: bool = True

    def watched(self, called: Callable[..., Any], graph: str) -> Callable[..., Any]:
        @functools.wraps(called, updated=())
        def call(*args: Any) -> Any:
            if self._open:
                self._seen[graph, tuple(a.shape if isinstance(a, torch.Tensor) else a for a in args)] += 1
            return called(*args)

        return call

    def close(self) -> Mapping[str, int]:
        """{graph: runs}, of those that ran more than once."""
        self._open = False
        found: dict[str, int] = {}
        for (graph, _), runs in self._seen.items():
            found[graph] = max(runs, found.get(graph, 0))
        return {graph: runs for graph, runs in found.items() if runs > 1}


# Calls of torch.compile(fullgraph=True) from several threads.
# Note [One counter for all threads]
# Since torch 2.12 such a call raises where no compiled frame ran in it. torch 2.12 and 2.13 count the frames in one
# variable of the process (pytorch#185138 gives each thread its own), which each call begins and, twice, ends: of
# three threads one ends the second's count, and what the second then looks at is the third's, which is 0. A call that
# has run, with all that it wrote, raises "found no compiled frames". Here a call ends its own count once, and is not
# asked for it where another thread's call was under way.

NAME = "set_fullgraph_compiled_frame_count"
OUTSIDE = -1
"""What torch's counter holds, and is set to, where no such call is under way."""


@define(eq=False)
class CountByThread:
    """`self(value)` is torch's `count(value)`: sets the counter, and answers with what it held."""

    count: Callable[[int], int]
    _lock: Any = field(factory=threading.Lock)
    _inside: dict[int, bool] = field(factory=dict[int, bool])
    """{thread with a call under way: another one's was, meanwhile}."""

    def __call__(self, value: int) -> int:
        with self._lock:
            return self._left() if value == OUTSIDE else self._entered(value)

    def forked(self) -> None:
        """A child has the thread that forked, and no other."""
        me = threading.get_ident()
        self._lock = threading.Lock()
        self._inside = {me: self._inside[me]} if me in self._inside else {}

    def _entered(self, value: int) -> int:
        me = threading.get_ident()
        nested, held = me in self._inside, self.count(value)
        if nested:
            return held
        self._inside.update(dict.fromkeys(self._inside, True))
        self._inside[me] = bool(self._inside)
        return OUTSIDE

    def _left(self) -> int:
        overlapped = self._inside.pop(threading.get_ident(), False)
        held = OUTSIDE if self._inside else self.count(OUTSIDE)
        return max(held, 1) if overlapped else held


@cache
def count_by_thread() -> None:
    """From now on, in this process; nothing where torch has no such counter, or one for each thread."""
    count = getattr(eval_frame, NAME, None)
    if count is not None and not isinstance(count, CountByThread) and _is_shared(count):
        by_thread = CountByThread(count)
        setattr(eval_frame, NAME, by_thread)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=by_thread.forked)


def _is_shared(count: Callable[[int], int]) -> bool:
    before, seen = count(0), list[int]()
    asking = threading.Thread(target=lambda: seen.append(count(before)))
    asking.start()
    asking.join()
    count(before)
    return seen == [0]
