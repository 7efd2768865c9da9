"""What a torch_npu version has for each operator, as rows: `npucompose list operators`, docs/npu_operators.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from npucompose.errors import ConfigError, unknown
from npucompose.vendor.converter_conditions import guards, joined
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import OperatorRow, WheelOperators, name_of, operators

HEAD = ("operator", "GE converter", "NPU kernel", "library", "meta function", "because")
ATEN, OWN = "aten", "the wheel"
COUNTED = ("converter", "kernel", "meta")
WORDS = {"cpu": "CPU", "none": "–"}
"""How a page says a value; others stand as they are."""


def rows(under: str = "", version: str | None = None) -> tuple[dict[str, Any], ...]:
    """One JSON-able row for each operator, or for those whose name begins with `under` (`npu`, `aten.gelu`)."""
    table = operators(version or REFERENCE)
    every = tuple(table.rows())
    wanted = name_of(under) if "." in under else under
    found = [row for row in every if row.overload == under] or [row for row in every if _is_under(row.name, wanted)]
    if not found:
        near = unknown("operator", under, tuple(row.overload for row in every), "--under").partition(" Choices:")[0]
        raise ConfigError(f"{near} The beginning of a name is enough: npu, aten.gelu.")
    return tuple(_row(row) for row in found)


def _is_under(name: str, wanted: str) -> bool:
    return name.startswith(wanted) or name.partition("::")[0] == wanted


def _row(row: OperatorRow) -> dict[str, Any]:
    return {
        "operator": row.overload,
        "converter": row.converter,
        "says": row.says,
        "only_on_950": row.only_on_950,
        "refuses": joined(guards(row.refuses)),
        "kernel": row.kernel,
        "library": row.library,
        "because": row.because,
        "meta": row.meta,
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the terminal's table."""
    because = row["because"] if row["because"] != name_of(row["operator"]) else ""
    return row["operator"], row["converter"], row["kernel"], row["library"], row["meta"], because


def about(version: str | None = None) -> str:
    """`torch_npu 2.13.0, torch 2.13.0: aten 3106 operators, converters: genuine 318, …`, and what could not be read."""
    table = operators(version or REFERENCE)
    said = [f"{table.named}, torch {table.torch.version}"]
    for title, of in counts(table).items():
        parts = (f"{name}: " + ", ".join(f"{value} {number}" for value, number in of[name].items()) for name in COUNTED)
        said.append(f"{title} ({of['operators']['all']}): {'; '.join(parts)}")
    return ". ".join((*said, *table.lists.problems.values())) + "."


def counts(table: WheelOperators) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """{aten, the wheel: {converter, kernel, meta: {value: operators}}}."""
    parts: dict[str, list[OperatorRow]] = {ATEN: [], OWN: []}
    for row in table.rows():
        parts[ATEN if row.name.startswith("aten::") else OWN].append(row)
    return {
        title: {
            "operators": {"all": len(part)},
            **{name: dict(sorted(Counter(getattr(row, name) for row in part).items())) for name in COUNTED},
        }
        for title, part in parts.items()
    }


PAGE = """# What torch_npu has for each operator

Written by `python -m tools.operators_page` from the tables that `npucompose list operators` shows, for torch_npu
{versions}. They are read from the wheels' own Python and YAML; nothing of a wheel is run
([how verdicts use them](sinking.md)).

- **GE converter**: `genuine`; `raises`: there is one, and all that it does is to raise a sentence; `–`: none. Of an
  operator of another namespace than `aten` TorchAir makes a converter where CANN has an operator of that name. The
  condition on its arguments under which a genuine one raises is in `npucompose list operators --json`.
- **NPU kernel**: `native`: in `csrc/aten/*.yaml`; `composite`: torch makes it of native ones; `CPU`: it is computed on
  the CPU, with copies that the host waits for, so that no capture holds it; `–`: neither device has one.
- **meta function**: `wheel`, `torch` or none: what gives the shape of a result without a run.

{counts}
A cell with an arrow is that of {first} and then that of {last}.

{tables}"""


def page(versions: tuple[str, str]) -> str:
    """docs/npu_operators.md."""
    tables = [operators(version) for version in versions]
    names = sorted({name for table in tables for name in table.names})
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(name.partition("::")[0], []).append(name)
    return PAGE.format(
        versions=" and ".join(versions),
        first=versions[0],
        last=versions[-1],
        counts="".join(_counts(table) for table in tables),
        tables="\n".join("\n".join(_part(space, part, tables)) for space, part in parts.items()),
    )


def _counts(table: WheelOperators) -> str:
    lines = [f"| torch_npu {table.version} | operators | {' | '.join(COUNTED)} |", "|---|---|---|---|---|"]
    for title, of in counts(table).items():
        values = (", ".join(f"{WORDS.get(v, v)} {n}" for v, n in of[name].items()) for name in COUNTED)
        lines.append(f"| {title} | {of['operators']['all']} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n\n"


def _part(space: str, names: list[str], tables: list[WheelOperators]) -> Iterator[str]:
    yield f"## {space}\n\n| operator | GE converter | NPU kernel | meta function |\n|---|---|---|---|"
    for name in names:
        found = [table.row(name) if table.knows(name) else None for table in tables]
        said = (" → ".join(dict.fromkeys(_said(row, of) for row in found)) for of in COUNTED)
        yield f"| `{name.partition('::')[2]}` | {' | '.join(said)} |"
    yield ""


def _said(row: OperatorRow | None, of: str) -> str:
    value = "no operator" if row is None else getattr(row, of)
    return WORDS.get(value, value)
