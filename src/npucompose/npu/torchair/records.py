"""What came out on the vendor's side: TorchAir's graphs, its cache, what its recordings did; report.json's `npu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

CacheUse = Literal["saved", "loaded", "not saved"]


@frozen(kw_only=True)
class GeGraph:
    """One graph as TorchAir hands it to GE, before GE does anything to it."""

    name: str
    nodes: int
    types: Mapping[str, int] = field(factory=dict[str, int])
    """{operator type: how often}."""
    data: Mapping[str, str] = field(factory=dict[str, str])
    """{Data node: `FLOAT [4, 16] NPU`}; -1 is a dimension that GE does not know."""
    shapes: Literal["static", "dynamic"]
    options: Mapping[str, str] = field(factory=dict[str, str])
    """Options of this graph (TorchAir's local ones)."""
    streams: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `_user_stream_label`}."""
    cores: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `8 cube, 16 vector`}: at most so many (`_op_aicore_num`, `_op_vectorcore_num`)."""
    super_kernels: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `_super_kernel_scope`}."""
    control_edges: tuple[str, ...] = ()
    """`MatMul -> Abs`: the second runs after the first though it reads nothing of it."""


@frozen(kw_only=True)
class NpuFacts:
    """What TorchAir made, and what it had the device do. Counts are null where nobody could count."""

    package: Literal["torchair", "npugraph_ex"]
    version: str
    platform: str
    """`device`, or `simulated` on a machine without CANN."""
    config: Mapping[str, Any] = field(factory=dict[str, Any])
    """The own as_dict() of TorchAir's configuration."""
    fx_graphs: int
    taken: int = 0
    """Graphs that TorchAir took, whatever it made of them."""
    uncompiled: int = 0
    """Those of which it made no graph of its own: it ran the FX graph, operator by operator."""
    eager_calls: int = 0
    """Calls of its captured graphs that ran the FX graph, and no capture."""
    calls_beyond: int = 0
    """Calls for which torch.compile had reached its limit of recompilations, and ran the model itself."""
    ge_graphs: tuple[GeGraph, ...] = ()
    global_options: Mapping[str, str] = field(factory=dict[str, str])
    """What GE is initialised with, once a process."""
    captures: int | None = None
    replays: int | None = None
    task_updates: int | None = None
    event_records: int | None = None
    event_waits: int | None = None
    streams: int | None = None
    """Streams that carry a kernel of a recording."""
    core_limits: int | None = None
    """How often a recording sets a stream's limit of cores; a region sets it and takes it back."""
    cache: CacheUse | None = None
    """What cache_compile did in this process; a loaded graph is compiled by nobody, so that `fx_graphs` is 0."""
    patched: tuple[str, ...] = ()
    """Functions of torch.distributed that patch_for_hcom replaced."""
    files: tuple[str, ...] = ()
    """What TorchAir wrote, below `torchair/` in the run directory."""
    not_written: tuple[str, ...] = ()
    """What a device writes besides: CANN makes it."""
    unordered: tuple[str, ...] = ()
    """Kernels on two streams that touch the same memory with no event between them."""

    @property
    def compiled(self) -> bool | None:
        """Whether every call ran a graph of TorchAir's making; None where it took no graph."""
        return None if not self.taken else not (self.uncompiled or self.eager_calls or self.calls_beyond)
