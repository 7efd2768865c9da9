"""What lists, dicts, classes and modules of a script are to its reader: plain functions of values."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from npucompose.recipe.values import (
    Const,
    Dotted,
    Filter,
    Items,
    Logger,
    Object,
    Pool,
    Rounds,
    Unknown,
    Value,
    plain,
    spread,
)

LOGGERS = frozenset(f"{top}{at}.logger" for top in ("torchair", "npugraph_ex") for at in ("", ".core.utils"))
MOST_ITEMS = 10_000
"""Of a constant list or dict, what is in its lists counted too."""


def items_of(pairs: Iterable[tuple[Value | None, Value]]) -> dict[str, Value]:
    """The entries of a dict, `**other` as (None, other)."""
    found: dict[str, Value] = {}
    for key, value in pairs:
        if isinstance(key, Const):
            found[str(key.value)] = named(value, str(key.value))
        else:
            found |= spread(value if key is None else key)
    return found


def rounds_of(over: Value) -> Value:
    """A constant list as rounds; a pair in it is shared out among two targets."""
    if isinstance(over, Items):
        return Rounds(rounds=tuple((Const(value=key),) for key in over.items)) if "**" not in over.items else over
    if not isinstance(over, Const) or not isinstance(over.value, list):
        return over
    items: list[Any] = over.value
    return Rounds(
        rounds=tuple(tuple(map(constant, item)) if isinstance(item, list) else (constant(item),) for item in items)
    )


def constant(value: Any) -> Value:
    if isinstance(value, dict):
        return Items(items={str(key): constant(item) for key, item in value.items()})
    return Const(value=value)


def constructed(made: Object, keywords: Mapping[str, Value]) -> None:
    """The fields of a class without __init__, as a dataclass takes them."""
    for name, value in keywords.items():
        before = made.attributes.get(name)
        other = name in made.given and (not isinstance(before, Const) or plain(before) != plain(value))
        made.attributes[name] = Unknown(why=f"instances of {made.name} have several values of it") if other else value
        made.given.add(name)


def is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in node.decorator_list]
    return not {"property", "cached_property"}.isdisjoint(names)


def size(value: Any) -> int:
    """How many values it holds; counts no further than needed, for lists may hold the same one again and again."""
    inside: Sequence[Any] = (
        list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    total = 1
    for item in inside:
        total += size(item)
        if total > MOST_ITEMS:
            break
    return total


def module(name: str) -> Value:
    """Something of a module; TorchAir's logger goes by the name that Python's logging knows it by."""
    top = name.partition(".")[0]
    return Logger(name=top) if name in LOGGERS else Dotted(name=name)


def filter_of(args: Sequence[Value]) -> Value:
    patterns = plain(args[0]) if args else None
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return Filter(patterns=tuple(patterns))
    return Unknown(why="the patterns of the filter are not constants")


def named(value: Value, name: str) -> Value:
    """A pool takes the name of the first variable, attribute or key that holds it."""
    return Pool(name=name) if isinstance(value, Pool) and not value.name else value
