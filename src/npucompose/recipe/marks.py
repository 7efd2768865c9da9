"""Calls that say something beside a configuration: marks and gears, logs, the environment, a model's own scopes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from npucompose.recipe.paths import Paths
from npucompose.recipe.python_calls import Args, Keywords
from npucompose.recipe.values import LOGGER, LOOP, REST, Const, Dotted, Items, Unknown, Value, plain
from npucompose.vendor.variables import read_by_ascend

OVER_ARGUMENT = f"{LOOP} over an argument"

ENVIRONMENT = "YAML sets no environment: set it where npucompose runs, or hydra.job.env_set"

LEAST_GEAR = 2

NONE = Const(value=None)

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


def bound(reader: Paths, e: Any, args: Args, keywords: Keywords, signature: str) -> Keywords:
    """{parameter: what is given for it}, `**` for what is not known. "a * b" has a parameter that may stand first, and
    one by its name alone; every other argument is a line, unless the signature ends with "...".
    """
    positional, names = signature.partition("*")[0].replace("...", "").split(), signature.split()
    others = [name for name in keywords if name not in names]
    others += ["an argument"] if len(args) > len(positional) else []
    function = reader.code(e.func).rpartition(".")[2]
    for name in others if "..." not in names else ():
        of = f"of {NAMES.get(function, function)}"
        reader.unread(e, f"some arguments {of} are not known" if name == REST else f"no YAML is known for {name} {of}")
    return {**dict(zip(positional, args, strict=False)), **keywords}


def set_dim_gears(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    """torchair.inference.set_dim_gears(x, {0: [32, 64]})."""
    said, name = given.get("dim_gears"), _name_of(given.get("t"))
    items = said.cells if isinstance(said, Items) else {}
    gears = {int(dim): plain(sizes) for dim, sizes in items.items() if dim.isdigit()}
    known = bool(gears) and len(gears) == len(items) and all(map(_are_gears, gears.values()))
    why = reader.doubt or ("" if name else "it is not known which input this is")
    why = why or ("" if known else "YAML takes 2 to 100 constant sizes, of at least 1, for each dimension")
    kept = {} if why else {dim: tuple(size for size in sizes if size >= LEAST_GEAR) for dim, sizes in gears.items()}
    if not why and any(1 in sizes for sizes in gears.values()):
        why = "torch makes a size of 1 a constant: YAML takes two or more gears of at least 2, without it"
    if why:
        reader.unread(e, why)
    if kept and all(len(sizes) > 1 for sizes in kept.values()):
        reader.facts.gears.append((name, kept))
    return NONE


def _are_gears(sizes: Any) -> bool:
    return isinstance(sizes, list) and 2 <= len(sizes) <= 100 and all(type(s) is int and s >= 1 for s in sizes)


def patch_for_hcom(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    reader.facts.hcom.append((e.lineno, reader.code(e), reader.doubt))
    return NONE


def in_a_model(reader: Paths, name: str, e: ast.Call) -> None:
    """A scope or an event in a model's own code, gathered to one note for all calls of one kind."""
    if name in IN_MODELS:
        reader.facts.in_models.append((IN_MODELS[name], name, e.lineno))


def mark_static(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    whole = len(given) < 2
    return _mark(reader, e, given, None, "" if whole else "YAML marks whole tensors as static, not single dimensions")


def mark_dynamic(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    dims = plain(given.get("index", NONE))
    numbers = [dims] if isinstance(dims, int) else dims
    taken = isinstance(numbers, list) and all(isinstance(n, int) for n in numbers) and not set(given) - {"t", "index"}
    return _mark(reader, e, given, tuple(numbers) if taken else None, "" if taken else "YAML takes plain dimensions")


def _mark(reader: Paths, e: ast.Call, given: Keywords, dims: tuple[int, ...] | None, why: str) -> Value:
    """In a loop over an argument it marks all of it, and what is no tensor cannot be marked."""
    name = _name_of(given.get("t"))
    doubts = [why for why in reader.doubts if why != OVER_ARGUMENT and "isinstance(" not in why]
    why = why or next(reversed(doubts), "" if name else "it is not known which input this is")
    if why:
        reader.unread(e, why)
    else:
        reader.facts.marks.append((name, dims))
    return NONE


def _name_of(subject: Value | None) -> str:
    return subject.name if isinstance(subject, Unknown) else ""


def of_the_vendor(key: Value) -> bool:
    """Whether a variable of the environment is one that the vendor's software may read."""
    return not isinstance(key, Const) or read_by_ascend(str(key.value))


def environment(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    key = given.get("key", NONE)
    names = [Const(value=name) for name in (*(key.cells if isinstance(key, Items) else ()), *given)]
    if any(map(of_the_vendor, names)) or not (isinstance(key, Items) or not of_the_vendor(key)) or REST in given:
        reader.unread(e, ENVIRONMENT)
    return Unknown(why="a variable of the environment")


def set_logs(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    for name, value in given.items():
        if isinstance(value, Const) and value.value is True and not reader.doubt:
            reader.facts.artifacts.append(name)
        else:
            reader.unread(e, reader.doubt or f"YAML can only turn {name} on")
    return NONE


def of_a_logger(reader: Paths, name: str, e: ast.Call, args: Args) -> Value:
    """`logging.getLogger('torchair').setLevel`; its other methods say nothing."""
    logger, _, method = name.removeprefix(f"{LOGGER}(").rpartition(").")
    level = args[0] if args else Unknown(why="no level is given")
    said = level.name.removeprefix("logging.") if isinstance(level, Dotted) else str(plain(level))
    if method == "setLevel" and said in ("DEBUG", "INFO", "WARNING", "ERROR") and not reader.doubt:
        reader.facts.levels[ast.literal_eval(logger)] = said
    elif method == "setLevel":
        reader.unread(e, reader.doubt or "the level is none of DEBUG, INFO, WARNING, ERROR")
    return NONE
