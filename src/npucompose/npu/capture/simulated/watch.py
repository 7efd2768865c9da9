"""What a model does while it is captured: every call of torch is seen, and the simulated runtime is asked about it.

`Calls` sees what the model writes (`x.cpu()`, `torch.tensor([1])`, `device=`), `Kernels` what comes of it. The model
runs on this machine's memory; `places` says where each tensor would lie on a machine with an NPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from npucompose.errors import users_line
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.simulated.kernels import Kernels
from npucompose.npu.capture.simulated.machine import (
    DEVICE,
    Place,
    SimulatedMachine,
    names_npu,
    place_of_device,
    spelled,
)
from npucompose.npu.capture.simulated.runtime import CAPTURING
from npucompose.races import Touch

_DEVICE_GETTER = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_TO_HOST = {"cpu": "x.cpu()", "numpy": "x.numpy()", "tolist": "x.tolist()", "__array__": "an array of numpy"}
_TO_DEVICE = frozenset({"npu", "cuda"})
_PRINTS = {"__repr__": "a tensor is printed", "__str__": "a tensor is printed", "__format__": "a tensor is formatted"}
_FACTORIES = frozenset({
    "arange", "bartlett_window", "blackman_window", "empty", "empty_strided", "eye", "full", "hamming_window",
    "hann_window", "kaiser_window", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm",
    "scalar_tensor", "tril_indices", "triu_indices", "zeros",
})  # fmt: skip
_OF_A_DEVICE = frozenset({"tensor", "as_tensor", "asarray"})
_FROM_DATA = _OF_A_DEVICE | {"from_numpy", "frombuffer"}


@contextmanager
def watching(machine: SimulatedMachine) -> Iterator[None]:
    """Calls of torch in here are the model's."""
    with ExitStack() as stack:
        stack.enter_context(Kernels(machine, partial(watching, machine)))
        stack.enter_context(Calls(machine))
        yield


@contextmanager
def capturing(machine: SimulatedMachine) -> Iterator[None]:
    """What is called in here is captured."""
    machine.streams.append(CAPTURING)
    machine.runtime.begin()
    try:
        with watching(machine):
            yield
        if machine.stream != CAPTURING:
            what = f"the capture ends while stream {machine.stream} is the current one"
            machine.runtime.refuse("unmatched_end", what, None)
        machine.runtime.end()
    finally:
        machine.runtime.abandon()
        del machine.streams[1:]


def called(machine: SimulatedMachine, call: Callable[[], Any]) -> str | None:
    """Make one call of the model under the capture; why it did not come to its end, None where it did."""
    try:
        with torch.no_grad(), capturing(machine):
            call()
    except Exception as error:  # noqa: BLE001  a model may raise anything
        return raised(error)
    return None


def raised(error: Exception) -> str:
    """`KeyError at model.py:3 in forward, `x[0]`: …`."""
    where = users_line(error)
    at = f" at {where}" if where else ""
    return f"{type(error).__name__}{at}: {' '.join(str(error).split())[:300]}"


class Calls(TorchFunctionMode):
    """The calls as the model writes them."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self.machine, self.places, self.runtime = machine, machine.places, machine.runtime

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, given = str(getattr(func, "__name__", "")), dict(kwargs or {})
        if name == "__get__":
            return self._attribute(func, args)
        if name in _PRINTS:
            return self._printed(name, func, args, given)
        if any(names_npu(one) for one in (*args, *given.values())):
            self.machine.note_use(model_line())
        self.machine.generator = given.get("generator")
        special = _SPECIAL.get(name)
        return special(self, func, args, given) if special is not None else func(*args, **_here(given))

    def _attribute(self, func: Any, args: Sequence[Any]) -> Any:
        value = func(*args)
        if func == _DEVICE_GETTER and value.type == "cpu" and not self.places.on_host(args[0]):
            return DEVICE
        return value

    def _printed(self, name: str, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        if not self.places.on_host(args[0]):
            self.runtime.read(_PRINTS[name], model_line(), self.machine.stream)
        with self.machine.quietly():
            return func(*args, **given)

    def factory(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """Memory that is filled by a kernel: on the host unless a device is named."""
        pinned = bool(given.pop("pin_memory", False))
        given["device"] = _device_of(given)
        place = place_of_device(given["device"]) or "host"
        with self.machine.quietly() if place == "host" else nullcontext():
            made = func(*args, **_here(given))
        self.places.put(made, "pinned" if pinned and place == "host" else place)
        return made

    def from_data(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """Numbers of Python or numpy: made on the host, and copied where a device is named."""
        name = func.__name__
        pinned = bool(given.pop("pin_memory", False))
        if name in _OF_A_DEVICE:
            given["device"] = _device_of(given)
        place = place_of_device(given.get("device"))
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        with self.machine.quietly():
            made = func(*args, **_here(given))
        if source is not None and place is None:
            return made
        if place == "device" and (source is None or self.places.on_host(source)):
            self._blocking(f"torch.{name} with a device copies from the host")
            made = made.clone() if source is not None else made
        self.places.put(made, "pinned" if pinned else place or "host")
        return made

    def new_tensor(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """`x.new_tensor([1, 2])` lies where x does, and comes from the host."""
        place = place_of_device(given.get("device")) or self.places.of(args[0])
        with self.machine.quietly():
            made = func(*args, **_here(given))
        if place == "device":
            self._blocking("x.new_tensor copies from the host")
        self.places.put(made, place)
        return made

    def to_host(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.__name__
        if self.places.on_host(args[0]):
            return func(*args, **given)
        self._blocking(f"{_TO_HOST[name]} copies to the host")
        with self.machine.quietly():
            return self._moved(args[0], "host") if name == "cpu" else func(*args, **given)

    def to_device(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """`x.npu()`, `x.cuda()`."""
        return self._to(args[0], "device", bool(given.get("non_blocking")), f"x.{func.__name__}()")

    def to(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """`x.to(device, dtype, non_blocking=…)` in all its forms."""
        device = given.get("device")
        for one in args[1:]:
            if isinstance(one, (str, torch.device)):
                device = one
            elif isinstance(one, torch.Tensor):
                device = DEVICE if not self.places.on_host(one) else "cpu"
        flags = [one for one in args[1:] if isinstance(one, bool)]
        non_blocking = bool(given.get("non_blocking", flags[0] if flags else False))
        place = place_of_device(device)
        tensor = args[0]
        if place is not None and place != ("host" if self.places.on_host(tensor) else "device"):
            tensor = self._to(tensor, place, non_blocking, f"x.to({spelled(device)})")
        made = func(tensor, *map(_without_device, args[1:]), **_without_devices(given))
        if made is not tensor:
            self.places.put(made, self.places.of(tensor))
        return made

    def _to(self, tensor: torch.Tensor, place: Place, non_blocking: bool, what: str) -> torch.Tensor:
        """A copy to the other side. Torch page-locks the new host tensor of a copy that does not block."""
        before = self.places.of(tensor)
        if (before == "device") == (place == "device"):
            return tensor
        pageable = before == "host"
        how = " copies from pageable host memory" if non_blocking and pageable else ""
        how = how if non_blocking else " copies between host and device"
        made = self._moved(tensor, "pinned" if place == "host" and non_blocking else place)
        stream, touches = self.machine.stream, self._touches(tensor, made)
        blocking = not non_blocking
        self.runtime.copy(what + how, model_line(), stream, blocking=blocking, pageable=pageable, touches=touches)
        return made

    def _touches(self, read: Any, made: Any) -> Sequence[Touch]:
        """Of a task of the current stream that no operator shows."""
        stream = self.machine.stream
        captured = self.runtime.capture_of(stream) is not None
        return self.machine.memory.reading_and_making(read, made, stream) if captured else ()

    def _blocking(self, what: str) -> None:
        self.runtime.copy(what, model_line(), self.machine.stream, blocking=True, pageable=True)

    def _moved(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        with self.machine.quietly():
            made = tensor.detach().clone()
        self.places.put(made, place)
        return made

    def pin(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        return self._moved(args[0], "pinned")

    def is_pinned(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        return self.places.of(args[0]) == "pinned"

    def dropout(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """One kernel on the device, where this machine's takes it apart."""
        training = given.get("training", given.get("train", args[2] if len(args) > 2 else True))
        if self.places.on_host(args[0]) or not training:
            return func(*args, **given)
        self.machine.note_draw(model_line())
        with self.machine.quietly():
            made = func(*args, **given)
        touches = self._touches(args[0], made)
        self.runtime.launch(self.machine.stream, f"torch.{func.__name__}", model_line(), touches)
        return made

    def one_hot(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """With a number of classes only the CPU's kernel looks at the data."""
        classes = given.get("num_classes", args[1] if len(args) > 1 else -1)
        if classes < 0:
            return func(*args, **given)
        with self.machine.quietly():
            return func(*args, **given)


_SPECIAL: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(_FACTORIES, Calls.factory),
    **dict.fromkeys(_FROM_DATA, Calls.from_data),
    **dict.fromkeys(_TO_HOST, Calls.to_host),
    **dict.fromkeys(_TO_DEVICE, Calls.to_device),
    "to": Calls.to,
    "new_tensor": Calls.new_tensor,
    "pin_memory": Calls.pin,
    "is_pinned": Calls.is_pinned,
    "one_hot": Calls.one_hot,
    "dropout": Calls.dropout,
    "dropout_": Calls.dropout,
}


def _device_of(given: Mapping[str, Any]) -> Any:
    """What a call names, or `torch.set_default_device` or `with torch.device(…)` around it; None: no device."""
    return _device.CURRENT_DEVICE if given.get("device") is None else given["device"]


def _here(given: dict[str, Any]) -> dict[str, Any]:
    """The keywords as this machine can take them: its one device is the CPU."""
    return {name: _here_one(value) if name == "device" else value for name, value in given.items()}


def _without_devices(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _without_device(value) for name, value in given.items()}


def _without_device(value: Any) -> Any:
    """The copy is made already: to this machine's CPU there is none left to make."""
    return torch.device("cpu") if isinstance(value, (str, torch.device)) else value


def _here_one(value: Any) -> Any:
    named = isinstance(value, (str, torch.device)) and place_of_device(value) == "device"
    return DEVICE if named else value
