"""Write docs/npu_operators.md, what torch_npu has for each operator: `python -m tools.operators_page`."""

from __future__ import annotations

from pathlib import Path

from npucompose.report.operators import page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "npu_operators.md"
VERSIONS = ("2.13.0", "2.14.0")


def main() -> int:
    PAGE.write_text(page(VERSIONS), encoding="utf-8")
    print(f"{PAGE}: {PAGE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
