"""One dense tensor out of a file of torch.save, without unpickling: the few instructions that torch writes for one are
followed here, and everything else is refused by its name. Nothing is made before its size was compared with the file's.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from attrs import frozen

if TYPE_CHECKING:
    import torch

MOST_PICKLED = 2**20
"""Of what describes the tensor, without its bytes."""
MOST_LENGTH = 2**30
"""Of one dimension, and of a step between elements."""
MOST_DIMENSIONS = 64
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}  # fmt: skip
"""torch/storage.py, `_dtype_to_storage_type_map` (torch 2.13): the classes that stand in the files."""
_CONTENT = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None, "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}  # fmt: skip
_MARK = object()


class Refused(ValueError):
    """str(e) goes on from the file's name: `holds a list, and one dense tensor is read`."""


@frozen
class _Name:
    """A class or function that the file names, and that is neither imported nor called."""

    text: str


@frozen
class _Storage:
    dtype: str
    key: str
    length: int


@frozen(kw_only=True)
class _View:
    """A tensor as the file describes it."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    flags: tuple[str, ...] = ()


def read(file: BinaryIO, size: int, most_bytes: int) -> torch.Tensor:
    """The tensor, on the CPU, in a file of so many bytes."""
    if file.read(4) != b"PK\x03\x04":
        raise Refused("is no file of torch.save, or a bare pickle as torch before 1.6 wrote: save it anew")
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            packed = any(part.compress_type != zipfile.ZIP_STORED or part.flag_bits & 1 for part in parts)
            if packed or any(part.file_size != part.compress_size or part.file_size > size for part in parts):
                raise Refused("holds packed or overlong parts, as torch.save writes none: it is not read")
            names = [part.filename for part in parts if re.fullmatch(r"[^/]{1,255}/data\.pkl", part.filename)]
            if len(names) != 1:
                raise Refused("describes no tensor, or several times: it is not read")
            root = names[0].removesuffix("data.pkl")
            if archive.getinfo(names[0]).file_size > MOST_PICKLED:
                raise Refused(f"describes its tensors in more than {MOST_PICKLED:,} bytes: it is not read")
            if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
                raise Refused("has its bytes in another order than this machine: it is not read")
            view = _described(archive.read(names[0]))
            return _made(view, lambda key: archive.read(f"{root}data/{key}"), most_bytes)
    except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, UnicodeError) as error:
        raise Refused(f"is no whole file of torch.save ({type(error).__name__}: {str(error)[:80]})") from error


def _described(pickled: bytes) -> _View:
    try:
        found = _followed(pickled)
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise Refused(f"describes no tensor that torch.save writes ({type(error).__name__})") from error
    if not isinstance(found, _View):
        raise Refused(f"holds a {type(found).__name__.strip('_').lower()}, and one dense tensor is read")
    return found


def _followed(pickled: bytes) -> Any:
    """What the instructions leave, of Python's pickle (pickletools.py); no instruction of them calls anything."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def from_mark() -> list[Any]:
        at = len(stack) - 1 - stack[::-1].index(_MARK)
        taken = stack[at + 1 :]
        del stack[at:]
        return taken

    for code, value, _ in pickletools.genops(io.BytesIO(pickled)):
        name = code.name
        if name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(value)
        elif name in _CONTENT:
            stack.append(_CONTENT[name]())
        elif name == "GLOBAL":
            stack.append(_Name(str(value)))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value or 0] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value or 0])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(tuple(from_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
        elif name in ("APPEND", "APPENDS"):
            more = from_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(more)
        elif name in ("SETITEM", "SETITEMS"):
            items = from_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update({str(key): of for key, of in zip(items[::2], items[1::2], strict=True)})
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_rebuilt(stack.pop(), arguments))
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise Refused(f"holds something else than tensors ({name}), and one dense tensor is read")
    raise ValueError("without an end")


def _storage(said: tuple[Any, ...]) -> _Storage:
    kind, named, key, _, length = said
    module, _, name = named.text.rpartition(" ")
    dtype = "uint8" if (module, name) == ("torch.storage", "UntypedStorage") else _STORAGES.get(name)
    if kind != "storage" or dtype is None or not module.startswith("torch"):
        raise Refused(f"holds a storage of the kind {named.text[:60]}, and one dense tensor is read")
    if not re.fullmatch(r"\d{1,9}", key):
        raise ValueError("the name of a storage")
    return _Storage(dtype, key, _number(length))


def _rebuilt(named: _Name, arguments: tuple[Any, ...]) -> Any:
    if named.text == "collections OrderedDict" and arguments == ():
        return {}
    if named.text == "torch._utils _rebuild_parameter":
        return arguments[0]
    if named.text not in ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"):
        raise Refused(f"holds {named.text.replace(' ', '.')[:60]}, and one dense tensor is read")
    storage, offset, shape, stride, _, _, *more = arguments
    dtype = more.pop(0).text.removeprefix("torch ") if named.text.endswith("v3") else storage.dtype
    flags = tuple(name for name, is_set in (more[0] if more else {}).items() if is_set)
    if not set(flags) <= {"conj", "neg"} or not isinstance(storage, _Storage):
        raise ValueError("another form of a tensor")
    return _View(
        storage=storage, dtype=dtype, offset=_number(offset), shape=tuple(map(_number, shape)),
        stride=tuple(map(_number, stride)), flags=flags,
    )  # fmt: skip


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 2**40:
        raise ValueError("no length")
    return value


def _made(view: _View, content: Callable[[str], bytes], most_bytes: int) -> torch.Tensor:
    import torch

    dtype, stored = getattr(torch, view.dtype, None), getattr(torch, view.storage.dtype)
    if not isinstance(dtype, torch.dtype):
        raise Refused(f"holds numbers of the kind {view.dtype[:40]!r}, which torch has not")
    if problem := shape_problem(view.shape, dtype.itemsize, most_bytes) or shape_problem(view.stride, 0, most_bytes):
        raise Refused(problem)
    if len(view.shape) != len(view.stride):
        raise Refused(f"says a shape that no tensor has: {view.shape} in steps of {view.stride}")
    data = bytearray(content(view.storage.key))
    last = view.offset + sum((length - 1) * step for length, step in zip(view.shape, view.stride, strict=True))
    has = len(data) // dtype.itemsize
    if len(data) != view.storage.length * stored.itemsize or (0 not in view.shape and last >= has):
        raise Refused(f"says {view.storage.length:,} elements and has {len(data):,} bytes: it is cut off")
    if 0 in view.shape:
        return torch.empty(view.shape, dtype=dtype)
    made = torch.frombuffer(data, dtype=dtype).as_strided(view.shape, view.stride, view.offset)
    made = made.conj() if "conj" in view.flags else made
    return made._neg_view() if "neg" in view.flags else made


def shape_problem(shape: tuple[object, ...], itemsize: int, most_bytes: int) -> str | None:
    """Why no tensor has the shape: lengths that are no numbers or too large, or together more than `most_bytes`."""
    total = itemsize
    for length in shape:
        if type(length) is not int or not 0 <= length <= MOST_LENGTH or len(shape) > MOST_DIMENSIONS:
            return f"says a shape that no tensor has: {str(shape)[:80]}"
        total *= max(length, 1)
        if total > 2**62:
            return f"says a shape that no tensor has: {str(shape)[:80]}"
    if total > most_bytes and 0 not in shape:
        return f"holds a tensor of more than {most_bytes:,} bytes: it is not read"
    return None
