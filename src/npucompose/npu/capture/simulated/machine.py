"""The machine that a model under the simulated capture believes to run on: its runtime, where its tensors lie, the
current stream of each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from npucompose.graphs.effects import tensors_in
from npucompose.npu.capture.simulated.memory import CaptureMemory
from npucompose.npu.capture.simulated.runtime import DEFAULT, CaptureRuntime

# Where a tensor would lie on a machine with an NPU, while all of them lie on this one's memory.
# What the model is called with, its parameters and buffers and what kernels make of them lie on the device; what is
# made without a device, or for the CPU, lies on the host. A storage is the device's unless it was put down as the
# host's.

Place = Literal["device", "host", "pinned"]
DEVICE = torch.device("cpu", 0)
"""What stands for the device: `x.device` says so, and the `device="cpu"` of a model's source, without an index, not."""
DEVICE_NAMES = ("npu", "cuda", "privateuseone")


class Places:
    """The storages of the host, which are kept so that no other gets their number."""

    def __init__(self) -> None:
        self._host: dict[int, tuple[torch.UntypedStorage, Place]] = {}
        self._built: dict[int, torch.UntypedStorage] | None = {}
        """What was made on the device while the model was built; None from then on."""

    def put(self, value: Any, place: Place) -> None:
        """What a call has made lies there."""
        for tensor in tensors_in(value):
            storage = tensor.untyped_storage()
            if place != "device":
                self._host[storage._cdata] = (storage, place)
            else:
                self._host.pop(storage._cdata, None)
                if self._built is not None:
                    self._built[storage._cdata] = storage

    def of(self, tensor: torch.Tensor) -> Place:
        if tensor.layout is not torch.strided:
            return "device"
        known = self._host.get(tensor.untyped_storage()._cdata)
        return "device" if known is None else known[1]

    def on_host(self, tensor: torch.Tensor) -> bool:
        return self.of(tensor) != "device"

    def moved(self, module: nn.Module) -> None:
        """The model is built, and moved to the device with its parameters and buffers.

        A tensor that is a plain attribute stays where it was made, unless it shares the memory of one of those.
        """
        made, self._built = self._built or {}, None
        with_it = {one.untyped_storage()._cdata for one in (*module.parameters(), *module.buffers())}
        self._host = {number: known for number, known in self._host.items() if number not in with_it}
        for tensor in _attributes(module):
            number = tensor.untyped_storage()._cdata
            if number not in with_it and number not in made and number not in self._host:
                self.put(tensor, "host")


def _attributes(module: nn.Module) -> Iterator[torch.Tensor]:
    for one in module.modules():
        for name, value in vars(one).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _tensors(value)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    kinds = (torch.Tensor, list, tuple, dict)
    return (one for one in tensors_in(value) if one.layout is torch.strided) if isinstance(value, kinds) else ()


def place_of_device(device: Any) -> Place | None:
    """Where `device=…` of a call puts its result; None where the call names no device.

    `place_of_device("npu:0")` is "device", `place_of_device("cpu")` "host"; a number is an index of the device.
    """
    if device is None:
        return None
    if isinstance(device, int):
        return "device"
    kind = str(device).partition(":")[0]
    return "device" if kind in DEVICE_NAMES or device == DEVICE else "host"


def names_npu(device: Any) -> bool:
    """`npu`, `npu:0`: torch knows the name with torch_npu alone."""
    return isinstance(device, str) and device.partition(":")[0] == "npu"


def spelled(device: Any) -> str:
    """A device as the model's author knows it: `npu:0`, whatever stands for it here."""
    return "npu:0" if isinstance(device, torch.device) and device == DEVICE else str(device)


class SimulatedMachine:
    """`SimulatedMachine(CaptureRuntime())`: nothing is captured yet."""

    def __init__(self, runtime: CaptureRuntime) -> None:
        self.runtime = runtime
        self.places = Places()
        self.memory = CaptureMemory(self.places.on_host)
        self.used: set[str] = set()
        """Lines that call streams, events or collectives: torch.compile cannot trace them here."""
        self.registered: list[Any] = []
        """Generators that a graph was given."""
        self.draws: dict[str, None] = {}
        """Lines that draw random numbers on the device, in order."""
        self.generator: Any = None
        """That of the call that is being made: torch wraps it anew for each operator."""
        self.quiet = False
        """What is called now asks for data on this machine and not on a device."""
        self._streams: dict[int, list[int]] = {}

    @property
    def streams(self) -> list[int]:
        """This thread's: the current one is the last, and a thread begins on the default stream."""
        return self._streams.setdefault(threading.get_ident(), [DEFAULT])

    @property
    def stream(self) -> int:
        return self.streams[-1]

    def note_use(self, line: str | None) -> None:
        if self.runtime.capturing and line is not None:
            self.used.add(line)

    def note_draw(self, line: str | None) -> None:
        if self.runtime.capturing and line is not None:
            self.draws[line] = None

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """What torch does in here is this machine's own business."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before
