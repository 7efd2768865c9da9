"""Plain data (what YAML and JSON give) becomes frozen attrs values and back; every mistake is reported with its path.

cattrs does the structuring (unknown keys forbidden, detailed validation); this file adds what people need at a command
line: strict scalars ("1" is not an integer, true is not an integer, an integer is a number, null stands only where the
type says None), validators that are asked beside the types and not after them, and words. Loads no torch.

What a program wrote (`facts_of`) is read by the same rules; only keys which this version does not know are left out.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from npucompose.errors import ConfigError, did_you_mean, listed, unknown
from npucompose.table.gone import instead_of
from npucompose.table.options import INT64_MAX, set_by_engine

T = TypeVar("T")

_SCALARS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda v: isinstance(v, bool)),
    int: ("an integer", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    float: ("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)),
    str: ("text", lambda v: isinstance(v, str)),
    type(None): ("null", lambda v: v is None),
}

_SEQUENCES: tuple[Any, ...] = (tuple, list, Sequence)

_MAPPINGS: tuple[Any, ...] = (dict, Mapping)

_REFUSED = (BaseValidationError, ConfigError, ValueError, TypeError)

_NOTES = (AttributeValidationNote, IterableValidationNote)

_HERE = "\0"
"""The path that a class is given which makes itself: where that lies is known when the problems are reported."""


class _Wrong(ValueError):
    """A value that does not fit: "must be <expected>: <value>"."""

    def __init__(self, expected: str, value: Any = None, hint: str = "") -> None:
        self.expected, self.value, self.hint = expected, value, hint
        super().__init__(expected)


def structure(cls: type[T], tree: Any, path: str = "", engine: Mapping[str, Any] | None = None) -> T:
    """An instance of the attrs class `cls` from a plain tree, or one ConfigError with every problem in it.

    `structure(Benchmark, {"min_calls": "abc", "warmpu": 3}, "benchmark")` raises a ConfigError whose problems are
    `'min_calls' must be an integer: 'abc' @ benchmark` and
    `unknown key 'warmpu' @ benchmark. Did you mean 'warmup'? Choices: …`. `engine` holds {experiment field: value} for
    the fields declared with `from_experiment`; a tree that sets such a field is refused. A class with a classmethod
    `of_tree(tree, path)` of its own makes itself; a value that is already a `cls` is returned as it is.
    """
    value = _read(_STRICT, cls, tree, *path.rpartition(".")[::2])
    given = {f: engine[source] for f, source in set_by_engine(cls).items() if engine and source in engine}
    return attrs.evolve(cast("Any", value), **given) if given and value is not tree else value


def facts_of(value: attrs.AttrsInstance) -> dict[str, Any]:
    """A value as plain JSON: a stage returns `facts_of(CompileTimes(total_s=1.0))` and the like."""
    return _LENIENT.unstructure(value)


def of_facts(cls: type[T], data: Mapping[str, Any], *, where: str) -> T:
    """The inverse of `facts_of`; every wrong field is one problem of the ConfigError."""
    return _read(_LENIENT, cls, data, where, "")


def _read(converter: Converter, cls: type[T], tree: Any, where: str, key: str) -> T:
    """`where` is the section (`shapes`), `key` what is inside it."""
    try:
        return converter.structure(tree, cls)
    except _REFUSED as error:
        raise ConfigError(*_problems(error, where, key)) from None


def flat(tree: Mapping[str, Any], prefix: str = "", leaves: Container[str] = ()) -> dict[str, Any]:
    """`flat({"a": {"b": 1}, "c": {}})` is `{"a.b": 1, "c": {}}`: lists, empty mappings and `leaves` are not opened."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and path not in leaves:
            found |= flat(cast("Mapping[str, Any]", value), f"{path}.", leaves)
        else:
            found[path] = value
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`: `nested({"a.b": 1})` is `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        at = tree
        for group in groups:
            at = at.setdefault(group, {})
        at[name] = value
    return tree


def shown(value: Any) -> str:
    """The value as a person wrote it in YAML, cut to a line: null, true, 'abc', [1, 2]."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return f"a number of {value.bit_length():,} bits"  # Python writes no number of more than 4,300 digits
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def classes_of(kind: Any) -> tuple[Any, ...]:
    """The attrs classes that a field of this type may hold; none where it holds other things too."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return kinds if all(map(attrs.has, kinds)) else ()


# How values are read.


def _scalar(raw: Any, kind: Any) -> Any:
    words, fits = _SCALARS[kind]
    if not fits(raw):
        raise _Wrong(words, raw)
    if kind in (int, float) and not _fits_64_bits(raw):
        raise _Wrong(f"{words} of at most 64 bits, and finite" if kind is float else f"{words} of 64 bits", raw)
    return float(raw) if kind is float else raw


def _fits_64_bits(number: float) -> bool:
    """torch, SQLite and the clocks take no more."""
    return -INT64_MAX <= number <= INT64_MAX if isinstance(number, int) else math.isfinite(number)


def _literal(raw: Any, kind: Any) -> Any:
    if not any(type(raw) is type(c) and raw == c for c in get_args(kind)):
        raise _not_among(get_args(kind), raw)
    return raw


def _registered(raw: Any, kind: Any) -> str:
    registry = kind.__metadata__[0]
    if not isinstance(raw, str) or raw not in registry:
        raise _not_among(registry.names(), raw)
    return raw


def _union(converter: Converter, raw: Any, kind: Any) -> Any:
    """The first type that takes the value; when none does and only one could be meant, its own complaint."""
    kinds = get_args(kind)
    if raw is None and type(None) in kinds:
        return None
    real = [k for k in kinds if k is not type(None)]
    if named := _by_name(real):
        return converter.structure(raw, _named(raw, named))
    for k in real:
        try:
            return converter.structure(raw, k)
        except _REFUSED:
            if len(real) == 1 and k not in _SCALARS:
                raise
    raise _Wrong(" or ".join(_word(k) for k in kinds), raw)


def _by_name(kinds: Sequence[Any]) -> dict[str, Any]:
    """{name: class} where each of several classes has a field `name` of one possible value; else nothing."""
    named: dict[str, Any] = {}
    for kind in kinds if len(kinds) > 1 else ():
        field = getattr(attrs.fields(attrs.resolve_types(kind)), "name", None) if attrs.has(kind) else None
        names = get_args(field.type) if field is not None else ()
        if len(names) != 1:
            return {}
        named[names[0]] = kind
    return named


def _named(raw: Any, kinds: Mapping[str, Any]) -> Any:
    """The class that `name` says, the first one where it says nothing; of a value that is made already, its own."""
    for kind in kinds.values():
        if isinstance(raw, kind):
            return kind
    if not isinstance(raw, Mapping):
        raise _Wrong("a mapping", raw)
    name = cast("Mapping[Any, Any]", raw).get("name", next(iter(kinds)))
    if name not in kinds:
        hint = did_you_mean(str(name), kinds).strip()
        raise _Wrong(f"a mapping whose name is one of {listed(kinds)}", name, hint)
    return kinds[name]


def _sequence(converter: Converter, raw: Any, kind: Any) -> Any:
    if not isinstance(raw, (list, tuple)):
        raise _Wrong("a list", raw)
    items = cast("Sequence[Any]", raw)
    origin: Any = get_origin(kind) or kind
    args = get_args(kind)
    kinds: Sequence[Any] = [args[0] if args else Any] * len(items)
    if origin is tuple and args and not (len(args) == 2 and args[1] is ...):
        if len(items) != len(args):
            raise _Wrong(f"a list of {len(args)}", raw)
        kinds = args
    values = _all(converter, ((i, k, v) for i, (k, v) in enumerate(zip(kinds, items, strict=True))), kind)
    return values if origin is list else tuple(values)


def _mapping(converter: Converter, raw: Any, kind: Any) -> Any:
    if not isinstance(raw, Mapping):
        raise _Wrong("a mapping", raw)
    tree = cast("Mapping[Any, Any]", raw)
    key_kind, value_kind = get_args(kind) or (Any, Any)
    for key in tree:
        if key_kind in _SCALARS and not _SCALARS[key_kind][1](key):
            raise _Wrong(f"a mapping whose keys are each {_SCALARS[key_kind][0]}", key)
    return dict(zip(tree, _all(converter, ((key, value_kind, v) for key, v in tree.items()), kind), strict=True))


def _all(converter: Converter, entries: Any, kind: Any) -> list[Any]:
    """Every entry read, so that one wrong element does not hide the next (cattrs's own way to say so)."""
    values: list[Any] = []
    errors: list[Exception] = []
    for index, entry_kind, raw in entries:
        try:
            values.append(converter.structure(raw, entry_kind))
        except _REFUSED as error:
            note = IterableValidationNote("", index, entry_kind)
            cast("Any", error).__notes__ = [note]  # add_note came with Python 3.11
            errors.append(error)
    if errors:
        raise IterableValidationError("while reading a list or mapping", errors, kind)
    return values


def _class(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """cattrs's own function for the class, each field read by its type, its choices and its validator."""
    maker = cls.of_tree if "of_tree" in vars(cls) else None
    attrs.resolve_types(cls)
    engine = set_by_engine(cls)
    fields = {
        f.name: override(omit=True) if f.name in engine else override(struct_hook=partial(_field, converter, f))
        for f in attrs.fields(cls)
    }
    structured = make_dict_structure_fn(
        cls,
        converter,
        _cattrs_forbid_extra_keys=converter.forbid_extra_keys,
        _cattrs_detailed_validation=True,
        **cast("Any", fields),
    )

    def read(tree: Any, _: Any) -> Any:
        if isinstance(tree, cls):
            return tree
        if maker is not None:
            return maker(tree, _HERE)
        if not isinstance(tree, Mapping):
            raise _Wrong("a mapping", tree)
        return structured(cast("Mapping[str, Any]", tree), cls)

    return read


def _field(converter: Converter, field: attrs.Attribute[Any], raw: Any, _: Any) -> Any:
    value = converter.structure(raw, field.type) if field.type is not None else raw
    choices = field.metadata.get("choices")
    if choices is not None and value is not None and value not in choices:
        raise _not_among(choices, value)
    if field.validator is not None:
        field.validator(None, field, value)
    return value


def _not_among(choices: Sequence[Any], raw: Any) -> _Wrong:
    names = [c if isinstance(c, str) else shown(c) for c in choices]
    return _Wrong(f"one of {listed(names)}", raw, did_you_mean(str(raw), names).strip())


def _word(kind: Any) -> str:
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    origin: Any = get_origin(kind) or kind
    if origin is Literal:
        return "one of " + listed(c if isinstance(c, str) else shown(c) for c in get_args(kind))
    return "a list" if origin in _SEQUENCES else "a mapping"


def _made(*, every_key: bool) -> Converter:
    converter = Converter(
        forbid_extra_keys=every_key, detailed_validation=True, unstruct_collection_overrides={tuple: list}
    )
    for kind in _SCALARS:
        converter.register_structure_hook(kind, _scalar)
    for kinds, hook in (
        ((Union, types.UnionType), partial(_union, converter)),
        ((Literal,), _literal),
        ((Annotated,), _registered),
        (_SEQUENCES, partial(_sequence, converter)),
        (_MAPPINGS, partial(_mapping, converter)),
    ):
        converter.register_structure_hook_func(partial(_is_one_of, kinds), hook)
    converter.register_structure_hook_factory(attrs.has, _class)
    return converter


def _is_one_of(kinds: tuple[Any, ...], kind: Any) -> bool:
    return (get_origin(kind) or kind) in kinds


# How mistakes are told.


def _problems(error: BaseException, where: str, key: str) -> Iterator[str]:
    """One sentence for each leaf of cattrs's error tree. `where` is the section (`shapes`), `key` what is inside it."""
    at = f" @ {where}" if where else ""
    path = ".".join(part for part in (where, key) if part)
    if isinstance(error, BaseValidationError):
        for inner in cast("Any", error).exceptions:
            note = next((n for n in getattr(inner, "__notes__", []) if isinstance(n, _NOTES)), None)
            if isinstance(note, AttributeValidationNote):
                yield from _of_field(inner, path, note.name)
            elif isinstance(note, IterableValidationNote):
                index = f"[{note.index}]" if isinstance(note.index, int) else f".{note.index}"
                yield from _problems(inner, where, f"{key}{index}" if key else str(note.index))
            elif isinstance(inner, ForbiddenExtraKeysError):
                yield from _extra_keys(inner, path)
            else:
                # Every field fits, and the class itself refuses their combination.
                yield f"{inner}{f' @ {path}' if path else ''}"
    elif isinstance(error, _Wrong):
        subject = f"'{key}'" if key else "this"
        hint = f". {error.hint}" if error.hint else ""
        yield f"{subject} must be {error.expected}: {shown(error.value)}{at}{hint}"
    elif isinstance(error, ConfigError):
        yield from (problem.replace(_HERE, path) for problem in error.problems)
    else:
        text = str(error.args[0]) if error.args else type(error).__name__
        bare = key.rpartition(".")[2]
        yield (text if f"'{bare}'" in text or not key else f"'{key}': {text}") + at


def _of_field(error: BaseException, section: str, name: str) -> Iterator[str]:
    if isinstance(error, KeyError):
        yield f"'{name}' is missing{f' @ {section}' if section else ''}: it has no default"
    else:
        yield from _problems(error, section, name)


def _extra_keys(error: ForbiddenExtraKeysError, section: str) -> Iterator[str]:
    engine = set_by_engine(error.cl)
    choices = [f.name for f in attrs.fields(cast("Any", error.cl)) if f.name not in engine]
    for key in sorted(error.extra_fields, key=str):
        if key in engine:
            yield f"'{key}' @ {section} comes from the experiment's '{engine[key]}': set that, not this"
        else:
            yield unknown("key", str(key), choices, section, more=instead_of(f"{section}.{key}"))


_STRICT, _LENIENT = _made(every_key=True), _made(every_key=False)
