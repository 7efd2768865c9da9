"""For each ATen operator without a GE converter or without an NPU kernel a model of it alone: what is derived, what a
capture says and what TorchAir's own conversion makes of it, in a table.

`python -m tools.operators_compared [FOLDER]` writes docs/npu_operators_compared.md; FOLDER keeps
what was found, and a second run goes on there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npucompose.npu.capture.rules import calls
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import OF_THE_CPU, PARTS_OF, WheelOperators, name_of, operators
from simulator_tests.uncompared_operators import NO_GRAPH, Compared, is_out, page, why_no_call
from tools.operator_calls import safe

SCRIPT = Path(__file__).with_name("operator_models.py")
ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "npu_operators_compared.md"
WAYS = ("derived", "genuine")
Told = Mapping[str, Mapping[str, Any]]
MOST_ENDS = 60
"""Operators that may end the process that tries them."""
OF_A_GENERATOR = ("host_generator", "generator_unknown")
BY_TAG = ("host_read", "data_shape", "moves_memory")
"""Rules that torch's tags of an operator break, or its name: what reads, or changes a size."""


def lacking(table: WheelOperators) -> list[str]:
    """Every ATen operator without a converter that converts, or without a kernel of the NPU."""
    return [
        row.name
        for row in table.rows()
        if row.name.startswith("aten::") and (row.converter in ("raises", "none") or row.kernel in ("cpu", "none"))
    ]


def wanted(table: WheelOperators) -> list[str]:
    """Those of them that a traced graph can have: an `out=` overload becomes its operator and a copy there."""
    return [name for name in lacking(table) if not is_out(name) and name not in OF_THE_CPU]


def found(folder: Path, names: Sequence[str], without: Sequence[str] = ()) -> dict[str, Told]:
    """{derived, genuine: {operator: what was said}}; `without`: operators that the tables are made to lack."""
    kept = folder / "calls.pt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if not kept.is_file():
        making = [sys.executable, str(SCRIPT), "calls", str(kept)]
        subprocess.run(making, input=json.dumps(list(names)).encode(), env=environment, check=True, capture_output=True)
    told: dict[str, Told] = {}
    for way in WAYS:
        out = folder / f"{'-'.join((way, *without)).replace('::', '.')}.json"
        for _ in range(MOST_ENDS):
            command = [sys.executable, str(SCRIPT), way, str(kept), str(out), *without]
            if subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0:
                break
        told[way] = json.loads(out.read_text(encoding="utf-8"))
    return told


def compared(told: Mapping[str, Told], names: Sequence[str], table: WheelOperators) -> Iterator[Compared]:
    """In the order of `names`."""
    harmless = set(safe(names))
    for name in names:
        derived, genuine = told["derived"].get(name, {}), told["genuine"].get(name, {})
        why_not = derived.get("error") or genuine.get("error") or ("" if derived else why_no_call(name, harmless))
        if not (why_not or derived["graphs"] or genuine.get("graphs")):
            why_not = NO_GRAPH
        if why_not:
            yield Compared(name=name, why_not=why_not)
            continue
        wrong = (_differs(derived, genuine), *_wrongly_captured(name, derived, table))
        yield Compared(
            name=name,
            derived=f"{derived['verdict']} {derived['operator'] or ''}".strip(),
            genuine=f"{genuine['verdict']} {genuine['operator'] or ''}".strip(),
            capture=", ".join(one.partition(":")[0] for one in derived["capture"]) or "captures",
            wrong="; ".join(filter(None, wrong)),
        )


def _differs(derived: Mapping[str, Any], genuine: Mapping[str, Any]) -> str:
    """TorchAir does not always say where it stopped; what a CPU calls in place of another has another name there."""
    named = [str(one["operator"] or "").removeprefix("higher_order.") for one in (derived, genuine)]
    same = derived["verdict"] == genuine["verdict"] and (not all(named) or named[0] == named[1])
    if not same and derived["verdict"] == genuine["verdict"]:
        same = name_of(named[0]) in PARTS_OF
    return "" if same else f"derived {derived['verdict']} {named[0]}, genuine {genuine['verdict']} {named[1]}"


def _wrongly_captured(name: str, derived: Mapping[str, Any], table: WheelOperators) -> Iterator[str]:
    """Each operator that the call comes down to breaks just the rules that the tables have for it."""
    refused: dict[str, set[str]] = {}
    for one in derived["capture"]:
        rule, _, what = one.partition(": ")
        refused.setdefault(what.split()[0].rstrip(":,"), set()).add(rule)
    by_kernel: set[str | None] = set()
    for overload in derived["dispatched"]:
        rules = refused.pop(overload.removesuffix(".default"), set[str]())
        expected, possible = _expected(overload, table)
        by_kernel.add(expected if table.row(table.on_the_device(overload)).kernel == "cpu" else None)
        if expected is not None and expected not in rules and not rules & set(BY_TAG):
            yield f"{overload}: the tables say {expected}, the capture {', '.join(rules) or 'nothing'}"
        elif rules - possible - {expected}:
            yield f"{overload}: the capture says {', '.join(rules)}, the tables {expected or 'nothing'}"
    for operator, rules in refused.items():
        yield f"{operator} breaks {', '.join(rules)}, and is none of what the call comes down to"
    kernel, fallen = table.row(table.on_the_device(name)).kernel, bool(by_kernel - {None})
    if fallen != (kernel == "cpu") and kernel != "unknown" and "opaque" not in by_kernel:
        yield f"the tables say {kernel}, {'an' if fallen else 'no'} operator that it comes down to is of the CPU"


def _expected(overload: str, table: WheelOperators) -> tuple[str | None, set[str]]:
    """(the rule that the operator breaks in any case, further ones that it may break): by the table of calls, by its
    kernel, by torch's tags of it."""
    row, base = table.row(table.on_the_device(overload)), name_of(overload).partition(".")[0]
    call, tagged = calls().operators.get(base), {*BY_TAG, *OF_A_GENERATOR}
    if call is not None:
        return (call.rule if call.when is None else None), {call.rule or "", *OF_A_GENERATOR}
    if row.aclop:
        return "aclop", tagged
    if row.kernel != "cpu":
        return None, tagged
    return ("opaque" if base in PARTS_OF and table.row(PARTS_OF[base]).runs else "cpu_kernel"), tagged


def main(folder: Path) -> int:
    table = operators(REFERENCE)
    names = wanted(table)
    rows = list(compared(found(folder, names), names, table))
    for row in rows:
        said = row.why_not or f"derived {row.derived}; genuine {row.genuine}; capture {row.capture}"
        print(f"{row.name}: {said}{f': WRONG: {row.wrong}' if row.wrong else ''}")
    PAGE.write_text(page(table, len(lacking(table)), rows), encoding="utf-8")
    wrong = [row.name for row in rows if row.wrong]
    left = sum(bool(row.why_not) for row in rows)
    print(
        f"{len(rows)} operators, {left} not compared, {len(wrong)} disagreements: {', '.join(wrong) or '-'} -> {PAGE}"
    )
    return bool(wrong)
