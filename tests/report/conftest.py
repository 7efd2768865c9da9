"""Tests here share `report_examples`, which lies beside them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # for `report_examples`
