"""The operators that come of a model's calls under the simulated capture: each is a task of the current stream, where
it computes on the device; what the table of calls says of it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from attrs import frozen
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.graphs.effects import facts, leaves_in, tensors_in
from npucompose.graphs.recordable import MASK, RESIZING, SHAPE, TO_PYTHON, why_dependent
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.rules import Effect, calls
from npucompose.npu.capture.simulated.machine import SimulatedMachine
from npucompose.npu.capture.simulated.memory import USE
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import PARTS_OF, operators, overload_of

_INDEXED = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"})
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy"})
_CONTROL = ("air", "npugraph_ex")
_MASKS = (torch.bool, torch.uint8)


class Kernels(TorchDispatchMode):
    """Sees each operator; `watching` is what the Python of a custom operator runs under."""

    def __init__(self, machine: SimulatedMachine, watching: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self.machine, self.places, self.runtime = machine, machine.places, machine.runtime
        self._watching = watching

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if self.machine.quiet:
            return func(*args, **given)
        if func._schema.name == USE:
            self.machine.note_use(model_line())
            self.machine.memory.keep(args[0])
            return None
        operands = [one for one in leaves_in((args, given)) if isinstance(one, torch.Tensor)]
        host = [one for one in operands if self.places.on_host(one)]
        if operands and len(host) == len(operands):
            made = func(*args, **given)
            self.places.put(_new(made, operands), "host")
            return made
        of_the_host = self._refuse(func, args, given, host)
        body = custom_body(func)
        made = func(*args, **given) if body is None else self._custom(body, args, given)
        if not of_the_host:
            self._launch(func, args, given, made, seen=body is not None)
        return made

    def _launch(self, func: Any, args: Sequence[Any], given: dict[str, Any], made: Any, *, seen: bool) -> None:
        """A task of the current stream; what it touches, unless its Python was `seen` to do that."""
        stream = self.machine.stream
        captured = not seen and self.runtime.capture_of(stream) is not None
        touches = self.machine.memory.touches(func, args, given, made, stream) if captured else ()
        if _is_task(func):
            self.runtime.launch(stream, _short(func), model_line(), touches)

    def _custom(self, body: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Any:
        """The Python of an operator that torch.library.custom_op made runs under the capture too."""
        with self._watching():
            return body(*args, **given)

    def _refuse(self, func: Any, args: Sequence[Any], given: dict[str, Any], host: Sequence[torch.Tensor]) -> bool:
        """What the rules forbid of one operator on tensors of the device; whether the host does its work."""
        name, stream = _short(func), self.machine.stream
        if _draws(func, args, given):
            self._drawn(name)
        broken = broken_rule(func, args, given, self.runtime.torch_npu)
        if broken is not None and broken.does in ("reads", "copies"):
            self.runtime.read(broken.what, model_line(), stream, broken.rule)
            return True
        if broken is not None and broken.rule == "opaque":
            self.runtime.refuse(broken.rule, broken.what, model_line(), sure=False)
        elif broken is not None and (broken.does != "synchronises" or self.runtime.capture_of(stream) is not None):
            self.runtime.refuse(broken.rule, broken.what, model_line())
        elif func._schema.name in _COPIES and host:
            return self._copied(name, args, given)
        elif any(one.dim() for one in host):
            self._mixed(func, name)
        return False

    def _drawn(self, name: str) -> None:
        """Random numbers on the device; whose generator that is."""
        generator, line = self.machine.generator, model_line()
        self.machine.note_draw(line)
        if generator is None:
            return
        if not getattr(generator, "on_device", False):
            self.runtime.refuse("host_generator", f"{name} draws from a generator of the CPU", line)
        elif not any(one is generator for one in self.machine.registered):
            self.runtime.refuse("generator_unknown", f"{name} draws from a generator of its own", line)

    def _copied(self, name: str, args: Sequence[Any], given: dict[str, Any]) -> bool:
        """`dst.copy_(src)` with one of them on the host; whether the host takes part."""
        blocks = not (given.get("non_blocking") or (len(args) > 2 and args[2] is True))
        pageable = any(self.places.of(one) == "host" for one in args[:2] if isinstance(one, torch.Tensor))
        if all(one.dim() == 0 for one in args[1:2] if self.places.on_host(one)) and not self.places.on_host(args[0]):
            return False  # a number: it becomes an argument of the kernel
        if blocks or pageable:
            how = "copies between host and device" if blocks else "copies from or to pageable host memory"
            stream = self.machine.stream
            self.runtime.copy(f"{name} {how}", model_line(), stream, blocking=blocks, pageable=pageable)
        return blocks or pageable

    def _mixed(self, func: Any, name: str) -> None:
        """An index may lie on the host, and is copied; any other operand is refused by torch."""
        if func.overloadpacket.__name__ in _INDEXED:
            what = f"{name} copies an index from the host"
            self.runtime.copy(what, model_line(), self.machine.stream, blocking=True, pageable=True)
        else:
            self.runtime.refuse("host_tensor", f"{name} is given a tensor that lies on the host", model_line())


@frozen(kw_only=True)
class BrokenRule:
    """What an operator breaks: `BrokenRule(rule="host_read", does="reads", what="aten.equal reads a value …")`."""

    rule: str
    does: Effect
    what: str


def broken_rule(
    func: Any, args: Sequence[Any], given: Mapping[str, Any], torch_npu: str | None = None
) -> BrokenRule | None:
    """The rule that the operator breaks on a captured stream: by the table, by torch's tags, and by the kernels that
    this version of torch_npu has; None: it breaks none.

    `args` and `given` are real values, or fake ones.
    """
    name, row = _short(func), calls().operators.get(func._schema.name)
    if row is not None:
        if row.rule is None or not (row.when is None or _CASES[row.when](func, args, given)):
            return None
        return BrokenRule(rule=row.rule, does=row.does, what=f"{name} {_words(func, row.rule)}")
    if func._schema.is_mutable and func.overloadpacket.__name__ in RESIZING:
        return BrokenRule(rule="moves_memory", does="allocates", what=f"{name} moves a tensor or changes its size")
    reason = why_dependent(func, args, given)
    if reason == TO_PYTHON:
        return BrokenRule(rule="host_read", does="reads", what=f"{name} {_WORDS['host_read']}")
    if reason in (SHAPE, MASK):
        return BrokenRule(rule="data_shape", does="synchronises", what=f"{name}: {reason.rstrip('.')}")
    return _by_kernel(func, torch_npu or REFERENCE)


@cache
def _by_kernel(func: Any, torch_npu: str) -> BrokenRule | None:
    """By what the wheel has to compute the operator with."""
    wheel, name = operators(torch_npu), _short(func)
    row = wheel.row(wheel.on_the_device(func.name()))
    if row.aclop:
        return BrokenRule(rule="aclop", does="launches", what=f"{name} has a kernel of aclop alone in {wheel.named}")
    whole = PARTS_OF.get(func._schema.name)
    if row.kernel == "cpu" and whole is not None and wheel.row(whole).runs:
        what = f"{name} has no kernel for the NPU, {whole} has one, and this machine calls the first for both"
        return BrokenRule(rule="opaque", does="launches", what=what)
    if row.kernel == "cpu":
        inner = "" if row.because == row.name else f", by {overload_of(row.because).removesuffix('.default')}"
        what = f"{name} has no kernel for the NPU in {wheel.named}, and is computed on the CPU{inner}"
        return BrokenRule(rule="cpu_kernel", does="copies", what=what)
    if row.kernel == "unknown" and func.namespace not in _OF_EVERY_DEVICE and custom_body(func) is None:
        return BrokenRule(rule="opaque", does="launches", what=f"{name}: {row.because}")
    return None


_OF_EVERY_DEVICE = ("aten", "prims", "prim", "c10d", "_c10d_functional", "c10d_functional", *_CONTROL)
"""Namespaces whose operators torch takes apart or hands to the backend of the process group."""
_WORDS = {
    "host_read": "reads a value on the host",
    "data_shape": "synchronises the stream: the shape of its result depends on the data",
    "sync_copy": "is computed on the CPU, and copies to it and back",
    "random_unready": "draws its numbers on the host",
}


def _words(func: Any, rule: str) -> str:
    if func.overloadpacket.__name__ in _INDEXED and "put" in func.overloadpacket.__name__:
        return "looks on the host for the places where its mask is true"
    return _WORDS.get(rule, "synchronises the stream")


def _argument(func: Any, args: Sequence[Any], given: Mapping[str, Any], name: str) -> Any:
    """An argument by its name in the schema, or its default; None where the schema has no such name."""
    known = next(((at, one) for at, one in enumerate(func._schema.arguments) if one.name == name), None)
    if known is None:
        return None
    at, one = known
    return given.get(name, args[at] if at < len(args) else one.default_value)


def _draws(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    """By torch's tag, which attention has without a dropout too."""
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    return seeded and _argument(func, args, given, "dropout_p") != 0.0


def _masked(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    indices = _argument(func, args, given, "indices")
    return any(one.dtype in _MASKS for one in tensors_in(indices))


def _no_output_size(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    return not _argument(func, args, given, "output_size")


def _tensor_std(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    return isinstance(_argument(func, args, given, "std"), torch.Tensor)


def _no_float_sum(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    included = _argument(func, args, given, "include_self") in (None, True)
    summed = _argument(func, args, given, "reduce") in ("sum", "add")
    return not (included and summed and args[0].dtype == torch.float32)


def _uneven_correction(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    correction = _argument(func, args, given, "correction")
    return correction is not None and float(correction) != int(correction)


def _split_result(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    tensor = isinstance(_argument(func, args, given, "group_list"), torch.Tensor)
    return tensor and _argument(func, args, given, "split_item") in (None, 0, 1)


def _training(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    return bool(_argument(func, args, given, "training"))


_CASES: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], bool]] = {
    "mask": _masked,
    "no_output_size": _no_output_size,
    "tensor_std": _tensor_std,
    "no_float_sum": _no_float_sum,
    "uneven_correction": _uneven_correction,
    "split_result": _split_result,
    "training": _training,
}
"""The cases that calls.yaml names."""


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
