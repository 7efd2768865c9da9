"""A device `npu` for programs on the simulated runtime, whose tensors lie on this machine's memory: which of them would
lie on the host is kept beside them (`device.places`).

It does what torch and an eager device do before the runtime is asked: it makes tensors where `device=` says, hands
copies between the two to the runtime, computes on the host what lies there, and refuses operands of both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from npu_simulator.device import SimulatedDevice
from npucompose.graphs.effects import leaves_in, tensors_in
from npucompose.npu.capture import lines
from npucompose.npu.capture.simulated.machine import Places
from npucompose.npu.capture.simulated.memory import CaptureMemory
from npucompose.npu.capture.simulated.watch import Calls

theirs = lines.is_models
lines.is_models = lambda file: file != __file__ and theirs(file)  # no line of this file is a script's
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
COPIES = ("aten::copy_", "aten::_to_copy")


class AliasMachine:
    """The simulated device as `Calls` asks it where tensors lie."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.runtime = device, device.runtime
        self.places: Places = device.places
        self.memory = CaptureMemory(device.places.on_host)
        self.generator: Any = None
        """That of the call that is being made."""
        self.quiet = False

    @property
    def stream(self) -> int:
        return self.device.current

    def note_draw(self, line: str | None) -> None:
        """Draws are the recorder's."""

    def note_use(self, line: str | None) -> None:
        """What torch.compile cannot trace is not asked here."""

    @contextmanager
    def quietly(self) -> Iterator[None]:
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before


class Placed(TorchDispatchMode):
    """Operators above the recorder: what the host computes is not the device's."""

    supports_higher_order_operators = True

    def __init__(self, machine: AliasMachine) -> None:
        super().__init__()
        self.machine, self.places, self.runtime = machine, machine.places, machine.runtime

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            return func(*args, **given)
        operands = [one for one in leaves_in((args, given)) if isinstance(one, torch.Tensor)]
        host = [one for one in operands if self.places.on_host(one)]
        if self.machine.quiet or (operands and len(host) == len(operands)):
            made = self._of_the_host(func, args, given)
            if not self.machine.quiet:
                known = {one.untyped_storage()._cdata for one in operands}
                self.places.put([one for one in tensors_in(made) if one.untyped_storage()._cdata not in known], "host")
            return made
        if func._schema.name in COPIES and host:
            self._copied(args, given)
            return self._of_the_host(func, args, given)
        if any(one.dim() for one in host):
            self._mixed(func)
        if torch.Tag.nondeterministic_seeded in func.tags and not getattr(self.machine.generator, "on_device", True):
            self.runtime.refuse("host_generator", f"{func} draws from a generator of the host", None)
        return func(*args, **given)

    def _of_the_host(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        with _disable_current_modes():
            return func(*args, **given)

    def _copied(self, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        blocks = not (given.get("non_blocking") or (len(args) > 2 and args[2] is True))
        pageable = any(self.places.of(one) == "host" for one in args[:2])
        what, stream = "a copy between host and device", self.machine.stream
        self.runtime.copy(what, None, stream, blocking=blocks, pageable=pageable)

    def _mixed(self, func: Any) -> None:
        if func.overloadpacket.__name__ in INDEXED:
            self.runtime.copy("an index is copied", None, self.machine.stream, blocking=True, pageable=True)
        else:
            self.runtime.refuse("host_tensor", f"{func} is given a tensor of the host", None)


@contextmanager
def alias_device(device: SimulatedDevice) -> Iterator[None]:
    """Calls of torch in here are a script's, in threads that it starts too."""
    machine: Any = AliasMachine(device)
    start, from_numpy = threading.Thread.start, torch.from_numpy

    def numbers(array: Any) -> torch.Tensor:
        made = from_numpy(array)
        machine.places.put(made, "host")
        return made

    def started(thread: threading.Thread) -> None:
        run = thread.run

        def under_the_modes() -> None:
            with Placed(machine), Calls(machine):
                run()

        thread.run = under_the_modes  # type: ignore[method-assign]
        start(thread)

    def moved(tensor: torch.Tensor, device: Any = "npu", non_blocking: bool = False) -> torch.Tensor:
        return tensor.to(device, non_blocking=non_blocking)

    with ExitStack() as stack:
        for mode in (Placed(machine), Calls(machine)):
            stack.enter_context(mode)
        stack.enter_context(patch.object(torch, "from_numpy", numbers))
        stack.enter_context(patch.object(torch.Tensor, "npu", moved))  # torch's own loses non_blocking under a mode
        stack.enter_context(patch.object(threading.Thread, "start", started))
        yield
