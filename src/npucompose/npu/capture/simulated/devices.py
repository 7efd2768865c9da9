"""`torch.npu`, `torch.cuda`, `torch_npu._C`, generators and the collectives of torch.distributed as a model under the
simulated capture finds them.

Each call asks the simulated runtime; none needs a device, and no other rank is asked. What is replaced is put back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from npucompose.npu.capture.lines import is_models, model_line
from npucompose.npu.capture.rules import calls
from npucompose.npu.capture.simulated.generators import Seeds, refusing_generators
from npucompose.npu.capture.simulated.machine import DEVICE, SimulatedMachine, names_npu
from npucompose.npu.capture.simulated.npu_module import Unknown, accelerator, by_table, npu_module, shared
from npucompose.npu.capture.simulated.streams import Api
from npucompose.npu.capture.simulated.watch import watching
from npucompose.races import Touch


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


# Collectives of torch.distributed on one machine: no rank is asked, and each runs on a stream of its communicator.
# A collective begins after the current stream. With `async_op=True` the current stream goes on without it until
# `work.wait()`; without, it waits at once.

_TENSORS: Mapping[str, str] = {
    "all_reduce": "tensor+", "all_gather": "tensor_list! tensor",
    "all_gather_into_tensor": "output_tensor! input_tensor", "all_to_all": "output_tensor_list! input_tensor_list",
    "all_to_all_single": "output! input", "broadcast": "tensor+", "gather": "tensor gather_list!", "irecv": "tensor!",
    "isend": "tensor", "recv": "tensor!", "reduce": "tensor+", "reduce_scatter": "output! input_list",
    "reduce_scatter_tensor": "output! input", "scatter": "tensor! scatter_list", "send": "tensor",
}  # fmt: skip
"""{function: its first parameters}: `!` is written, `+` is read and written, all else is read."""
_ALWAYS_ASYNC = ("isend", "irecv")


class Work:
    """What a collective that was not waited for gives."""

    def __init__(self, machine: SimulatedMachine, done: int, line: Callable[[], str | None]) -> None:
        self._machine, self._done, self._line = machine, done, line

    def wait(self, timeout: Any = None) -> bool:
        """The current stream waits; the host does not."""
        self._machine.runtime.wait(self._done, self._machine.stream, self._line())
        return True

    def is_completed(self) -> bool:
        self._machine.runtime.wait_for_event("work.is_completed()", self._line(), self._done)
        return True


def collectives(machine: SimulatedMachine, line: Callable[[], str | None]) -> Mapping[str, Any]:
    """{name in torch.distributed: the function that stands there}."""
    return {
        **{name: _collective(name, machine, line) for name in _TENSORS},
        "barrier": lambda *_, **__: machine.runtime.synchronise("dist.barrier()", line()),
        "get_rank": lambda group=None: 0,
        "get_world_size": lambda group=None: 1,
        "is_initialized": lambda: True,
    }


def _collective(name: str, machine: SimulatedMachine, line: Callable[[], str | None]) -> Callable[..., Any]:
    def run(*args: Any, async_op: bool = False, **named: Any) -> Any:
        where = line()
        touches = _touches(name, machine, args, named)
        work = Work(machine, machine.runtime.collective(f"dist.{name}", machine.stream, where, touches), line)
        if async_op or name in _ALWAYS_ASYNC:
            return work
        work.wait()
        return None

    return run


def _touches(name: str, machine: SimulatedMachine, args: Sequence[Any], named: Mapping[str, Any]) -> list[Touch]:
    """What it does to its tensors, whose memory the process group keeps (TN distributed/ProcessGroupHCCL.cpp:4167)."""
    found: list[Touch] = []
    for at, parameter in enumerate(_TENSORS[name].split()):
        word = parameter.rstrip("!+")
        given = args[at] if at < len(args) else named.get(word)
        machine.memory.keep(given)
        writes = parameter != word
        found += machine.memory.touching(given, reads=not parameter.endswith("!"), writes=writes)
    return found


# The module that stands as `torch_npu._C` under the simulated capture, where torch_npu is at hand.
# What breaks a rule is refused from every caller. A model's own call of what no table has gives a finding; the Python
# of the wheel is handed what it always is.


class CompiledModule(ModuleType):
    """`CompiledModule(api, torch_npu._C)`."""

    def __init__(self, api: Api, below: Any) -> None:
        super().__init__("torch_npu._C")
        own = {
            "_graph_task_group_begin": api.group_begin,
            "_graph_task_group_end": api.group_end,
            "_graph_task_update_begin": api.update_begin,
            "_graph_task_update_end": api.update_end,
            "_launch_host_func": api.host_function,
            "_launch_host_func_pending": api.host_function,
            "_npu_isCurrentStreamCapturing": lambda: api.runtime.capture_of(api.machine.stream) is not None,
        }
        self.__dict__.update(own, _api=api, _below=below)

    def __getattr__(self, name: str) -> Any:
        api, below = self.__dict__["_api"], self.__dict__["_below"]
        row, whole = calls().compiled.get(name), f"torch_npu._C.{name}"
        asked_by_a_model = is_models(sys._getframe(1).f_code.co_filename)
        if row is not None and row.rule is not None:
            return by_table(api, whole, row)
        if not asked_by_a_model or name.startswith("__"):
            return getattr(below, name)
        if row is None:
            return Unknown(api, whole, "no table of torch_npu's functions has it")
        return by_table(api, whole, row) if row.unknown is not None else getattr(below, name)
