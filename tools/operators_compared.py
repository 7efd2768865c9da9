"""Write docs/npu_operators_compared.md: `python -m tools.operators_compared [FOLDER]`.

FOLDER keeps what was found, and a second run goes on there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from simulator_tests.compared_operators import main

if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        raise SystemExit(main(Path(made)))
