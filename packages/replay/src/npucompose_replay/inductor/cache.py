"""What Inductor does in every process and need not: graphs with frozen weights, templates, trials of instructions.

Knows where Inductor makes the key of a graph, reads a template and tries instructions (torch/_inductor/codecache.py,
codegen/common.py, cpu_vec_isa.py; torch 2.7 to 2.13).

# Note [The key of a graph with frozen weights]
A weight that is packed for a library cannot be pickled, so Inductor keeps no graph that has one: each process compiled
it anew. Of other frozen weights its key has how they lie and not their values, although what it keeps may be made of
the values (its templates of products pack weights in a way of their own). So the key of such a graph gets a digest of
all weights that it was frozen with, and the processor and the number of threads, for which kernels were timed. A packed
weight follows from these; of it the key has its form. What is kept never holds one: Inductor keeps the names of frozen
weights, and a later process has its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.codegen import common

from npucompose import private
from npucompose.machine import cache_dir, cpu_model


def mark_packed(graph_module: fx.GraphModule) -> None:
    """Have Inductor name the packed weights of a frozen graph, in what it keeps, instead of pickling them."""
    for node in graph_module.graph.find_nodes(op="get_attr"):
        value = getattr(graph_module, str(node.target), None)
        if isinstance(value, torch.Tensor) and value.is_mkldnn:
            value._is_frozen_param = True  # type: ignore[attr-defined]  # what Inductor looks for (freezing_utils.py)


@contextlib.contextmanager
def packed_weights_in_keys() -> Iterator[None]:
    """Graphs with packed weights have a key inside; whoever compiles one has put a digest of all weights into it."""
    pickler: Any = codecache.FxGraphCachePickler
    validator: Any = getattr(codecache, "CacheabilityValidator", None)
    reduce_tensor = pickler._reduce_tensor

    def reduced(self: Any, tensor: torch.Tensor) -> Any:
        if tensor.is_mkldnn:
            return codecache._ident, (("packed", tuple(tensor.shape), str(tensor.dtype)),)
        return reduce_tensor(self, tensor)

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(pickler, "_reduce_tensor", reduced))
        if hasattr(validator, "check_tensor"):
            stack.enter_context(replaced(validator, "check_tensor", staticmethod(lambda _: None)))
        yield


@contextlib.contextmanager
def probes_remembered() -> Iterator[None]:
    """Vector instructions that a program of Inductor's was built for and ran with are believed in later processes.

    It starts such a program in every process, before it looks for a kernel that is compiled already.
    """
    isa: Any = cpu_vec_isa.VecISA
    check_build = isa.check_build

    def remembered(self: Any, code: str) -> bool:
        known = "\0".join((str(self), self.build_arch_flags(), code, torch.__version__, cpu_model(), sys.version))
        place = cache_dir() / "instructions" / hashlib.sha256(known.encode()).hexdigest()[:16]
        if place.is_file() and private.doubt(place, cache_dir()) is None:
            return True
        if not check_build(self, code):
            return False
        with contextlib.suppress(OSError):
            private.make(place.parent, cache_dir())
            place.touch(mode=0o600)
        return True

    with replaced(isa, "check_build", remembered):
        yield


@contextlib.contextmanager
def templates_read_once() -> Iterator[None]:
    """Inductor's templates are parsed once inside, where it parses the same text for every product of a graph."""
    template: Any = common.KernelTemplate
    with replaced(template, "_template_from_string", staticmethod(functools.cache(template._template_from_string))):
        yield


@contextlib.contextmanager
def quick(*, keyed: bool) -> Iterator[None]:
    """All of these while a graph is compiled; `keyed` where a digest of its frozen weights is part of its key."""
    with probes_remembered(), templates_read_once(), packed_weights_in_keys() if keyed else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute that is another inside."""
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
