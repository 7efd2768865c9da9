"""What `npucompose list keys` prints: every key that is no leaf of TorchAir's trees. Loads no torch, no Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs

from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.schema.experiment import Experiment
from npucompose.schema.sections import SECTIONS
from npucompose.table.modes import modes_that
from npucompose.table.options import choices_of_field, set_by_engine
from npucompose.table.structure import classes_of
from npucompose.targets import TARGETS
from npucompose.vendor.option_specs import shown

SPELLED_OUT = ("compiler", "inductor", "mode", "passes", "target", "model", "extensions")
"""Fields of an experiment that have a list of their own, or whose keys depend on what is chosen."""
WORDS: Mapping[Any, str] = {
    bool: "true | false", int: "integer", float: "number", str: "text", type(None): "null", Any: "anything"
}  # fmt: skip

Row = dict[str, Any]
MOST_SHOWN = 80
"""Letters of a default in a table."""


def keys() -> tuple[Row, ...]:
    """One JSON-able row for each key: `compile.cache`, `logs.levels`, `target.index`, `passes.cse.stage`, ….

    A target's and a model's options say in `of` whose they are: `target.decompose` of npu and npu_offline.
    """
    rows = [*_experiment(), *_chosen("target", TARGETS.every()), *_chosen("model", MODELS.every())]
    for name, cls in PASSES.every().items():
        rows += _rows(cls, f"passes.{name}")
    for name, cls in SECTIONS.every().items():
        rows += ({**row, "of": [SECTIONS.package(name)]} for row in _rows(cls, f"extensions.{name}"))
    return tuple(rows)


PAGE = """# Every key of the configuration

Written from the option table (`pytest tests/docs/test_keys_page.py --update-golden`); do not edit by hand. A key is
said in YAML or as `key=value` on the command line, none needs a plus, and `npucompose list keys` prints the same for
what is installed here. TorchAir's and Inductor's own options are under [Options](options.md). Where nothing is said of
modes a key takes effect in every mode that its target runs; what has no effect is in the report's `effective`.
"""


def page() -> str:
    """docs/keys.md: a table for each section."""
    sections: dict[str, list[str]] = {}
    for row in keys():
        section = ".".join(row["key"].split(".")[: 2 if row["key"].startswith("passes.") else 1])
        named = section if "." in row["key"] else "the experiment itself"
        of = f" ({', '.join(row['of'])})" if row["of"] else ""
        acts = f"; takes effect in {', '.join(row['acts_in'])}" if row["acts_in"] else ""
        long = isinstance(row["default"], tuple) and len(str(cast("Any", row["default"]))) > MOST_SHOWN
        default = "needed" if row["needed"] else f"`{'[…]' if long else shown(row['default'])}`"
        cells = (f"`{row['key']}`{of}", row["takes"], default, f"{row['meaning']}{acts}")
        sections.setdefault(named, []).append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    head = "| key | takes | default | meaning |\n|---|---|---|---|\n"
    return PAGE + "".join(f"\n## {name}\n\n{head}" + "\n".join(rows) + "\n" for name, rows in sections.items())


def _experiment() -> Iterator[Row]:
    hints = get_type_hints(Experiment)
    for field in attrs.fields(Experiment):
        if field.name in SPELLED_OUT:
            continue
        classes = classes_of(hints[field.name])
        if len(classes) > 1:
            yield from _chosen(field.name, {attrs.fields(cls).name.default: cls for cls in classes})
        elif classes:
            yield from _rows(classes[0], field.name)
        else:
            yield _row(field.name, hints[field.name], field, choices_of_field(Experiment, field))


def _chosen(group: str, classes: Mapping[str, type[Any]]) -> list[Row]:
    """The options of every choice of a group, equal ones once, with the names of those that have them."""
    found: dict[str, Row] = {}
    for name, cls in classes.items():
        for row in _rows(cls, group):
            same = found.setdefault(f"{row['key']} {row['takes']} {row['meaning']}", {**row, "of": []})
            cast("list[str]", same["of"]).append(name)
    return list(found.values())


def _rows(cls: type[Any], prefix: str) -> Iterator[Row]:
    ours, hints = set_by_engine(cls), get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cls):
        if field.name in ours or not field.metadata.get("doc"):
            continue
        if attrs.has(hints[field.name]):
            yield from _rows(hints[field.name], f"{prefix}.{field.name}")
        else:
            yield _row(f"{prefix}.{field.name}", hints[field.name], field, choices_of_field(cls, field))


def _row(key: str, hint: Any, field: attrs.Attribute[Any], choices: Sequence[Any] | None) -> Row:
    factory = getattr(field.default, "factory", None)
    default: Any = field.default if factory is None else factory()
    needed = default is attrs.NOTHING
    return {
        "key": key,
        "takes": " | ".join(map(shown, choices)) if choices else takes(hint),
        "default": None if needed else default,
        "needed": needed,
        "meaning": field.metadata.get("doc", ""),
        "acts_in": list(modes_that(acts.mode)) if (acts := field.metadata.get("acts")) else [],
        "of": [],
    }


def takes(hint: Any) -> str:
    """`takes(tuple[int, ...])` is `a list of integer`, `takes(bool | None)` is `true | false | null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(takes(argument) for argument in arguments))
    if origin is Annotated:
        return " | ".join(map(shown, hint.__metadata__[0].names()))
    if origin is Literal:
        return " | ".join(map(shown, arguments))
    if origin is tuple:
        return f"a list of {takes(arguments[0])}"
    if origin is Mapping:
        return f"a mapping to {takes(arguments[1])}"
    return WORDS.get(hint) or f"a mapping ({', '.join(f.name for f in attrs.fields(hint))})"
