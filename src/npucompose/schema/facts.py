"""Frozen values as plain JSON and back: what stages write down and reports are made of.

Stricter than YAML's `structure`: what is read here was written by a program, so nothing is converted or guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import cattrs

from npucompose.errors import ConfigError

T = TypeVar("T")


def _number(value: Any, _: type[float]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a number is wanted, not {value!r}")
    return float(value)


def _exactly(cls: type[Any], words: str) -> Any:
    def check(value: Any, _: type[Any]) -> Any:
        if type(value) is not cls:
            raise TypeError(f"{words} is wanted, not {value!r}")
        return value

    return check


def _converter() -> cattrs.Converter:
    """cattrs would turn "3" into 3 and "false" into True; a file that says so was not written by us."""
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(int, _exactly(int, "a whole number"))
    converter.register_structure_hook(str, _exactly(str, "text"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(type(None), _exactly(type(None), "null"))
    converter.register_structure_hook(int | str, lambda value, _: value)
    return converter


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


def _words(error: BaseException, _: type[Any] | None) -> str:
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    return str(error)
