"""What torch alone makes of programs that docs/semantics.md lists as its errors: `python -m tools.inherited_errors`.

A line for each program and backend: `wrong` and where, or `right` where a release has mended it. Exit status 1 where a
line is not what the table says (graphs/inherited.yaml).
"""

from __future__ import annotations

import sys
from typing import Literal

from npucompose.graphs.inherited import inherited_errors
from replay_tests.semantics.harness import alone
from replay_tests.semantics.rows import all_rows

BACKENDS: tuple[Literal["aot_eager", "inductor"], ...] = ("aot_eager", "inductor")


def main() -> int:
    rows, others = all_rows(), 0
    for name, error in inherited_errors().rows.items():
        for backend, is_wrong in zip(BACKENDS, (error.traced, error.fused), strict=True):
            found = alone(rows[name], backend, of_value=backend == "aot_eager")
            others += (found.kind == "wrong") != is_wrong
            print(f"{name}, {backend}: {found.kind} {found.words}".rstrip(), flush=True)
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
