"""What moves a tensor's values to the host by its own name: refused in a capture as the device refuses it.

Tensors of this process lie on the CPU, where `x.cpu()` is nothing that torch's dispatcher sees. So methods of
torch.Tensor ask the device first. While no capture is open they are torch's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from npu_simulator.device import SimulatedDevice
from npu_simulator.recorder import Recorder

COPIES = {"cpu": "x.cpu()", "numpy": "x.numpy()", "tolist": "x.tolist()", "__array__": "an array of numpy"}


def install(device: SimulatedDevice) -> None:
    for name, what in COPIES.items():
        _before(
            name, device, lambda tensor, args, kwargs, what=what: device.copied(tensor, f"{what} copies to the host")
        )
    _before("to", device, lambda tensor, args, kwargs: _moved(device, tensor, args, kwargs))
    _before("__repr__", device, lambda tensor, args, kwargs: device.printed(tensor))
    _before("new_tensor", device, lambda tensor, args, kwargs: _filled(device, tensor, kwargs))
    _watch_threads(device)


def _before(name: str, device: SimulatedDevice, asked: Callable[..., None]) -> None:
    """The method of that name asks first."""
    original = getattr(torch.Tensor, name)

    @wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if device.runtime.capturing:
            asked(self, args, kwargs)
        return original(self, *args, **kwargs)

    del method.__wrapped__  # most are torch's C++, which has no signature to show
    setattr(torch.Tensor, name, method)


def _moved(device: SimulatedDevice, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`x.to("cpu")`: a copy that the source names. A torch.device of the CPU is the tensors' own here."""
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, str) and target.partition(":")[0] == "cpu":
        waits = not (kwargs.get("non_blocking") or True in args[1:])
        device.copied(tensor, f"x.to({target!r}) copies to the host", blocking=waits)


def _filled(device: SimulatedDevice, tensor: torch.Tensor, kwargs: dict[str, Any]) -> None:
    if "device" not in kwargs:
        device.copied(tensor, "x.new_tensor copies from the host")


def _watch_threads(device: SimulatedDevice) -> None:
    """A thread that begins while a capture is open is seen too."""
    start = threading.Thread.start

    def watched(thread: threading.Thread) -> None:
        if device.runtime.capturing:
            run = thread.run

            def under_the_recorder() -> None:
                with Recorder(device):
                    run()

            thread.run = under_the_recorder  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = watched  # type: ignore[method-assign]
