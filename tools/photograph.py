"""A picture of a page, such as the one in README.md: `python -m tools.photograph report.html --out picture.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.chromium import TALLEST, Chromium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="an HTML file")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a PNG")
    parser.add_argument("--width", type=int, default=1280, help="of the screen in pixels (default: 1280)")
    parser.add_argument("--tallest", type=int, default=TALLEST, help=f"pixels at most (default: {TALLEST})")
    parser.add_argument("--dark", action="store_true", help="as in the dark")
    arguments = parser.parse_args()
    with Chromium() as browser:
        browser.open(arguments.page, width=arguments.width, dark=arguments.dark)
        browser.photograph(arguments.out, tallest=arguments.tallest)
        for complaint in browser.complaints():
            print(complaint)


if __name__ == "__main__":
    main()
