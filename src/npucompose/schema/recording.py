"""Options of targets that record: what is recorded when, in which memory, by whose kernels. Says nothing of how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve, frozen

from npucompose.table.options import option
from npucompose.vendor.compiler import CompilerOptions

ReplayExecutor = Literal["auto", "native", "portable"]
WhenFull = Literal["eager", "replace"]
WhenNew = Literal["earned", "at_once"]
PoolOf = Literal["model", "graph"]


def when_full_option() -> Any:
    return option(
        "eager",
        "a new signature beyond the capture limit: runs eagerly, or replaces the recording used longest ago",
    )


def when_new_option() -> Any:
    return option(
        "earned",
        "a new signature after the first two of a graph: recorded when calls make up for its cost (earned), or at once",
    )


def pool_option() -> Any:
    return option(
        "model",
        "which recordings share memory and run one at a time: those of all graphs of a model, or of each graph alone",
    )


@frozen
class CacheOptions:
    """TorchAir's options that mean the same here: how many signatures are captured, whether outputs are cloned."""

    capture_limit: str
    clone_output: str
    act: bool = True
    """Whether the mode knows them; where it does not, their defaults hold."""

    @property
    def supported(self) -> frozenset[str]:
        return frozenset((self.capture_limit, self.clone_output)) if self.act else frozenset()

    def values(self, options: CompilerOptions) -> tuple[int, bool]:
        """(the limit, whether outputs are cloned)."""
        value = options.__getitem__ if self.act else options.default
        return value(self.capture_limit), value(self.clone_output)


_ACLGRAPH = CacheOptions("debug.aclgraph.static_capture_size_limit", "debug.aclgraph.enable_output_clone")
CACHE_OPTIONS: Mapping[str, CacheOptions] = {
    "max-autotune": evolve(_ACLGRAPH, act=False),
    "reduce-overhead": _ACLGRAPH,
    "npugraph_ex": CacheOptions("npugraph_ex.capture_limit", "npugraph_ex.clone_output"),
}
"""Of the modes that record, somewhere."""
