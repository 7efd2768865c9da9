"""README's lines of a run are those that a run prints, but for the figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from printed import README, Printed, blocks, rewritten

GOLDEN = ROOT / "tests" / "golden" / "report" / "summary"
"""What `report/summary.py` prints of reports of every kind."""
FIGURE = r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?"
MASKS = (
    (rf"{FIGURE} ([µmn]?s|[KMG]?i?B)\b", "#"),
    (rf"{FIGURE}(x|%)?", "#"),
    (r"(streams|events)\b", r"\1"),
    (r"\b(stream|event)\b(?=[,)])", r"\1s"),
    (r"^(result +\w+ ·) \w+ ·", r"\1 MODEL ·"),
    (r"^(report +).*(/report\.html)$", r"\1RUN\2"),
    (r"^(next +npucompose report --full) .*", r"\1 RUN"),
)
README_BLOCKS = [pytest.param(block, id=block.choices) for block in blocks(README.read_text())]


def masked(line: str) -> str:
    for pattern, instead in MASKS:
        line = re.sub(pattern, instead, line)
    return line


def printed_lines() -> set[str]:
    texts = [path.read_text() for path in sorted(GOLDEN.glob("*.txt"))]
    return {masked(line) for text in texts for line in text.splitlines()}


@pytest.mark.parametrize("block", README_BLOCKS)
def test_each_line_of_readme_is_one_that_a_run_prints(block: Printed) -> None:
    lines = [masked(line) for line in block.lines.splitlines()]
    assert [line for line in lines if line not in printed_lines()] == []
    labels = [line.split()[0] for line in lines]
    assert labels == ["result", "speed-up", "streams", "memory", "report", "next"]


def test_every_block_of_such_lines_is_written_by_the_program() -> None:
    """A line that somebody types would not be."""
    text = README.read_text()
    assert len(re.findall(r"^speed-up ", text, re.MULTILINE)) == len(list(blocks(text))) == 2


def test_a_line_that_no_run_prints_is_noticed() -> None:
    line = "speed-up  1.91x over eager: median ratio of 2 pairs of calls made in turn, replay without guards"
    assert masked(line) in printed_lines()
    assert masked(line.replace("median", "mean")) not in printed_lines()


def test_only_the_blocks_that_are_asked_for_are_written() -> None:
    text = "".join(
        f"<!-- printed by benchmarks/printed.py: {name} -->\n```text\nold {name}\n```\n```text\nold {name}\n```\n"
        for name in ("model=a", "model=b")
    )
    found = rewritten(text, lambda choices: f"new {choices}\n", only="=b")
    assert found == text.replace("```text\nold model=b", "```text\nnew model=b", 1)
    assert rewritten(text, lambda _: "") != text
