"""What only a target with a compiler of the vendor's can do, a protocol each, and the same questions for any target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing import Any

    from torch import nn

    from npucompose.models.inputs import Bound
    from npucompose.npu.static_graph.facts import GeFacts
    from npucompose.npu.torchair.records import NpuFacts
    from npucompose.results.effective import Effective
    from npucompose.targets.backend import Backend
    from npucompose.targets.base import VendorCompiler
    from npucompose.vendor.compiler import CompilerOptions


@runtime_checkable
class VendorCompiled(Protocol):
    """The vendor's own compiler makes the graphs."""

    def vendor_compiler(self, backend: Backend) -> VendorCompiler | None:
        """The vendor's own configuration and backend object; None in a mode that compiles nothing."""
        ...

    def overrides(self, mode: str, options: CompilerOptions) -> tuple[Effective, ...]:
        """What the vendor's compiler itself turns into something else than was asked."""
        ...

    def device_facts(self, backend: Backend) -> NpuFacts | None:
        """What came out on the vendor's side, for the report; None where nothing was compiled."""
        ...

    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        """{file name: text} to lie beside the FX graphs."""
        ...

    def ge_facts(self, backend: Backend) -> tuple[GeFacts, ...]:
        """The graphs that were handed to GE, in the order of the FX graphs."""
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


def device_facts(backend: Backend) -> NpuFacts | None:
    """What came out on the vendor's side; None where there is no such side."""
    target = backend.target
    return target.device_facts(backend) if isinstance(target, VendorCompiled) else None


def device_texts(backend: Backend) -> Mapping[str, str]:
    """{file name: text} to lie beside the FX graphs; {} where no vendor's compiler made any."""
    target = backend.target
    return target.device_texts(backend) if isinstance(target, VendorCompiled) else {}


def ge_facts(backend: Backend) -> tuple[GeFacts, ...]:
    """The graphs that were handed to GE, in the order of the FX graphs."""
    target = backend.target
    return target.ge_facts(backend) if isinstance(target, VendorCompiled) else ()
