"""Run in a process of its own: one row of benchmarks/fa_lengths.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
os.chdir(BENCHMARKS)
sys.path.insert(0, str(BENCHMARKS))

if __name__ == "__main__":
    from fa_lengths import row

    op, way, path = sys.argv[1:]
    print(json.dumps(row(op, way, int(path))))
