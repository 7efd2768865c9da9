"""How many examples a random search looks at: a third in `make test`, all of them in `make test-full`.

Each run draws others, but where a test has a seed of its own.
"""

from __future__ import annotations

import os

ALL = "NPUCOMPOSE_TEST_EXAMPLES"
"""`all` in its environment: the Makefile's test-full sets it. Tests read it while they are imported."""
FEWEST = 4


def examples(most: int) -> int:
    """Of `most`."""
    return most if os.environ.get(ALL) == "all" else max(most // 3, min(most, FEWEST))
