"""Scripts that keep the project's own data files up to date."""

import sys
from pathlib import Path

# Whose programs some of them run.
for package in ("replay", "simulator"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / "packages" / package / "tests"))
