"""What production says beside the configuration: collectives, the mode of eager operators, patterns, scopes of a model.

`patch_for_hcom` has its place in YAML. The others have not, or lie in the model, which keeps them: each is a line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.recipe.environment import from_environment
from npucompose.recipe.values import NOT_CONSTANT, Const, Items, Object, Unknown, Value, plain, with_keywords

if TYPE_CHECKING:
    from npucompose.recipe.reader import _Reader

Args = Sequence[Value]
Keywords = Mapping[str, Value]
PATCHING_MODULE = "patch_for_hcom_allreduce"
"""A module of torchair that patches torch.distributed.all_reduce where it is imported
(torchair/ge_concrete_graph/ge_converter/experimental/patch_for_hcom_allreduce.py)."""
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
INSTEAD: Mapping[str, str] = {
    "streams": "passes=stream_plan with streams=auto or a plan of your own does it from YAML",
    "cores": "passes=core_limit does it from YAML",
    "super kernels": "passes=super_kernel does it from YAML",
}


def patch_for_hcom(reader: _Reader, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    reader.facts.hcom.append((e.lineno, reader.code(e), reader.doubt))
    return Const(value=None)


def register_replacement(reader: _Reader, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
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


def set_compile_mode(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    value = keywords.get("jit_compile", args[0] if args else Const(value=False))
    known = f"={plain(value)}" if isinstance(value, Const) else ""
    reader.unread(
        e, f"jit_compile{known} is about operators outside of a graph, for the whole process: no YAML is known for it"
    )
    return Const(value=None)


def in_a_model(reader: _Reader, name: str, e: ast.Call) -> None:
    """A scope or an event in a model's own code, gathered to one note for all calls of one kind."""
    kind = IN_MODELS.get(name)
    if kind is not None:
        reader.facts.in_models.setdefault(kind, {}).setdefault(name, []).append(e.lineno)


def getenv(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return from_environment([*args[:1], *([keywords["default"]] if "default" in keywords else args[1:])])


def converted(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """int(), bool(), str() and float() of a constant; of anything else what is known of that."""
    convert: Mapping[str, Callable[[Any], Any]] = {"int": int, "bool": bool, "str": str, "float": float}
    name = e.func.id if isinstance(e.func, ast.Name) else ""
    if len(args) != 1 or not isinstance(args[0], Const):
        return args[0] if len(args) == 1 and isinstance(args[0], Unknown) else Unknown(why=NOT_CONSTANT)
    try:
        return Const(value=convert[name](args[0].value))
    except (TypeError, ValueError, OverflowError):
        return Unknown(why=NOT_CONSTANT)


def namespace(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if "**" in keywords and not isinstance(keywords["**"], Items):
        return Unknown(why="some of its fields are not constants")
    return Object(name="SimpleNamespace", attributes=with_keywords(keywords))
