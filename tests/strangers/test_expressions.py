"""Every regular expression takes a time that grows with the text and no faster, on the text that is worst for it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals.limits import TooMuch, limited
from tests.refusals.table import NO_STRANGERS
from tests.strangers.expressions import Expression, expressions, hostile_texts
from tools.layout import product

SHORT, TIMES = 6_000, 10
SUSPECT_S, LIMIT_S = 0.004, 1.0
"""Of the processor: a text that took longer is tried at ten times its length; there a quadratic one takes over five
times the limit, and one that is linear a tenth of it."""
OURS = {
    **NO_STRANGERS,
    "npucompose.graphs.matching": "the paths of a model's own modules, and Python's frames",
}
"""Modules whose expressions read no text of strangers, and why."""


def sources() -> Iterator[tuple[str, Path]]:
    for package, top in product().items():
        for file in sorted(top.rglob("*.py")):
            name = ".".join((package, *file.relative_to(top).with_suffix("").parts)).removesuffix(".__init__")
            if name not in OURS and "simulator" not in file.parts:
                yield name, file


def collected() -> list[Expression]:
    files = list(sources())
    everywhere = "\n".join(file.read_text(encoding="utf-8") for _, file in files)
    return [one for name, file in files for one in expressions(file, name, everywhere)]


def slow_text(expression: Expression) -> str | None:
    """The beginning of a text on which it takes too long."""
    for text in hostile_texts(expression, SHORT):
        began = time.process_time()
        try:
            with limited(processor_s=LIMIT_S):
                expression.tries(text)
                if time.process_time() - began > SUSPECT_S:
                    expression.tries(text[:-1] * TIMES + text[-1])
        except TooMuch:
            return text[:60]
    return None


@pytest.mark.slow
def test_every_expression_over_a_strangers_text_is_linear() -> None:
    slow = {one.where: (one.pattern, text) for one in collected() if (text := slow_text(one)) is not None}
    assert slow == {}


def test_the_collector_finds_them_all() -> None:
    """One in each way of writing, and as many as there are calls."""
    found = collected()
    called = sum(
        len(re.findall(r"\bre\.(?:compile|search|f?u?l?l?match|findall|finditer|subn?|split)\(", file.read_text()))
        for _, file in sources()
    )
    assert len(found) >= 0.85 * called, (len(found), called)
    patterns = {one.pattern for one in found}
    assert any(one.where.startswith("npucompose_devtools.artefacts.logs") for one in found)
    assert r"(?<!\\)(\\*)\$\{" in patterns


@pytest.mark.parametrize(
    "pattern",
    [
        r"\].*? (?P<key>\w+) = (?P<value>.*)$", r"(\\*)\$\{", r"^\s*class \S+:", r"(a+)+$", r"\s+$",
        r"EVENT_RECORD\w*?_(\d+)$", r"<[^>]*x>", r"(\w+)\.(\w+)!",
    ],
)  # fmt: skip
def test_one_that_is_not_is_told(pattern: str) -> None:
    """Negative control; the first is what once took eight seconds for a line of 180 KB."""
    assert slow_text(Expression("x:1", pattern, int(re.MULTILINE), anchored=False)) is not None


@pytest.mark.parametrize("pattern", [r"\[(\d{1,9}/\d{1,9})\]", r"(?<!\\)(\\*)\$\{", r"size=\(([^()]*)\)", r"a|b|\bc\b"])
def test_one_that_is_linear_is_not(pattern: str) -> None:
    assert slow_text(Expression("x:1", pattern, 0, anchored=False)) is None


def test_a_new_reader_s_expression_is_found(tmp_path: Path) -> None:
    text = (
        "import re\nPART = r'x+'\nOLD = re.compile(PART + r'y')\nNEW = re.compile(rf'^{PART}z$', re.MULTILINE)\n"
        "def f(t):\n    return OLD.fullmatch(t), NEW.search(t), re.sub('a+', '', t)\n"
    )
    (tmp_path / "reader.py").write_text(text)
    found = [(one.pattern, one.flags, one.anchored) for one in expressions(tmp_path / "reader.py", "reader")]
    assert found == [("x+y", 0, True), ("^x+z$", int(re.MULTILINE), False), ("a+", 0, False)]
