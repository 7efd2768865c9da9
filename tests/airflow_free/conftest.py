"""Makes `bakery` importable here and, because a worker gets this process's path, in the workers."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
