"""Operators, functions and methods of Python that a script's values go through. Arithmetic and comparisons of constants
are done in bounds: a script cannot make its reader compute for hours.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve

from npucompose.recipe.values import (
    LOGGER,
    MISSING,
    NOT_CONSTANT,
    REST,
    At,
    Cells,
    Config,
    Const,
    Items,
    Object,
    Partial,
    ScriptBackend,
    Unknown,
    Value,
    elements,
    from_environment,
    inside,
    is_plain,
    logger,
    plain,
)

Args = Sequence[Value]
Keywords = Mapping[str, Value]


OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
GROWING = (ast.Mult, ast.Pow, ast.LShift)
LONGEST = 4096
"""Bits of a number, characters of a text."""


def applied(function: Callable[..., Any], *values: Value) -> Value:
    """What a function of constants gives; it is not known where one is none, and where it raises."""
    try:
        return Const(value=function(*map(plain, values))) if all(map(is_plain, values)) else Unknown(why=NOT_CONSTANT)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return Unknown(why=NOT_CONSTANT)


def compared(e: ast.Compare, sides: Sequence[Value]) -> Value | None:
    """None where a side is no constant."""

    def held(*values: Any) -> bool:
        return all(OPERATORS[type(op)](a, b) for op, a, b in zip(e.ops, values, values[1:], strict=False))

    return applied(held, *sides) if all(map(is_plain, sides)) else None


def computed(op: ast.operator | ast.unaryop, *values: Any) -> Any:
    """`2 ** 20`, `-1`, `"a" + "b"`; ValueError or KeyError for what is computed otherwise or grows too long."""
    if isinstance(op, GROWING) and not (isinstance(values[1], int) and abs(values[1]) <= 64):
        raise ValueError("a factor that is too large")
    return _bounded(OPERATORS[type(op)](*map(_bounded, values)))


def _bounded(value: Any) -> Any:
    """ValueError for what grows from step to step: a script cannot make the reader compute for hours."""
    if isinstance(value, int) and value.bit_length() > LONGEST:
        raise ValueError("a number that is too long")
    if isinstance(value, (str, bytes)) and len(value) > LONGEST:
        raise ValueError("a text that is too long")
    return value


def held_in(values: Iterable[Value]) -> tuple[Value, ...]:
    """The objects that may be reached through values: code that has them may change them."""
    found: dict[int, Value] = {}
    for value in values:
        if isinstance(value, (Config, At, Items, Object)):
            found[id(value)] = value
        parts = value.either if isinstance(value, Unknown) else value.cells.values() if isinstance(value, Items) else ()
        found |= {id(part): part for part in parts if isinstance(part, (Config, At, Items, Object, ScriptBackend))}
    return tuple(found.values())


def why_unknown(parts: Sequence[Value]) -> Unknown:
    """Of several parts the first that says why it is not known: the variable of the environment, the argument."""
    first = next((part for part in parts if isinstance(part, Unknown)), Unknown(why=NOT_CONSTANT))
    return Unknown(why=str(first), name=first.name, either=held_in(parts))


def _keyed(reader: Any, e: Any, on: Items, args: Args, keywords: Keywords) -> Value:
    """get, setdefault and pop."""
    name, key = e.func.attr, args[0] if args else Unknown(why=NOT_CONSTANT)
    if not isinstance(key, Const) or on.listed:
        if name != "get":
            reader.spoil(on.cells, f"line {e.lineno} changes it at a key that is not constant", holds=held_in(args))
        return Unknown(why=NOT_CONSTANT, either=held_in([on]))
    unset = Unknown(why=NOT_CONSTANT) if name == "pop" else Const(value=None)
    default = args[1] if len(args) > 1 else keywords.get("default", unset)
    found = on.cells.get(str(key.value), on.cells.get(REST, MISSING))
    if name == "pop":
        reader.put(on.cells, str(key.value), MISSING)
    elif name == "setdefault" and isinstance(found, Unknown):
        reader.filled(on, [(key, default if found is MISSING else found)])
    return default if found is MISSING else found


def _update(reader: Any, e: ast.Call, on: Items, args: Args, keywords: Keywords) -> Value:
    named_ones = [(None if name == REST else Const(value=name), value) for name, value in keywords.items()]
    reader.filled(on, [*((None, other) for other in args), *named_ones])
    return Const(value=None)


def _items(reader: Any, e: ast.Call, on: Items, args: Args, keywords: Keywords) -> Value:
    keys = elements(on)
    if keys is None or on.listed:
        return Unknown(why="some of its keys are not constants", either=held_in([on]))
    pairs = [(key, on.cells[str(plain(key))]) for key in keys]
    made = [Cells(reader.now, values={"0": key, "1": value}) for key, value in pairs]
    return reader.listed(e, [Items(cells=cells, listed=True) for cells in made])


def _append(reader: Any, e: ast.Call, on: Items, args: Args, keywords: Keywords) -> Value:
    if REST in on.cells:
        reader.spoil(on.cells, str(on.cells[REST]), holds=held_in(args))
    else:
        reader.put(on.cells, str(len(on.cells)), args[0] if args else Unknown(why=NOT_CONSTANT))
    return Const(value=None)


def _read_only(reader: Any, e: ast.Call, on: Items, args: Args, keywords: Keywords) -> Value:
    return Unknown(why=NOT_CONSTANT, either=held_in([on]))


def _copy(reader: Any, e: ast.Call, on: Items, args: Args, keywords: Keywords) -> Value:
    return _read_only(reader, e, on, args, keywords) if on.listed else _dict(reader, e, [on], {})


def _getenv(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return from_environment([*args[:1], *([keywords["default"]] if "default" in keywords else args[1:])])


def _converted(reader: Any, e: Any, args: Args, keywords: Keywords) -> Value:
    """int(), bool(), str() and float() of a constant; of anything else what is known of that."""
    convert: Mapping[str, Callable[[Any], Any]] = {"int": int, "bool": bool, "str": str, "float": float}
    if len(args) != 1 or not isinstance(args[0], Const) or not isinstance(e.func, ast.Name):
        return why_unknown(args)
    found = applied(convert[e.func.id], args[0])
    return evolve(found, node=e) if isinstance(found, Const) else found


def _namespace(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    made = reader.made(e, Object, name="SimpleNamespace")
    for name, value in keywords.items():
        reader.put(made.cells, name, value)
    return made


def _get_logger(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[0]) if args else ""
    return logger(name) if isinstance(name, str) else Unknown(why="a logger of unknown name")


def _setattr(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if len(args) == 3:
        name = plain(args[1])
        if isinstance(name, str):
            reader.each(args[0], lambda base: reader.store(base, name, args[2], e))
        else:
            reader.escape(args[0], f"line {e.lineno} sets something of it")
            if isinstance(args[0], (Config, At)):
                reader.unread(e, "the option's name is not a constant")
    return Const(value=None)


def _getattr(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[1]) if len(args) > 1 else None
    if isinstance(name, str) and isinstance(args[0], (Config, At)):
        return inside(args[0], name)
    return Unknown(why="getattr() is known only when the script runs", either=held_in(args[:1]))


def _dict(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    made = reader.made(e, Items)
    _update(reader, e, made, args, keywords)
    return made


def _partial(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """Read where it is called, or last where no call of it is seen."""
    if not args or isinstance(args[0], Const):
        return Unknown(why="functools.partial() is known only when the script runs")
    made = Partial(function=args[0], node=e, args=tuple(args[1:]), keywords=keywords)
    reader.defs.append(made)
    return made


def _exit(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    reader.dead = True
    return Unknown(why=NOT_CONSTANT)


def _type(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    made = args[0] if len(args) == 1 else None
    if isinstance(made, Object) and made.cls is not None:
        return made.cls
    return Unknown(why=NOT_CONSTANT, either=held_in(args))


def _first(reader: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return args[0] if args else Unknown(why=NOT_CONSTANT)


DICT_METHODS: Mapping[str, Callable[[Any, ast.Call, Items, Args, Keywords], Value]] = {
    "update": _update,
    "items": _items,
    "append": _append,
    "copy": _copy,
    **dict.fromkeys(("get", "setdefault", "pop"), _keyed),
    **dict.fromkeys(("keys", "values", "index", "count"), _read_only),
}
PYTHON: Mapping[str, Callable[[Any, ast.Call, Args, Keywords], Value]] = {
    "os.getenv": _getenv,
    "os.environ.get": _getenv,
    "types.SimpleNamespace": _namespace,
    "argparse.Namespace": _namespace,
    LOGGER: _get_logger,
    "setattr": _setattr,
    "getattr": _getattr,
    "dict": _dict,
    "functools.partial": _partial,
    "super()": _first,
    "type": _type,
    "torch.utils._pytree.tree_leaves": _first,
    **dict.fromkeys(("sys.exit", "exit", "quit", "os._exit"), _exit),
    **dict.fromkeys(("int", "bool", "str", "float"), _converted),
}
"""Functions of Python itself, and one of torch."""
