"""What torch alone makes of programs that docs/semantics.md lists as its errors: `python -m tools.inherited_errors`.

A line for each program and backend: `wrong` and where, or `right` where a release has mended it. Exit status 1 where a
line is not what the tables of tests/semantics/refused.py say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Literal

from tests.semantics.harness import alone
from tests.semantics.refused import INDUCTORS_OWN, TRACINGS_OWN
from tests.semantics.rows import all_rows

BACKENDS: tuple[Literal["aot_eager", "inductor"], ...] = ("aot_eager", "inductor")


def expected() -> Iterator[tuple[str, tuple[bool, bool]]]:
    """(row, whether it is wrong with each of BACKENDS)."""
    yield from ((name, (True, fused)) for name, (_, _, fused) in TRACINGS_OWN.items())
    yield from ((name, (False, True)) for name in INDUCTORS_OWN)


def main() -> int:
    rows, others = all_rows(), 0
    for name, wrong in sorted(expected()):
        for backend, is_wrong in zip(BACKENDS, wrong, strict=True):
            found = alone(rows[name], backend, of_value=backend == "aot_eager")
            others += (found.kind == "wrong") != is_wrong
            print(f"{name}, {backend}: {found.kind} {found.words}".rstrip(), flush=True)
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
