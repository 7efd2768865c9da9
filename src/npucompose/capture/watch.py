"""What a model does while it is captured: every call of torch is seen, and the simulated runtime is asked about it.

`Calls` sees what the model writes (`x.cpu()`, `torch.tensor([1])`, `device=`), `Kernels` what comes of it. The model
runs on this machine's memory; `places` says where each tensor would lie on a machine with an NPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.capture.lines import model_line
from npucompose.capture.places import DEVICE, Place, Places, place_of_device
from npucompose.capture.runtime import CAPTURING, DEFAULT, CaptureRuntime
from npucompose.errors import users_line
from npucompose.graphs.effects import facts, leaves_in, tensors_in
from npucompose.graphs.recordable import MASK, RESIZING, SHAPE, TO_PYTHON, why_dependent

_DEVICE_GETTER = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_TO_HOST = {"cpu": "x.cpu()", "numpy": "x.numpy()", "tolist": "x.tolist()", "__array__": "an array of numpy"}
_TO_DEVICE = frozenset({"npu", "cuda"})
_PRINTS = {"__repr__": "a tensor is printed", "__str__": "a tensor is printed", "__format__": "a tensor is formatted"}
_FACTORIES = frozenset({
    "arange", "bartlett_window", "blackman_window", "empty", "empty_strided", "eye", "full", "hamming_window",
    "hann_window", "kaiser_window", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm",
    "scalar_tensor", "tril_indices", "triu_indices", "zeros",
})  # fmt: skip
_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer"})
_INDEXED = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"})
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy"})
_CONTROL = ("air", "npugraph_ex")


class SimulatedMachine:
    """The machine that the model believes to run on: its runtime, where its tensors lie, the current stream."""

    def __init__(self, runtime: CaptureRuntime) -> None:
        self.runtime = runtime
        self.places = Places()
        self.streams = [DEFAULT]
        self.used: set[str] = set()
        """Lines that call streams, events or collectives: torch.compile cannot trace them here."""
        self.quiet = False
        """What is called now asks for data on this machine and not on a device."""

    @property
    def stream(self) -> int:
        """The current one; another thread begins on the default stream."""
        return self.streams[-1] if self.runtime.own_thread or not self.runtime.capturing else DEFAULT

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Calls of torch in here are the model's."""
        with ExitStack() as stack:
            stack.enter_context(Kernels(self))
            stack.enter_context(Calls(self))
            yield

    @contextmanager
    def capture(self) -> Iterator[None]:
        """What is called in here is captured."""
        self.streams.append(CAPTURING)
        self.runtime.begin()
        try:
            with self.watching():
                yield
            self.runtime.end(self.stream)
        finally:
            self.runtime.capturing = False
            del self.streams[1:]


def called(machine: SimulatedMachine, call: Callable[[], Any]) -> str | None:
    """Make one call of the model under the capture; why it did not come to its end, None where it did."""
    try:
        with torch.no_grad(), machine.capture():
            call()
    except Exception as error:  # noqa: BLE001  a model may raise anything
        where = users_line(error)
        at = f" at {where}" if where else ""
        return f"{type(error).__name__}{at}: {' '.join(str(error).split())[:300]}"
    return None


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
        if _own(given.get("generator")):
            self.runtime.refuse("generator_state", f"{name} draws from a generator of its own", model_line())
        if name in _PRINTS:
            return self._printed(name, func, args, given)
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, func, args, given)
        return func(*args, **_here(given))

    def _attribute(self, func: Any, args: Sequence[Any]) -> Any:
        value = func(*args)
        if func == _DEVICE_GETTER and value.type == "cpu" and not self.places.on_host(args[0]):
            return DEVICE
        return value

    def _printed(self, name: str, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        if not self.places.on_host(args[0]):
            self.runtime.refuse("host_read", _PRINTS[name], model_line())
        with self._quiet():
            return func(*args, **given)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        before, self.machine.quiet = self.machine.quiet, True
        try:
            yield
        finally:
            self.machine.quiet = before

    def factory(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """Memory that is filled by a kernel: on the host unless a device is named."""
        pinned = bool(given.pop("pin_memory", False))
        place = place_of_device(given.get("device", _default_device())) or "host"
        with self._quiet() if place == "host" else nullcontext():
            made = func(*args, **_here(given))
        self.places.put(made, "pinned" if pinned and place == "host" else place)
        return made

    def from_data(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """Numbers of Python or numpy: made on the host, and copied where a device is named."""
        name = func.__name__
        pinned = bool(given.pop("pin_memory", False))
        place = place_of_device(given.get("device", _default_device()))
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        with self._quiet():
            made = func(*args, **_here(given))
        if source is not None and place is None:
            return made
        if place == "device" and (source is None or self.places.on_host(source)):
            self.runtime.unsafe("sync_copy", f"torch.{name} with a device copies from the host", model_line())
            made = made.clone() if source is not None else made
        self.places.put(made, "pinned" if pinned else place or "host")
        return made

    def new_tensor(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """`x.new_tensor([1, 2])` lies where x does, and comes from the host."""
        place = place_of_device(given.get("device")) or self.places.of(args[0])
        with self._quiet():
            made = func(*args, **_here(given))
        if place == "device":
            self.runtime.unsafe("sync_copy", "x.new_tensor copies from the host", model_line())
        self.places.put(made, place)
        return made

    def to_host(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.__name__
        if self.places.on_host(args[0]):
            return func(*args, **given)
        self.runtime.unsafe("sync_copy", f"{_TO_HOST[name]} copies to the host", model_line())
        with self._quiet():
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
            tensor = self._to(tensor, place, non_blocking, f"x.to({device})")
        made = func(tensor, *map(_without_device, args[1:]), **_without_devices(given))
        if made is not tensor:
            self.places.put(made, self.places.of(tensor))
        return made

    def _to(self, tensor: torch.Tensor, place: Place, non_blocking: bool, what: str) -> torch.Tensor:
        """A copy to the other side. Torch page-locks the new host tensor of a copy that does not block."""
        before = self.places.of(tensor)
        if (before == "device") == (place == "device"):
            return tensor
        if not non_blocking:
            self.runtime.unsafe("sync_copy", f"{what} copies between host and device", model_line())
        elif before == "host":
            self.runtime.unsafe("pageable_copy", f"{what} copies from pageable host memory", model_line())
        else:
            self.runtime.launch(self.machine.stream, what, model_line())
        return self._moved(tensor, "pinned" if place == "host" and non_blocking else place)

    def _moved(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        with self._quiet():
            made = tensor.detach().clone()
        self.places.put(made, place)
        return made

    def pin(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        return self._moved(args[0], "pinned")

    def is_pinned(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        return self.places.of(args[0]) == "pinned"

    def one_hot(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """With a number of classes only the CPU's kernel looks at the data."""
        classes = given.get("num_classes", args[1] if len(args) > 1 else -1)
        if classes < 0:
            return func(*args, **given)
        with self._quiet():
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
}


def _default_device() -> Any:
    """What `torch.set_default_device` named; None where nobody did."""
    return None


def _own(generator: Any) -> bool:
    return isinstance(generator, torch.Generator) and generator is not torch.default_generator


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


class Kernels(TorchDispatchMode):
    """The operators that come of the calls: each is a task of the current stream, where it computes on the device."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self.machine, self.places, self.runtime = machine, machine.places, machine.runtime

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if self.machine.quiet:
            return func(*args, **given)
        operands = [one for one in leaves_in((args, given)) if isinstance(one, torch.Tensor)]
        host = [one for one in operands if self.places.on_host(one)]
        if operands and len(host) == len(operands):
            made = func(*args, **given)
            self.places.put(_new(made, operands), "host")
            return made
        self._refuse(func, args, given, host)
        body = custom_body(func)
        made = func(*args, **given) if body is None else self._custom(body, args, given)
        if _is_task(func):
            self.runtime.launch(self.machine.stream, _short(func), model_line())
        return made

    def _custom(self, body: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Any:
        """The Python of an operator that torch.library.custom_op made runs under the capture too."""
        with self.machine.watching():
            return body(*args, **given)

    def _refuse(self, func: Any, args: Sequence[Any], given: dict[str, Any], host: Sequence[torch.Tensor]) -> None:
        """What the rules forbid of one operator on tensors of the device."""
        name, reason = _short(func), _why(func, args, given)
        if reason == TO_PYTHON:
            self._read(f"{name} reads a value on the host")
        elif reason in (SHAPE, MASK):
            self.runtime.refuse("data_shape", f"{name}: {reason.rstrip('.')}", model_line())
        elif func._schema.is_mutable and func.overloadpacket.__name__ in RESIZING:
            self.runtime.refuse("moves_memory", f"{name} moves a tensor or changes its size", model_line())
        elif func._schema.name in _COPIES and host:
            self._copied(name, args, given)
        elif any(one.dim() for one in host):
            self._mixed(func, name)
        elif _writes_through_mask(func, args):
            what = f"{name} writes where a mask is true, and torch_npu may look for those places on the host"
            self.runtime.refuse("data_shape", what, model_line(), sure=False)

    def _read(self, what: str) -> None:
        if self.runtime.own_thread:
            self.runtime.refuse("host_read", what, model_line())
        else:
            self.runtime.unsafe("host_read", what, model_line())

    def _copied(self, name: str, args: Sequence[Any], given: dict[str, Any]) -> None:
        """`dst.copy_(src)` with one of them on the host."""
        blocks = not (given.get("non_blocking") or (len(args) > 2 and args[2] is True))
        pageable = any(self.places.of(one) == "host" for one in args[:2] if isinstance(one, torch.Tensor))
        if all(one.dim() == 0 for one in args[1:2] if self.places.on_host(one)) and not self.places.on_host(args[0]):
            return  # a number: it becomes an argument of the kernel
        if blocks:
            self.runtime.unsafe("sync_copy", f"{name} copies between host and device", model_line())
        elif pageable:
            self.runtime.unsafe("pageable_copy", f"{name} copies from or to pageable host memory", model_line())

    def _mixed(self, func: Any, name: str) -> None:
        """An index may lie on the host, and is copied; any other operand is refused by torch."""
        if func.overloadpacket.__name__ in _INDEXED:
            self.runtime.unsafe("sync_copy", f"{name} copies an index from the host", model_line())
        else:
            self.runtime.refuse("host_tensor", f"{name} is given a tensor that lies on the host", model_line())


def _why(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> str | None:
    """How what the operator gives depends on data."""
    name = func.overloadpacket.__name__
    if func._schema.name == "aten::equal":
        return TO_PYTHON
    return why_dependent(func, args, given) if name not in _INDEXED or "put" not in name else None


def _writes_through_mask(func: Any, args: Sequence[Any]) -> bool:
    """`y[mask] = z`; with one number for z it is a masked_fill on every device."""
    if "put" not in func.overloadpacket.__name__ or func.overloadpacket.__name__ not in _INDEXED:
        return False
    masked = any(one.dtype in (torch.bool, torch.uint8) for one in tensors_in(args[1]))
    return masked and args[2].numel() > 1


def custom_body(func: Any) -> Callable[..., Any] | None:
    """The function behind an operator of torch.library.custom_op; None for every other operator."""
    from torch._library.custom_ops import OPDEFS

    made = OPDEFS.get(func._schema.name)
    return None if made is None else made._init_fn


def _is_task(func: Any) -> bool:
    """It starts a kernel: no view, no bare memory, no check of the host."""
    known = facts(func)
    bare = func.overloadpacket.__name__.startswith(("empty", "new_empty"))
    return not (known.host or func.is_view or bare or func.namespace in _CONTROL)


def _new(made: Any, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results whose memory is no operand's."""
    given = {one.untyped_storage()._cdata for one in operands if one.layout is torch.strided}
    return [one for one in tensors_in(made) if one.untyped_storage()._cdata not in given]


def _short(func: Any) -> str:
    """`aten.nonzero`."""
    return str(func).removesuffix(".default")
