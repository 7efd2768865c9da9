"""Calls that say something beside a configuration: marks and gears, logs, the environment, a model's own scopes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from npucompose.recipe.paths import Paths
from npucompose.recipe.python_calls import Args, Keywords
from npucompose.recipe.values import LOOP, REST, Const, Items, Unknown, Value, plain

OVER_ARGUMENT = f"{LOOP} over an argument"

ENVIRONMENT = "YAML sets no environment: set it where npucompose runs, or hydra.job.env_set"

VENDOR_ENVIRONMENT = (
    "ASCEND", "ACL", "ATB", "CANN", "GE_", "HCCL", "NPU", "PYTORCH_NPU", "TASK_QUEUE", "TNG_", "TORCHAIR",
    "TORCH_COMPILE",
)  # fmt: skip
"""How the names of variables begin that torch_npu, TorchAir and CANN read."""

LEAST_GEAR = 2

NAMES: Mapping[str, str] = {"compile": "torch.compile"}

IN_MODELS: Mapping[str, str] = {
    "npu_stream_switch": "streams",
    "npu_wait_tensor": "streams",
    "npu_create_tagged_event": "streams",
    "npu_tagged_event_record": "streams",
    "npu_tagged_event_wait": "streams",
    "npu_record_tagged_stream": "streams",
    "record": "streams",
    "wait": "streams",
    "limit_core_num": "cores",
    "super_kernel": "super kernels",
    "deterministic": "determinism",
    "op_never_timeout": "time-outs",
    "data_dump": "dumps",
}
"""Functions of torchair.scope and torchair.ops (torch_npu 2.13.0) that a model's forward calls, by what they decide."""


def set_dim_gears(reader: Paths, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torchair.inference.set_dim_gears(x, {0: [32, 64]})."""
    arguments_known(reader, e, args, keywords, 2, ("t", "dim_gears"))
    given = args[1] if len(args) > 1 else keywords.get("dim_gears")
    name = _name_of(args[0] if args else keywords.get("t"))
    items = given.items if isinstance(given, Items) else {}
    gears = {int(dim): plain(sizes) for dim, sizes in items.items() if dim.isdigit()}
    if reader.doubt:
        reader.unread(e, reader.doubt)
    elif not name:
        reader.unread(e, "it is not known which input this is")
    elif not gears or len(gears) < len(items) or not all(map(_are_gears, gears.values())):
        reader.unread(e, "YAML takes 2 to 100 constant sizes, of at least 1, for each dimension")
    else:
        kept = {dim: tuple(size for size in sizes if size >= LEAST_GEAR) for dim, sizes in gears.items()}
        if kept != {dim: tuple(sizes) for dim, sizes in gears.items()}:
            reader.unread(
                e, "torch makes a size of 1 a constant: YAML takes two or more gears of at least 2, without it"
            )
        if all(len(sizes) > 1 for sizes in kept.values()):
            reader.facts.gears.append((name, kept))
    return Const(value=None)


def _are_gears(sizes: Any) -> bool:
    return isinstance(sizes, list) and 2 <= len(sizes) <= 100 and all(type(s) is int and s >= 1 for s in sizes)


def arguments_known(
    reader: Paths, e: ast.Call, args: Args, keywords: Keywords, most: int, names: Sequence[str]
) -> None:
    """Every argument that is not one of these is a line."""
    others = [*(["an argument"] if len(args) > most else []), *(name for name in keywords if name not in names)]
    function = reader.code(e.func).rpartition(".")[2]
    for name in others:
        of = f"of {NAMES.get(function, function)}"
        reader.unread(e, f"some arguments {of} are not known" if name == REST else f"no YAML is known for {name} {of}")


def patch_for_hcom(reader: Paths, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    reader.facts.hcom.append((e.lineno, reader.code(e), reader.doubt))
    return Const(value=None)


def register_replacement(reader: Paths, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """register_replacement(search_fn, replace_fn, example_inputs, …): which functions, for they are Python."""
    names = {"search_fn": 0, "replace_fn": 1}
    found = [keywords.get(name, args[at] if len(args) > at else None) for name, at in names.items()]
    said = [getattr(value, "name", "") or getattr(getattr(value, "node", None), "name", "?") for value in found]
    others = [name for name in keywords if name not in names]
    also = f", with {', '.join(others)}" if others else ""
    reader.unread(
        e,
        f"a replacement is Python ({said[0]} by {said[1]}{also}): passes=replace has the known ones, and a pattern of "
        "your own is registered for it (docs/adding_a_pass.md)",
    )
    return Const(value=None)


def set_compile_mode(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    value = keywords.get("jit_compile", args[0] if args else Const(value=False))
    known = f"={plain(value)}" if isinstance(value, Const) else ""
    reader.unread(
        e, f"jit_compile{known} is about operators outside of a graph, for the whole process: no YAML is known for it"
    )
    return Const(value=None)


def in_a_model(reader: Paths, name: str, e: ast.Call) -> None:
    """A scope or an event in a model's own code, gathered to one note for all calls of one kind."""
    kind = IN_MODELS.get(name)
    if kind is not None:
        reader.facts.in_models.append((kind, name, e.lineno))


def mark_static(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if len(args) + len(keywords) > 1:
        reader.unread(e, "YAML marks whole tensors as static, not single dimensions")
    else:
        _mark(reader, e, args[0] if args else keywords.get("t"), None)
    return Const(value=None)


def mark_dynamic(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    dims = plain(args[1] if len(args) > 1 else keywords.get("index", Const(value=None)))
    numbers = [dims] if isinstance(dims, int) else dims
    more = len(args) > 2 or set(keywords) - {"index", "t"}
    if more or not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
        reader.unread(e, "YAML takes plain dimensions")
    else:
        _mark(reader, e, args[0] if args else keywords.get("t"), tuple(numbers))
    return Const(value=None)


def _mark(reader: Paths, e: ast.Call, subject: Value | None, dims: tuple[int, ...] | None) -> None:
    """In a loop over an argument it marks all of it, and what is no tensor cannot be marked."""
    doubts = [why for why in reader.doubts if why != OVER_ARGUMENT and "isinstance(" not in why]
    if doubts:
        reader.unread(e, doubts[-1])
    elif not _name_of(subject):
        reader.unread(e, "it is not known which input this is")
    else:
        reader.facts.marks.append((_name_of(subject), dims))


def _name_of(subject: Value | None) -> str:
    return subject.name if isinstance(subject, Unknown) else ""


def of_the_vendor(key: Value) -> bool:
    """Whether a variable of the environment is one that the vendor's software may read."""
    return not isinstance(key, Const) or str(key.value).startswith(VENDOR_ENVIRONMENT)


def environment(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    given = args[0] if args else Const(value="")
    names: list[Value] = [Const(value=name) for name in given.items] if isinstance(given, Items) else [given]
    if any(of_the_vendor(name) for name in (*names, *(Const(value=name) for name in keywords))) or REST in keywords:
        reader.unread(e, ENVIRONMENT)
    return Unknown(why="a variable of the environment")


def set_logs(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    for name, value in keywords.items():
        if isinstance(value, Const) and value.value is True and not reader.doubt:
            reader.facts.artifacts.append(name)
        else:
            reader.unread(e, reader.doubt or f"YAML can only turn {name} on")
    return Const(value=None)
