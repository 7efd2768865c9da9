"""The pictures of reports in docs/: two real runs on this machine, each page opened in Chromium and photographed.

`make pictures`, or `python -m tools.report_pictures --out docs`; on an idle machine, whose figures are in them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.chromium import Chromium

ROOT = Path(__file__).resolve().parents[1]
RUNS = {
    "report.png": (("model=moe_shared_expert",), 1.0),
    "report_large.png": (("model=gpt_decode", "model.layers=30"), 0.55),
}
"""{picture: (the choices of its run, its scale)}; 2,567 nodes are many colours, which a PNG does not make smaller."""
MOST_BYTES = 200_000
WIDTH, TALLEST = 960, 1430
"""Pixels: from the verdict to the graph."""


def page_of(folder: Path, choices: tuple[str, ...]) -> Path:
    """report.html of a run in `folder`."""
    command = [sys.executable, str(ROOT / "run.py"), "mode=reduce-overhead", "passes=stream_plan", *choices]
    subprocess.run(command, cwd=folder, check=True)
    return next(folder.glob("outputs/*/*/report.html"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="the folder of the pictures (default: docs)")
    out: Path = parser.parse_args().out
    for name, (choices, scale) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
            browser.open(page_of(Path(folder), choices), width=WIDTH)
            browser.photograph(out / name, tallest=TALLEST, scale=scale)
            size = (out / name).stat().st_size
            print(f"{out / name}: {size} bytes")
            if size >= MOST_BYTES:
                raise SystemExit(f"{name} is larger than {MOST_BYTES} bytes.")


if __name__ == "__main__":
    main()
