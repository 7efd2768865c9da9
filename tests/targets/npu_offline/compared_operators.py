"""For each ATen operator without a GE converter or without an NPU kernel a model of it alone: what is derived, what a
capture says and what TorchAir's own conversion makes of it, in a table.

`python -m tests.targets.npu_offline.compared_operators [FOLDER]`; FOLDER keeps what was found, and a second run goes on
there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import OF_THE_CPU, OperatorRow, WheelOperators, operators

SCRIPT = Path(__file__).with_name("operator_models.py")
ROOT = Path(__file__).parents[3]
Told = Mapping[str, Mapping[str, Any]]
MOST_ENDS = 60
"""Operators that may end the process that tries them."""


def wanted(table: WheelOperators) -> list[str]:
    """The operators: those that give a result of their own, for `out=` and a gradient are made of them; not those that
    torch chooses on a CPU alone."""
    return [
        row.name
        for row in table.rows()
        if row.name.startswith("aten::") and _lacks(row) and _plain(row.name) and row.name not in OF_THE_CPU
    ]


def _lacks(row: OperatorRow) -> bool:
    return row.kernel == "cpu" or (row.converter == "raises" and not row.name.partition(".")[0].endswith("_"))


def _plain(name: str) -> bool:
    return "out" not in name.partition(".")[2] and "backward" not in name


def found(folder: Path, names: list[str]) -> dict[str, Told]:
    """{derived, genuine: {operator: what was said}}."""
    calls = folder / "calls.pt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if not calls.is_file():
        making = [sys.executable, str(SCRIPT), "calls", str(calls)]
        subprocess.run(making, input=json.dumps(names).encode(), env=environment, check=True, capture_output=True)
    told: dict[str, Told] = {}
    for way in ("derived", "genuine"):
        out = folder / f"{way}.json"
        for _ in range(MOST_ENDS):
            command = [sys.executable, str(SCRIPT), way, str(calls), str(out)]
            if subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0:
                break
        told[way] = json.loads(out.read_text(encoding="utf-8"))
    return told


@frozen(kw_only=True)
class Compared:
    """One operator: `Compared(name="aten::amax", derived="failed", genuine="failed", capture="-", agrees=True)`."""

    name: str
    derived: str
    genuine: str
    capture: str
    agrees: bool
    why_not: str = ""
    """Why it could not be compared."""


def compared(told: Mapping[str, Told], names: list[str], table: WheelOperators) -> Iterator[Compared]:
    """In the order of `names`."""
    for name in names:
        derived, genuine = told["derived"].get(name, {}), told["genuine"].get(name, {})
        why_not = (
            derived.get("error") or genuine.get("error") or ("" if derived and genuine else "no call of it was found")
        )
        if why_not:
            yield Compared(name=name, derived="", genuine="", capture="", agrees=True, why_not=why_not)
            continue
        rules = [one.partition(":")[0] for one in derived["capture"]]
        agrees = _same(derived, genuine) and _captured(rules, derived, table.row(name))
        yield Compared(
            name=name,
            derived=f"{derived['verdict']} {derived['operator'] or ''}".strip(),
            genuine=f"{genuine['verdict']} {genuine['operator'] or ''}".strip(),
            capture=", ".join(rules) or "captures",
            agrees=agrees,
        )


def _same(derived: Mapping[str, Any], genuine: Mapping[str, Any]) -> bool:
    """TorchAir does not always say at which operator it stopped."""
    named = (derived["operator"], genuine["operator"])
    return derived["verdict"] == genuine["verdict"] and (None in named or named[0] == named[1])


def _captured(rules: list[str], derived: Mapping[str, Any], row: OperatorRow) -> bool:
    """A kernel of the CPU alone is found by the capture, and nothing else is called one."""
    return ("cpu_kernel" in rules) == (row.kernel == "cpu") or bool(rules and "cpu_kernel" not in rules)


def main(folder: Path) -> int:
    table = operators(REFERENCE)
    names = wanted(table)
    rows = list(compared(found(folder, names), names, table))
    for row in rows:
        if row.why_not:
            print(f"{row.name}: not compared: {row.why_not}")
        else:
            print(f"{row.name}: derived {row.derived}; genuine {row.genuine}; capture {row.capture}; {row.agrees}")
    wrong = [row.name for row in rows if not row.agrees]
    left = sum(bool(row.why_not) for row in rows)
    print(f"{len(rows)} operators, {left} not compared, {len(wrong)} disagreements: {', '.join(wrong) or '-'}")
    return bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        raise SystemExit(main(Path(made)))
