"""`torch.npu`, `torch.cuda`, generators and the collectives of torch.distributed as a model under the simulated capture
finds them.

Each call asks the simulated runtime; none needs a device. What is replaced is put back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from npucompose.npu.capture.collectives import collectives
from npucompose.npu.capture.compiled_module import CompiledModule
from npucompose.npu.capture.generators import Seeds, refusing_generators
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.machine import SimulatedMachine
from npucompose.npu.capture.npu_module import accelerator, npu_module, shared
from npucompose.npu.capture.places import DEVICE, names_npu
from npucompose.npu.capture.streams import Api
from npucompose.npu.capture.watch import watching


@contextmanager
def simulated(machine: SimulatedMachine) -> Iterator[None]:
    """In here streams, events, collectives, generators, seeds, threads and `torch.cond` are those of `machine`."""
    api, seeds = Api(machine), Seeds(machine)
    npu = npu_module(api, seeds)
    with ExitStack() as stack:
        put = stack.enter_context
        put(patch.object(torch, "npu", npu, create=True))
        vendor = sys.modules.get("torch_npu")
        if vendor is not None:
            compiled = CompiledModule(api, vendor._C)
            own = dict.fromkeys(("torch_npu.npu", "torch_npu.npu.streams", "torch_npu.npu.graphs"), npu)
            put(patch.dict(sys.modules, {**own, "torch_npu._C": compiled}))
            put(patch.object(vendor, "npu", npu))
            put(patch.object(vendor, "_C", compiled))
        _replace(put, torch.cuda, shared(api, seeds, "torch.cuda"))
        _replace(put, torch.accelerator, accelerator(api))
        for name in ("from_numpy", "frombuffer"):
            put(patch.object(torch, name, _on_host(machine, getattr(torch, name))))
        put(patch.object(torch.Tensor, "npu", _moved, create=True))
        put(patch.object(torch.Tensor, "is_npu", property(lambda x: not machine.places.on_host(x)), create=True))
        put(patch.object(torch, "Generator", refusing_generators(machine)))
        put(patch.object(torch, "device", device_class(api)))
        put(patch.object(torch, "Stream", standing_for(torch.Stream, api.Stream)))
        put(patch.object(torch, "Event", standing_for(torch.Event, api.Event)))
        put(patch.object(torch, "autocast", autocast_class()))
        put(patch.object(torch, "manual_seed", seeds.seeding(torch.manual_seed)))
        put(patch.object(torch, "cond", _choosing(api)))
        put(patch.object(threading.Thread, "start", _starting(api, threading.Thread.start)))
        _replace(put, torch.distributed, collectives(machine, api.line))
        yield


def _on_host(machine: SimulatedMachine, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Memory of numpy's, or of a buffer, lies on the host."""

    def made(*args: Any, **given: Any) -> torch.Tensor:
        tensor = original(*args, **given)
        machine.places.put(tensor, "host")
        return tensor

    return made


def device_class(api: Api) -> type:
    """What stands as `torch.device`: it knows `npu`, which torch knows with torch_npu alone."""
    original = torch.device

    class AnyDevice(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, *named: Any, **given: Any) -> Any:
            kind = named[0] if named else given.get("type")
            if not (names_npu(kind) or isinstance(kind, int)):
                return original(*named, **given)
            api.line()
            return DEVICE

    return AnyDevice("device", (), {})


def standing_for(original: type, made: type) -> type:
    """What stands as `torch.Stream` or `torch.Event`: it makes those of this machine, and knows torch's as its own."""

    class OfTheDevice(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Any = None, **given: Any) -> Any:
            return made(**given)

    return OfTheDevice(original.__name__, (), {})


def autocast_class() -> type:
    """What stands as `torch.autocast`: it takes the device's name, and casts as this machine does."""

    class autocast(torch.autocast):
        def __init__(self, device_type: str, dtype: torch.dtype | None = None, **more: Any) -> None:
            own = names_npu(device_type)
            super().__init__("cpu" if own else device_type, torch.float16 if own and dtype is None else dtype, **more)

    return autocast


def _moved(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **more: Any) -> torch.Tensor:
    """`x.npu()`, as torch_npu adds it to a tensor."""
    return tensor.to("npu" if device is None else device, non_blocking=non_blocking, **more)


def _replace(put: Callable[[Any], Any], module: Any, functions: Mapping[str, Any]) -> None:
    for name, function in functions.items():
        if hasattr(module, name):
            put(patch.object(module, name, function))


def _choosing(api: Api) -> Callable[..., Any]:
    """`torch.cond`: the branch that the data choose, which a host would have to read."""

    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if isinstance(pred, torch.Tensor):
            api.runtime.refuse("conditional", "torch.cond reads its condition on the host", model_line())
            pred = _value(api, pred)
        return (true_fn if pred else false_fn)(*operands)

    return cond


def _value(api: Api, tensor: torch.Tensor) -> bool:
    """Read without a question to the runtime."""
    before, api.machine.quiet = api.machine.quiet, True
    try:
        with torch._C.DisableTorchFunction():
            return bool(tensor)
    finally:
        api.machine.quiet = before


def _starting(api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
    """A thread that the model starts is seen too."""

    def start(thread: threading.Thread) -> Any:
        run = thread.run

        def watched() -> None:
            with watching(api.machine):
                run()

        thread.run = watched  # type: ignore[method-assign]
        return original(thread)

    return start
