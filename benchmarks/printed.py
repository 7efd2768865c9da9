"""What README says that a run prints: `python benchmarks/printed.py [--only minilm]` runs the commands and writes it.

A block of README that stands below `<!-- printed by benchmarks/printed.py: CHOICES -->` is what `npucompose run
CHOICES` prints with `--quiet`, run once in an empty folder of its own. On an idle machine, whose figures they become.
That the lines are still those of a run is tested without running anything (tests/benchmarks/test_printed.py).
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(
    r"^<!-- printed by benchmarks/printed\.py: (?P<choices>.*?) -->\n```text\n(?P<lines>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@frozen
class Printed:
    """A block: the choices of its run, and its lines."""

    choices: str
    lines: str


def blocks(text: str) -> Iterator[Printed]:
    for found in BLOCK.finditer(text):
        yield Printed(found["choices"], found["lines"])


def rewritten(text: str, run: Callable[[str], str], only: str = "") -> str:
    """The text with what `run(choices)` prints in each block whose choices hold `only`."""

    def again(found: re.Match[str]) -> str:
        if only not in found["choices"]:
            return found[0]
        return found[0].replace(found["lines"], run(found["choices"]))

    return BLOCK.sub(again, text)


def run(choices: str) -> str:
    """The lines of the result, of a run that finds no store."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "run.py"), "--quiet", *shlex.split(choices)]
        return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="blocks whose choices hold this text")
    text = rewritten(README.read_text(encoding="utf-8"), run, parser.parse_args().only)
    README.write_text(text, encoding="utf-8")
    print("".join(f"$ npucompose run {one.choices}\n{one.lines}" for one in blocks(text)), end="")


if __name__ == "__main__":
    main()
