"""What a person can say, as two committed tables: every option with its bounds and default, every leaf of TorchAir's.

A bound or a default that moves is a change of the language of the YAML files: it is reviewed here as a diff.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import NoneType
from typing import Any, get_args, get_type_hints

import attrs

import npucompose.models
import npucompose.results
import npucompose.schema
import npucompose.table
import npucompose.vendor
from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.registry import OURS
from npucompose.table.options import _in_literal, choices_of_field, free_mappings
from npucompose.targets import TARGETS
from npucompose.vendor.option_specs import OptionSpec, shown
from npucompose.vendor.versions import every_leaf

Golden = Callable[[str, str], None]
PACKAGES = (npucompose.table, npucompose.vendor, npucompose.schema, npucompose.results)
FEATURES = (
    *(f"npucompose.npu.{feature}.records" for feature in ("capture", "static_graph", "torchair")),
    *(f"npucompose.npu.{feature}.explanation" for feature in ("capture", "static_graph")),
)
"""Modules of results that lie with what makes them."""


def classes() -> Iterator[type[Any]]:
    """Every attrs class of the schema, then the models', passes' and targets' own."""
    named = [f"{p.__name__}.{one.name}" for p in PACKAGES for one in pkgutil.iter_modules(p.__path__)]
    for found in (*named, *FEATURES):
        module = importlib.import_module(found)
        yield from (
            value
            for value in vars(module).values()
            if isinstance(value, type) and attrs.has(value) and value.__module__ == module.__name__
        )
    for registry in (MODELS, PASSES, TARGETS):
        yield from (registry.get(name) for name in registry.names() if registry.package(name) == OURS)


def default_of(field: attrs.Attribute[Any]) -> str:
    default: Any = field.default
    if default is attrs.NOTHING:
        return "no default"
    if isinstance(default, attrs.Factory):
        return "a fresh one" if default.takes_self else repr(default.factory())
    return repr(default)


def check_of(validator: Any) -> str:
    """`>= 1 or null`: what attrs says of a validator, without the addresses of functions."""
    if validator is None:
        return ""
    if (inner := getattr(validator, "_validators", None)) is not None:
        return " and ".join(map(check_of, inner))
    if isinstance(validator, partial):
        return check_of(validator.args[0])
    if hasattr(validator, "bound"):
        return f"{validator.compare_op} {validator.bound}"
    if hasattr(validator, "options"):
        return f"one of {validator.options}"
    if hasattr(validator, "validator"):
        return f"({check_of(validator.validator)} or null)"
    cells = {
        name: cell.cell_contents
        for name, cell in zip(validator.__code__.co_freevars, validator.__closure__, strict=True)
    }
    return f"like {cells['pattern'].pattern}"


def line(cls: type[Any], field: attrs.Attribute[Any]) -> str:
    parts = [f"{field.name}: {default_of(field)}"]
    if field.validator is _in_literal:
        if choices := choices_of_field(cls, field):
            null = NoneType in get_args(get_type_hints(cls)[field.name])
            parts.append(f"(one of {choices} or null)" if null else f"one of {choices}")
    elif check := check_of(field.validator):
        parts.append(check)
    if source := field.metadata.get("from_experiment"):
        parts.append(f"from the experiment's {source}")
    if not field.init or not field.eq:
        parts.append(f"init={field.init} eq={field.eq}")
    return "  " + "; ".join(parts)


def test_every_option_has_the_default_and_the_bounds_that_were_reviewed(golden: Golden) -> None:
    lines = []
    for cls in classes():
        lines.append(f"{cls.__module__.removeprefix('npucompose.')}.{cls.__qualname__}")
        lines += [line(cls, field) for field in attrs.fields(cls)]
    golden("schema/options.txt", "\n".join(lines) + "\n")


def row(leaf: OptionSpec) -> str:
    parts = [leaf.allowed(), f"default {shown(leaf.default)}", f"takes effect in {' '.join(leaf.modes) or 'no mode'}"]
    parts += [f"in {mode}: {shown(choices)}" for mode, choices in leaf.choices_in.items()]
    said: dict[str, Any] = {
        "pattern": leaf.pattern, "needs": leaf.needs, "set by": None if leaf.set_by == "compiler" else leaf.set_by,
        "stored as": leaf.genuine, "the inverse of" if leaf.twin_inverted else "the same as": leaf.twin,
    }  # fmt: skip
    parts += [f"{word} {value}" for word, value in said.items() if value]
    parts += ["TorchAir writes there"] * leaf.written
    return f"{leaf.path} ({leaf.kind}): " + "; ".join(parts)


def test_every_leaf_of_torchair_takes_what_was_reviewed(golden: Golden) -> None:
    golden("schema/leaves.txt", "".join(f"{row(leaf)}\n" for leaf in every_leaf().values()))


@attrs.frozen
class Inner:
    of_any: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class WithMappings:
    plain: Mapping[str, int] = attrs.field(factory=dict)
    perhaps: Mapping[str, int] | None = None
    of_perhaps: Mapping[str, Inner | None] = attrs.field(factory=dict)
    inner: Inner | None = None
    number: int = 0


def test_a_key_of_a_mapping_is_one_word_where_no_value_of_it_has_keys() -> None:
    assert free_mappings(WithMappings) == {
        "plain": True, "perhaps": True, "of_perhaps": False, "inner.of_any": False,
    }  # fmt: skip
