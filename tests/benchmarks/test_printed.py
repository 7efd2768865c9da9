"""README's lines of a run are those that a run prints, but for the figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.printed import README, ROOT, Printed, blocks, rewritten
from npucompose.report.terminal import stream_line
from npucompose.report.words import memory_words
from npucompose.results.measured import MemoryFacts
from npucompose.results.streams import StreamAssignment, StreamFacts, TrialRequest, TrialVerdict
from npucompose.schema.streams import Streams
from npucompose.streams.planning import _not_worth_it
from npucompose.targets.cpu import CpuTarget

GOLDEN = ROOT / "tests" / "golden" / "report" / "summary"
"""What `report/terminal.py` prints of reports of every kind."""
FIGURE = r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?"
MASKS = (
    (rf"{FIGURE} ([µmn]?s|[KMG]?i?B)\b", "#"),
    (rf"{FIGURE}(x|%)?", "#"),
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


def stream_lines() -> Iterator[str]:
    """Of plans that were tried, applied or not, and of such that planning or the trial left out."""
    for applied in (True, False):
        tried = TrialVerdict(applied=applied, why="", plan_us=2.0, one_stream_us=3.0, turns=40)
        yield stream_line(
            StreamFacts(streams=2, events=3, applied=applied, trials=(tried,), predicted_us=1.0, serial_us=2.0)
        )
    can, trial = CpuTarget().capabilities("reduce-overhead"), TrialRequest(ms=20.0, min_gain=0.02)
    for asked, most in ((None, None), (None, 0.01), (trial, None), (trial, 0.01)):
        problem = SimpleNamespace(wanted=Streams(), communicates=False, spread=0.1)
        found: Any = SimpleNamespace(aside=1, gain=-0.7, least_gain=-0.8, most_gain=most)
        found.scheduled, found.plan = SimpleNamespace(problem=problem), StreamAssignment()
        yield stream_line(StreamFacts(streams=1, events=0, applied=False, why=_not_worth_it(found, can, asked)))


@cache
def printed_lines() -> frozenset[str]:
    texts = [path.read_text() for path in sorted(GOLDEN.glob("*.txt"))]
    lines = [line for text in texts for line in text.splitlines()]
    sizes = ("pool_bytes", "unplanned_bytes", "live_bytes", "weights_bytes", "buffers_bytes", "peak_rss_bytes")
    memory = MemoryFacts(**dict.fromkeys(sizes, 1))
    lines += [f"streams   {line}" for line in stream_lines()]
    lines += [f"memory    {' · '.join(memory_words(memory))}"]
    return frozenset(map(masked, lines))


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
