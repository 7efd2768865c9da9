"""Calls of torch's operators, made up: for each overload arguments with which it runs on the CPU.

First what torch's own samples (`op_db`) call while they run, the operators inside of composites included; then, from
the schema, a few fillings that fit most operators: all floats, squares, images, integers. A call is taken when it ran.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tools.written_calls import POSITIONAL, keywords

LONGEST_S = 60.0
MOST_NUMBERS = 4096
"""In a tensor that a sample gives; larger ones are left to the schema."""


@frozen(kw_only=True)
class OperatorCall:
    """Arguments of one call: `OperatorCall(args=(tensor, 1), keywords={})`."""

    args: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def copied(self) -> OperatorCall:
        """With tensors of its own: a call may write into them."""
        args, keywords = tree_map(_copied, (self.args, dict(self.keywords)))
        return OperatorCall(args=args, keywords=keywords)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def overload(name: str) -> Any:
    """torch.ops.aten.add.Tensor of `aten::add.Tensor`."""
    space, _, rest = name.partition("::")
    operator, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), operator), variant or "default")


def names() -> list[str]:
    """Every ATen operator of torch's dispatcher, sorted."""
    return sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))


def calls(wanted: Sequence[str]) -> dict[str, OperatorCall]:
    """{operator: a call with which it runs here}; one for which none was found is left out."""
    found, spare = sampled(set(wanted))
    found |= {name: call for name in wanted if name not in found and (call := written(name))}
    for name in wanted:
        if name not in found and (made := filled(overload(name))) is not None:
            found[name] = made
    return spare | found


# From torch's samples


class _Recorder(TorchDispatchMode):
    """Notes a call of each operator: one that computes something, and in `spare` one of and for tensors without
    elements."""

    def __init__(self, wanted: set[str]) -> None:
        super().__init__()
        self.wanted = wanted
        self.found: dict[str, OperatorCall] = {}
        self.spare: dict[str, OperatorCall] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.name(), (args, dict(kwargs or {}))
        call = None
        if name in self.wanted and name not in self.found and all(map(_small, _tensors(given))):
            call = OperatorCall(args=tuple(args), keywords=given[1]).copied()
        made = func(*args, **given[1])
        if call is not None:
            whole = all(one.numel() for one in _tensors((call.args, dict(call.keywords)))) and not _empty(made)
            (self.found if whole else self.spare)[name] = call
        return made


def _small(one: torch.Tensor) -> bool:
    return one.layout is torch.strided and one.numel() <= MOST_NUMBERS and one.device.type == "cpu"


def _empty(value: Any) -> bool:
    made = _tensors(value)
    return bool(made) and all(one.layout is torch.strided and not one.numel() for one in made)


def sampled(wanted: set[str], most: int = 4) -> tuple[dict[str, OperatorCall], dict[str, OperatorCall]]:
    """What is called while the first samples of every operator of op_db run, with its gradient, in place and with
    `out=`; and calls of tensors without elements."""
    recorder = _Recorder(wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in _op_db():
            for dtype in (torch.float32, torch.int64, torch.bool):
                if info.supports_dtype(dtype, "cpu"):
                    _run_samples(info, dtype, most, recorder)
                    break
    return recorder.found, recorder.spare


def _op_db() -> Sequence[Any]:
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # The samples sit beside torch's test base class, which inherits from this package; nothing else of it is used.
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core as opinfo

    # It looks through the whole stack for a TestCase, which is nowhere here.
    core: Any = opinfo
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    return op_db


def _run_samples(info: Any, dtype: torch.dtype, most: int, recorder: _Recorder) -> None:
    differentiable = dtype is torch.float32 and info.supports_autograd
    try:
        samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), most))
    except Exception:  # noqa: BLE001  samples that need another library
        return
    for sample in samples:
        for form in (info.op, info.inplace_variant):
            if form is not None:
                _attempt(lambda form=form, sample=sample: _with_gradient(form, sample, recorder))
        if info.supports_out:
            _attempt(lambda sample=sample: _with_out(info.op, sample, recorder))


def _with_gradient(form: Callable[..., Any], sample: Any, recorder: _Recorder) -> None:
    with recorder:
        made = form(sample.input, *sample.args, **sample.kwargs)
        outputs = [one for one in _tensors(made) if one.requires_grad and one.dtype.is_floating_point]
        if outputs:
            outputs[0].sum().backward()


def _with_out(form: Callable[..., Any], sample: Any, recorder: _Recorder) -> None:
    with torch.no_grad():
        out = tree_map(_copied, form(sample.input, *sample.args, **sample.kwargs))
        with recorder:
            form(sample.input, *sample.args, **sample.kwargs, out=out)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda one: found.append(one) if isinstance(one, torch.Tensor) else None, value)
    return found


def _attempt(act: Callable[[], Any]) -> bool:
    try:
        act()
    except Exception:  # noqa: BLE001  an operator may refuse in any way; then this was no call of it
        return False
    return True


# From the schema

SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (4, 4), (2, 4, 8, 8), (4,), (2, 4, 4), (2, 4, 4, 8, 8), (1, 4, 8), (1,))
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
OTHERS: tuple[tuple[int, ...] | None, ...] = (None, (), (4,))
"""Shape of every tensor but the first; None: that of the first."""
INDICES = ("index", "indices", "target", "offsets", "idx", "batch_sizes", "lengths", "pivots", "repeats", "sorter")
MASKS = ("mask", "condition", "found_inf_mask")
NUMBERS: Mapping[str, Any] = {
    "groups": 1, "stride": 1, "dilation": 1, "kernel_size": 2, "padding": 0, "output_padding": 0, "output_size": 4,
    "n": 2, "steps": 4, "end": 4, "high": 4, "size": 4, "upscale_factor": 2, "downscale_factor": 2, "num_groups": 2,
    "length": 1, "chunks": 2, "split_size": 2, "num_classes": 4, "step": 1, "bins": 4, "upper": 1, "hidden_size": 4,
    "num_heads": 2, "repeats": 2, "block_size": 1, "window_length": 4, "n_fft": 4, "N": 2, "C": 4, "HxW": 64,
    "group": 2, "eps": 1e-5, "p": 0.5, "max": 1, "scale": 1.0, "k": 1, "num_layers": 1,
}  # fmt: skip
WORDS: Mapping[str, str] = {
    "mode": "constant", "reduce": "sum", "approximate": "none", "side": "left", "indexing": "ij", "driver": "gelsd",
    "rounding_mode": "floor", "equation": "ij->ij", "dimension": "a", "assert_msg": "no", "UPLO": "L",
    "reduction": "sum",
}  # fmt: skip


def written(name: str) -> OperatorCall | None:
    """The call that tools/written_calls.py has of `aten::einsum`."""
    name = name.removeprefix("aten::")
    return OperatorCall(args=POSITIONAL[name](), keywords=keywords(name)) if name in POSITIONAL else None


def filled(operator: Any) -> OperatorCall | None:
    """Arguments by the schema with which the operator runs on the CPU; None where none of the fillings does."""
    return next((call for call in fillings(operator) if call is not None and _runs(operator, call)), None)


def fillings(operator: Any) -> Iterator[OperatorCall | None]:
    """Arguments of its types, of a few shapes and dtypes; None where nothing is known for one of the types."""
    for shape, dtype, others in itertools.product(SHAPES, DTYPES, OTHERS):
        for least in (False, True):
            yield _filling(operator, shape, dtype, others, least=least)


def _filling(
    operator: Any, first: tuple[int, ...], dtype: torch.dtype, others: tuple[int, ...] | None, *, least: bool
) -> OperatorCall | None:
    """`others`: the shape of every tensor but the first, where it is another; `least`: what may be left out, is."""
    args, keywords = list[Any](), dict[str, Any]()
    for at, argument in enumerate(operator._schema.arguments):
        shape = first if others is None or at == 0 or argument.name == "out" else others
        if argument.has_default_value() and (least or argument.kwarg_only):
            if not argument.kwarg_only:
                args.append(argument.default_value)
            continue
        try:
            value = _value(argument, shape, dtype)
        except KeyError:
            return None
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            args.append(value)
    return OperatorCall(args=tuple(args), keywords=keywords)


def _value(argument: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Something of the argument's type; KeyError for a type that nothing is known for."""
    kind, name = str(argument.type).removeprefix("Optional[").removesuffix("]"), argument.name
    number = NUMBERS.get(name, 0 if name == "dim" else 1)
    if kind == "Tensor":
        return _tensor(name, shape, dtype)
    if kind in ("List[Tensor", "List[Optional[Tensor]"):
        return [_tensor(name, shape, dtype) for _ in range(2)] if "indices" not in name else [torch.tensor([0, 1])]
    if kind.startswith(("List[int", "List[SymInt")):
        count = argument.N if getattr(argument, "N", None) else len(shape) if name in ("size", "sizes") else 2
        return list(shape) if name in ("size", "sizes", "self_size", "input_size") else [int(number)] * int(count or 2)
    simple: Mapping[str, Any] = {
        "int": int(number), "SymInt": int(number), "float": float(number), "number": number, "bool": False,
        "str": WORDS.get(name, "none"), "Device": torch.device("cpu"), "ScalarType": dtype,
        "Layout": torch.strided, "MemoryFormat": torch.contiguous_format, "List[bool": [True] * 3,
        "List[float": [1.0, 1.0], "List[number": [1, 1], "Generator": None, "Dimname": None, "Stream": None,
    }  # fmt: skip
    return simple[kind]


def _tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if any(word in name for word in INDICES):
        return torch.zeros(shape[-1:] if len(shape) == 1 else shape, dtype=torch.int64)
    if any(word in name for word in MASKS):
        return torch.ones(shape, dtype=torch.bool)
    if dtype is torch.float32 and len(shape) > 1 and shape[-1] == shape[-2]:
        return torch.eye(shape[-1]).expand(shape).contiguous() + 0.1
    return torch.ones(shape, dtype=dtype)


class _TooLong(Exception):
    """A made-up call does not end."""


def _runs(operator: Any, call: OperatorCall) -> bool:
    """On the CPU, within a second."""

    def late(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    left = signal.setitimer(signal.ITIMER_REAL, 1)[0]
    made = call.copied()
    try:
        with torch.no_grad():
            return _attempt(lambda: operator(*made.args, **made.keywords))
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


DANGEROUS = ("_cudnn", "miopen", "mps", "_nested", "from_file", "_cslt", "mkldnn", "_use_")
"""Parts of names of operators that end the process when they are called with something made up."""


def safe(wanted: Sequence[str]) -> Iterator[str]:
    """Those of the operators that may be called in this process."""
    return (name for name in wanted if not any(word in name for word in DANGEROUS))


def isolated(wanted: Sequence[str]) -> dict[str, OperatorCall]:
    """`calls` with each made-up call tried in a process of its own: some end the process, or break its memory."""
    torch.set_num_threads(1)  # threads do not outlive a fork
    found, spare = sampled(set(wanted))
    found |= {name: call for name in wanted if name not in found and (call := written(name))}
    for name in wanted:
        if name not in found and (place := in_a_child(lambda name=name: _first_that_runs(name))):
            call = next(itertools.islice(fillings(overload(name)), int(place), None))
            assert call is not None
            found[name] = call
    return spare | found


def _first_that_runs(name: str) -> str:
    operator = overload(name)
    runs = (at for at, call in enumerate(fillings(operator)) if call is not None and _runs(operator, call))
    return str(next(runs, ""))


def in_a_child(act: Callable[[], str]) -> str:
    """What `act` says in a process of its own; nothing where that ends first, or does not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(int(LONGEST_S))
        os.write(writing, act().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said
