"""What only some targets can do, a protocol each: whoever wants it asks `isinstance(target, …)`, never for a name.

Knows no device. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import fx, nn

    from npucompose.models.inputs import Bound
    from npucompose.results.effective import Effective
    from npucompose.results.graphs import Partition
    from npucompose.results.sinking import NpuFacts
    from npucompose.results.streams import StreamTimes
    from npucompose.sinking import GeFacts
    from npucompose.targets.base import Target, VendorCompiler
    from npucompose.targets.compilation import Backend
    from npucompose.vendor.compiler import CompilerOptions


@runtime_checkable
class Warns(Protocol):
    def warnings(self, mode: str) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        ...


@runtime_checkable
class TakesGears(Protocol):
    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        """How to tell the device's compiler which sizes a dimension may have; None where a mode takes none."""
        ...


@runtime_checkable
class VendorCompiled(Protocol):
    """The vendor's own compiler makes the graphs."""

    def vendor_compiler(self, backend: Backend) -> VendorCompiler | None:
        """The vendor's own configuration and backend object; None in a mode that compiles nothing."""
        ...

    def overrides(self, mode: str, options: CompilerOptions) -> tuple[Effective, ...]:
        """What the vendor's compiler itself turns into something else than was asked."""
        ...

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """{operator: what AOTAutograd writes in its place} before the passes see a graph of this backend."""
        ...


@runtime_checkable
class CachesGraphs(Protocol):
    def cached(self, backend: Backend, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        """`module.forward`, compiled at its first call or loaded from the folder of caches (`ModeSupport.caches`)."""
        ...


@runtime_checkable
class ExportsGraphs(Protocol):
    def export(self, backend: Backend, module: nn.Module, call: Bound, dynamic: bool | None) -> None:
        """Write the graph of `module`, called so, for offline use (`ModeSupport.exports`)."""
        ...


@runtime_checkable
class CountsRecordings(Protocol):
    def recordings(self, backend: Backend) -> list[Mapping[str, Any]]:
        """What `recording_facts` says, of recordings that lie with the vendor."""
        ...


@runtime_checkable
class HasMemory(Protocol):
    """Memory that is not the process's own."""

    def device_memory(self) -> Mapping[str, int]:
        """What the device's allocator says so far, by the names of `Memory`: `device_peak_bytes`, …"""
        ...


@runtime_checkable
class SharesMemory(Protocol):
    """Recordings of several graphs may compute in one place."""

    def common_memory(self) -> Any:
        """What the recordings of all graphs of one backend compute in, taking turns; None: no graph shares with others.

        Asked for once for each backend and handed to `lower` with each of its graphs.
        """
        ...


@runtime_checkable
class CutsGraphs(Protocol):
    """A graph that cannot be recorded whole is cut."""

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        """How `lower` would cut the graph, as far as the graph itself tells; None where nothing of it is recorded."""
        ...


@runtime_checkable
class TimesStreams(Protocol):
    def stream_times(self, backend: Backend) -> Mapping[str, StreamTimes]:
        """{graph: how its streams run}, measured on replays of its own."""
        ...


@runtime_checkable
class HasVendorFacts(Protocol):
    def device_facts(self, backend: Backend) -> NpuFacts | None:
        """What came out on the vendor's side, for the report; None in a mode that has no such side."""
        ...


@runtime_checkable
class HasVendorTexts(Protocol):
    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        """{file name: text} to lie beside the FX graphs."""
        ...


@runtime_checkable
class SeesGeGraphs(Protocol):
    def ge_facts(self, backend: Backend) -> tuple[GeFacts, ...]:
        """The graphs that were handed to GE, in the order of the FX graphs."""
        ...


def recording_facts(target: Target, backend: Backend) -> list[Mapping[str, Any]]:
    """What was recorded so far: `seconds`, `kernels`; where it is known `executor`, `pool_bytes`, …"""
    if isinstance(target, CountsRecordings):
        return target.recordings(backend)
    return [g.facts() for c in backend.compilations if c.lowered is not None for g in c.lowered.captured]


def device_memory(target: Target) -> Mapping[str, int]:
    """{} where the device is the process's own, or says nothing."""
    return target.device_memory() if isinstance(target, HasMemory) else {}


def device_facts(target: Target, backend: Backend) -> NpuFacts | None:
    """None where there is no vendor's side."""
    return target.device_facts(backend) if isinstance(target, HasVendorFacts) else None


def device_texts(target: Target, backend: Backend) -> Mapping[str, str]:
    return target.device_texts(backend) if isinstance(target, HasVendorTexts) else {}


def decompositions(target: Target, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
    """{operator: what AOTAutograd writes in its place} in a graph that is only read, as the compiler would have it."""
    if isinstance(target, VendorCompiled):
        return target.decompositions(backend)
    if not target.support(backend.mode).fuses:
        return {}
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()
