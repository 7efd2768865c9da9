"""report.html: what it shows, what it never shows, and that no text of a report becomes markup."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from report_examples import EXAMPLES, FULL, WRONG

from npucompose.report.html import render, write
from npucompose.report.markup import VOID, tag
from npucompose.schema.record import GraphFacts, Report, facts_of, of_facts

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028"


class Reader(HTMLParser):
    """Elements, attributes and text; every element that is opened must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def shown(report: Report) -> str:
    return "\n".join(read(render(report)).text)


def poisoned(value: Any) -> Any:
    """Every text and every key of plain data made hostile."""
    if isinstance(value, dict):
        return {key + HOSTILE: poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


CLOSED = ("status", "fx", "stage", "candidate")
"""Fields with a closed set of values, which the reader of reports checks."""


def hostile(report: Report) -> Report:
    data = facts_of(report)
    for key, value in data.items():
        if isinstance(value, str) and key not in CLOSED:
            data[key] = value + HOSTILE
        if key in ("experiment", "provenance"):
            data[key] = poisoned(value)
        if key in ("effective", "graphs", "passes", "recompiles", "expectations"):
            data[key] = [
                {k: v + HOSTILE if isinstance(v, str) and k not in CLOSED else v for k, v in item.items()}
                for item in value
            ]
    if data["streams"]:
        data["streams"]["nodes"] = {n + HOSTILE: s + HOSTILE for n, s in data["streams"]["nodes"].items()}
    if data["environment"]:
        data["environment"] = {**data["environment"], "platform": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    if data["numerics"]:
        data["numerics"] |= {"problems": [HOSTILE], "reference": HOSTILE}
    data["last_lines"] = [HOSTILE]
    return of_facts(Report, data, where="report")


@pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_no_text_of_a_report_becomes_markup(report: Report) -> None:
    plain, poisonous = read(render(report)), read(render(hostile(report)))
    assert poisonous.elements <= plain.elements | {"pre", "ul", "li", "svg", "rect", "text", "g", "line", "code", "p"}
    assert "alert(1)" in "".join(poisonous.text)
    assert not {"script", "img", "iframe", "a", "form", "link"} & poisonous.elements
    for name, value in poisonous.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "style")
        assert "javascript:" not in (value or "")


def test_it_loads_nothing() -> None:
    text = render(FULL)
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert not re.findall(r"https?://|url\(|@import", text)


def test_the_whole_of_a_run_is_shown() -> None:
    text = shown(FULL)
    for words in (
        "gpt_decode · cpu · reduce-overhead · static", "517.0 µs", "1.91×", "bit for bit", "Dynamo 1.00 s",
        "AOTAutograd 500.00 ms", "stream_plan", "134 → 182", "2 streams", "8 events", "compiler.ge_config.option_5",
        "acts in GE only", "mode.name", "command line", "versions.torch", "2.13.0", "stored",
    ):  # fmt: skip
        assert words in text, words


def test_every_sample_is_in_the_distribution() -> None:
    assert FULL.stages.benchmark is not None
    assert shown(FULL).count("2 samples") == 3


def test_no_speed_beside_wrong_results() -> None:
    text = shown(WRONG)
    assert "Not shown: the results are wrong." in text
    assert "517.0 µs" not in text
    assert "times as fast" not in text
    assert "differs by up to 0.25" in text


def test_a_plan_of_many_nodes_stays_a_page() -> None:
    nodes = {f"node_{n}": f"s{n % 3}" for n in range(50_000)}
    assert FULL.streams is not None
    assert len(render(evolve(FULL, streams=evolve(FULL.streams, nodes=nodes)))) < 2_000_000


def test_equal_samples_make_a_picture_too() -> None:
    assert FULL.stages.benchmark is not None
    same = evolve(FULL.stages.benchmark, samples_us=(5.0,), baselines={})
    assert "1 sample" in shown(evolve(FULL, stages=evolve(FULL.stages, benchmark=same)))


def test_children_and_attributes_are_escaped_and_markup_is_kept() -> None:
    assert tag("td", "a < b", tag("b", "&"), class_='x"y', hidden=None) == (
        '<td class="x&quot;y">a &lt; b<b>&amp;</b></td>'
    )
    assert {"meta", "rect"} <= VOID


def test_the_page_is_what_was_reviewed(golden: Callable[[str, str], None]) -> None:
    golden("report/full.html", render(FULL))


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install --no-install-recommends chromium")
@pytest.mark.parametrize("width", [1280, 400])
def test_chromium_shows_it_without_a_complaint(width: int, tmp_path: Path) -> None:
    """The page from a file, at two widths: nothing on the console, nothing wider than the window."""
    many = tuple(GraphFacts(id=f"{n}", fingerprint="f" * 64, nodes_before=1, nodes_after=2, fx="static") for n in "abc")
    page = write(evolve(FULL, graphs=many), tmp_path)
    probe = "<script>document.title = 'wide ' + document.documentElement.scrollWidth;</script></body>"
    text = page.read_text().replace("</body>", probe)
    page.write_text(text)
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1200", "--hide-scrollbars", "--dump-dom",
        page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ})
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    found = re.search(r"<title>wide (\d+)</title>", done.stdout)
    assert found is not None
    assert int(found[1]) <= max(width, 500)  # a window of Chromium is at least 500 wide
