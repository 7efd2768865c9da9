"""How a field of a schema class is declared: default, check and one line of documentation in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
from attrs import validators

from npucompose.schema.names import LONGEST, is_name


def option(
    default: Any = attrs.NOTHING,
    doc: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    choices: Sequence[Any] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    optional: bool = False,
    name: re.Pattern[str] | None = None,
    from_experiment: str | None = None,
) -> Any:
    """A field that is an option: `max_streams: int = option(2, "at most so many streams", ge=1)`.

    `choices` are the allowed values; `ge`, `gt`, `le` bound a number; `name` is what a text, or each of several, has to
    look like; with `optional` None passes every check.
    `from_experiment` names the Experiment field that the engine puts there: such a field is not set in YAML.
    """
    checks: list[Any] = []
    if choices is not None:
        checks.append(validators.in_(tuple(choices)))
    if ge is not None:
        checks.append(validators.ge(ge))
    if gt is not None:
        checks.append(validators.gt(gt))
    if le is not None:
        checks.append(validators.le(le))
    if name is not None:
        checks.append(_named(name))
    check: Any = validators.and_(*checks) if checks else None
    if optional and check is not None:
        check = validators.optional(check)
    metadata = {
        "doc": doc,
        "choices": tuple(choices) if choices is not None else None,
        "from_experiment": from_experiment,
    }
    if factory is not None:
        return attrs.field(factory=factory, validator=check, metadata=metadata)
    return attrs.field(default=default, validator=check, metadata=metadata)


def _named(pattern: re.Pattern[str]) -> Callable[[Any, Any, Any], None]:
    def check(_: Any, attribute: Any, value: Any) -> None:
        for text in cast("tuple[str, ...]", value) if isinstance(value, tuple) else (value,):
            if not is_name(text, pattern):
                raise ValueError(
                    f"'{attribute.name}' must be a plain name of at most {LONGEST} letters: {text[:LONGEST]!r}"
                )

    return check


def set_by_engine(cls: type[Any]) -> dict[str, str]:
    """{field: experiment field} of the options that the engine fills in and a person must not."""
    fields = attrs.fields(cls)
    return {f.name: f.metadata["from_experiment"] for f in fields if f.metadata.get("from_experiment")}
