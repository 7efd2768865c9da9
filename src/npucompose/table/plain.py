"""Frozen values as plain JSON and back, and plain trees as dotted paths.

Stricter than YAML's `structure`: what is read here was written by a program, so nothing is converted or guessed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_args, get_origin

import attrs
import cattrs
from cattrs import cols, gen

from npucompose.errors import ConfigError

T = TypeVar("T")


def _number(value: Any, _: type[float]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a number is wanted, not {reprlib.repr(value)}")
    return float(value)


def _exactly(cls: type[Any], words: str) -> Any:
    def check(value: Any, _: type[Any]) -> Any:
        if type(value) is not cls:
            raise TypeError(f"{words} is wanted, not {reprlib.repr(value)}")
        return value

    return check


def _of_shape(wanted: Any, words: str, factory: Callable[..., Any]) -> Callable[[Any, cattrs.Converter], Any]:
    """`factory`'s hooks, for values that are `wanted`."""

    def made(cls: Any, converter: cattrs.Converter) -> Any:
        hook = factory(cls, converter)

        def check(value: Any, cls: Any) -> Any:
            if not isinstance(value, wanted):
                raise TypeError(f"{words} is wanted, not {reprlib.repr(value)}")
            return hook(value, cls)

        return check

    return made


def _converter() -> cattrs.Converter:
    """cattrs would turn "3" into 3, "false" into True and "abc" into three texts; a file that says so was not written
    by us.
    """
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    of: Any = cols  # some of its types are unknown
    for is_one, wanted, words, factory in (
        (attrs.has, Mapping, "a mapping", cast("Any", gen).make_dict_structure_fn),
        (of.is_mapping, Mapping, "a mapping", of.mapping_structure_factory),
        (of.is_sequence, (list, tuple), "a list", of.list_structure_factory),
        (_is_tuple, (list, tuple), "a list", of.homogenous_tuple_structure_factory),
    ):
        converter.register_structure_hook_factory(is_one, _of_shape(wanted, words, factory))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(int, _exactly(int, "a whole number"))
    converter.register_structure_hook(str, _exactly(str, "text"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(type(None), _exactly(type(None), "null"))
    converter.register_structure_hook(int | str, lambda value, _: value)
    return converter


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple and get_args(cls)[-1:] == (...,)


_CONVERTER = _converter()


def facts_of(value: attrs.AttrsInstance) -> dict[str, Any]:
    """A value as plain JSON: a stage returns `facts_of(CompileTimes(total_s=1.0))` and the like."""
    return _CONVERTER.unstructure(value)


def of_facts(cls: type[T], data: Mapping[str, Any], *, where: str) -> T:
    """The inverse of `facts_of`; every wrong field is one problem of the ConfigError."""
    try:
        return _CONVERTER.structure(data, cls)
    except cattrs.BaseValidationError as error:
        problems = cattrs.transform_error(error, path=where, format_exception=_words)
        raise ConfigError(*problems) from error
    except TypeError as error:  # of the whole: cattrs tells of what is inside
        raise ConfigError(f"{error} @ {where}") from error


def _words(error: BaseException, _: type[Any] | None) -> str:
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    return str(error)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`flat({"a": {"b": 1}, "c": {}})` is `{"a.b": 1, "c": {}}`: lists and empty mappings are leaves."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{path}.")
        else:
            found[path] = value
    return found
