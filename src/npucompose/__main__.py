"""`python -m npucompose …` is `npucompose …`, of this very Python."""

from __future__ import annotations

from npucompose.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
