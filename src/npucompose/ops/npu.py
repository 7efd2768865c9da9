"""torch.ops.npu.*: every operator of torch_npu, with what this machine has of it.

Schemas are those of the wheel that is found here, else of the list that npucompose brings. The form of the results
comes from our own meta function, else from the wheel's; values from a reference kernel of this package, else there are
none: such an operator can be traced, and calling it is refused, but for within `forms_for_values`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from attrs import define as mutable
from attrs import field
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.errors import ConfigError, NpuComposeError
from npucompose.ops import attention, attention_v2, caches, functionalised, fused, meta_functions, quantised, routing
from npucompose.ops.catalogue import Catalogue, shipped
from npucompose.ops.forms import form
from npucompose.ops.meta_functions import MetaFunctions
from npucompose.vendor.devices import device_of
from npucompose.vendor.wheel_operators import operators

Function = Callable[..., Any]
KERNELS: Mapping[str, Function] = {
    name: kernel
    for part in (attention, attention_v2, fused, routing, quantised, caches)
    for name, kernel in part.KERNELS.items()
}
"""{operator: its reference kernel}."""
METAS: Mapping[str, Function] = {
    **KERNELS,
    **attention.METAS,
    **attention_v2.METAS,
    **fused.METAS,
    **quantised.METAS,
    **caches.METAS,
}
"""{operator: what gives the form of its results}: the kernel itself where nothing else is needed."""
_LIBRARIES: list[torch.library.Library] = []


class NoShape(NpuComposeError):
    """Nothing here knows the form of an operator's results; `source` is the model's line that calls it. No
    NotImplementedError, which torch takes for an operator without a meta function."""

    def __init__(self, words: str, *, operator: str = "", source: str | None = None) -> None:
        super().__init__(f"torch.compile cannot make one graph of the model at {source}: {words}" if source else words)
        self.why, self.operator, self.source = words, operator, source


class NoKernel(NpuComposeError, NotImplementedError):
    """An operator is called for its values, and this machine has no kernel for it."""


@mutable(kw_only=True, eq=False)
class Sources:
    """Where the operators of this process come from."""

    catalogue: Catalogue = field(factory=shipped)
    locate: Callable[[], Path] = field(default=lambda: _nowhere())
    """Finds the unpacked wheel, or raises ConfigError that says why there is none."""
    soc: str | None = None
    """The system on chip that the wheel's meta functions are asked for."""
    functions: MetaFunctions | None = None
    """Of the wheel, once they were asked for."""
    formed: set[str] | None = None
    """Names of the operators that gave forms in place of values; None where that is not wanted."""
    forming: bool = False
    breaks: bool = False
    """An operator whose shapes are not known breaks the graph, as one that has no meta function anywhere."""
    ours: set[str] = field(factory=set)
    """Overloads that were defined here."""

    def shapes(self, name: str) -> Function:
        """The wheel's meta function of an overload. NotImplementedError where it has none, as torch expects it."""
        no_wheel = self._load()
        if self.functions is not None and name in self.functions:
            return self.functions[name]
        if no_wheel is None or operators(self.catalogue.version).row(f"npu::{name}").meta == "none":
            raise NotImplementedError(no_meta_function(name))
        unknown = f"the shapes of torch.ops.npu.{name} are not known: its meta function is in the torch_npu wheel"
        if self.breaks:
            raise NotImplementedError(unknown)
        raise NoShape(f"{unknown}; {no_wheel}", operator=name)

    def _load(self) -> str | None:
        """Load the wheel's meta functions; why that cannot be done, without the full stop."""
        if self.functions is not None:
            return None
        try:
            root = self.locate() / "torch_npu"
        except ConfigError as error:
            return str(error).rstrip(".")
        self.functions = meta_functions.load(root, device_of(self.soc).number)
        return None


def _nowhere() -> Path:
    raise ConfigError("no wheel was looked for")


SOURCES = Sources()


def define(
    catalogue: Catalogue | None = None, *, locate: Callable[[], Path] | None = None, soc: str | None = None
) -> None:
    """Make every operator of the catalogue exist that torch_npu has not defined; what is there stays.

    A later call with another catalogue adds the operators and the shapes that only it knows.
    """
    if locate is not None:
        SOURCES.locate, SOURCES.functions, SOURCES.soc = locate, None, soc
    known = SOURCES.catalogue = catalogue or SOURCES.catalogue
    packets = {name.partition(".")[0] for name in SOURCES.ours}
    library = torch.library.Library("npu", "FRAGMENT")
    _LIBRARIES.append(library)  # a library's operators live as long as the object
    made: list[str] = []
    for name, schema in known.schemas.items():
        packet = name.partition(".")[0]
        if name not in SOURCES.ours and (packet in packets or not _exists(packet)):
            library.define(schema)
            SOURCES.ours.add(name)
            packets.add(packet)
            if name in known.effects:
                has_side_effect(overload(name))
            library.impl(name, _shape(name), "Meta")
            for key in _keys(name, schema):
                library.impl(name, value(name), key)
            made.append(name)
    functionalised.register(library, made, overload)


def _exists(packet: str) -> bool:
    return hasattr(torch.ops.npu, packet) or hasattr(torch.ops.aten, packet)


def _keys(name: str, schema: str) -> tuple[str, ...]:
    """Every device that this machine may have."""
    return ("CPU", "CUDA") if takes_tensors(schema) and name not in KERNELS else ("CompositeExplicitAutograd",)


def takes_tensors(schema: str) -> bool:
    """What does not is dispatched by no device."""
    return "Tensor" in schema.rpartition("->")[0]


def overload(name: str) -> torch._ops.OpOverload:
    """`overload("npu_max.dim")` is torch.ops.npu.npu_max.dim."""
    packet, _, last = name.partition(".")
    return getattr(getattr(torch.ops.npu, packet), last or "default")


def _shape(name: str) -> Function:
    """What gives the form of the results: ours, and where ours refuses an argument or there is none, the wheel's."""
    own = METAS.get(name)

    def shape(*args: Any, **kwargs: Any) -> Any:
        if own is None:
            return SOURCES.shapes(name)(*args, **kwargs)
        try:
            return own(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  raised again where the wheel knows no form either
            try:
                other = SOURCES.shapes(name)
            except (NoShape, NotImplementedError):
                raise error from None
            return other(*args, **kwargs)

    return shape


def value(name: str, kernel: Function | None = None) -> Function:
    """What computes the results: the given or the reference kernel, and where it refuses an argument or there is none,
    nothing; but zeros of the right form within `forms_for_values`."""
    kernel = kernel or KERNELS.get(name)

    def compute(*args: Any, **kwargs: Any) -> Any:
        if kernel is not None:
            try:
                return kernel(*args, **kwargs)
            except Exception:
                if SOURCES.formed is None:
                    raise
        if SOURCES.formed is None:
            raise NoKernel(
                f"torch.ops.npu.{name} has no reference kernel: on this machine a model with it can be explained "
                "(npucompose explain), and not be run. An NPU runs it (target=npu)."
            )
        if SOURCES.forming:  # torch has taken this for what says the form
            raise NoShape(no_meta_function(name), operator=name)
        SOURCES.formed.add(name)
        SOURCES.forming = True
        try:
            with _disable_current_modes():
                return form(overload(name), args, kwargs)
        except NoShape:
            raise
        except (UnsupportedOperatorException, NotImplementedError) as error:
            raise NoShape(no_meta_function(name), operator=name) from error
        except Exception as error:
            words = " ".join(str(error).split())
            raise NoShape(
                f"the meta function of torch.ops.npu.{name} in torch_npu {SOURCES.catalogue.version} does not take "
                f"this call: {type(error).__name__}: {words}",
                operator=name,
            ) from error
        finally:
            SOURCES.forming = False

    return torch._dynamo.disable(compute)  # on a device this is C++, into which Dynamo does not look


@contextmanager
def forms_for_values() -> Iterator[set[str]]:
    """In here an operator without a kernel gives zeros of the right form. Yields the names of those that did."""
    before, SOURCES.formed = SOURCES.formed, set()
    try:
        yield SOURCES.formed
    finally:
        SOURCES.formed = before


@contextmanager
def breaking_where_unknown() -> Iterator[None]:
    """In here torch.compile cuts a graph before an operator whose shapes are not known, if it may cut any."""
    SOURCES.breaks = True
    try:
        yield
    finally:
        SOURCES.breaks = False


def no_meta_function(name: str) -> str:
    """Why the form of an operator's results is not known: without a meta function it is known nowhere."""
    return (
        f"torch_npu {SOURCES.catalogue.version} has no meta function for torch.ops.npu.{name}, so that torch.compile "
        "can put it into no graph, on a device as here"
    )
