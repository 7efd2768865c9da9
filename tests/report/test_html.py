"""report.html: what it shows, what it never shows, and that no text of a report becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from attrs import evolve
from hostile import HOSTILE, filled
from report_examples import CUT_RUN, EXAMPLES, FULL, INDUCTOR, REPEATED_RUN, TIMELINES, WRONG

from npucompose.report.html import environment, render, write
from npucompose.results.graphs import GraphDrawing, NodeTable
from npucompose.results.record import GraphFacts, Report
from npucompose.results.streams import Timeline
from tools.chromium import Chromium

OURS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "p", "div", "span"),
    *("b", "code", "pre", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("figure", "figcaption", "svg", "g", "rect", "line", "path", "text", "nav", "a", "script", "noscript", "canvas"),
    *("select", "option", "label", "input", "button"),
}
"""Elements that a report is made of."""


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
        if tag not in ("meta", "br", "input"):
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


def hostile_drawing() -> GraphDrawing:
    """One node, of which every text is hostile."""
    node = NodeTable(
        names=(HOSTILE,), operators=(1,), values=(1,), sources=(1,), streams=(1,), inputs=((),), texts=("", HOSTILE)
    )
    return GraphDrawing(before=node, after=node)


def shown(report: Report) -> str:
    return "\n".join(read(render(report)).text)


def test_no_text_of_a_report_becomes_markup() -> None:
    page = read(render(filled(Report), [(HOSTILE, filled(Timeline))], {HOSTILE: hostile_drawing()}))
    assert page.elements <= OURS
    assert "".join(page.text).count("window.ran=1") > 50
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "style")
        assert name != "href" or re.fullmatch(r"#(main|section-\d+)", value or "")
        assert "javascript:" not in (value or "")


def test_without_escaping_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above: it is the escaping that keeps the elements out."""
    unsafe = environment.__wrapped__()
    unsafe.autoescape = False
    monkeypatch.setattr("npucompose.report.html.environment", lambda: unsafe)
    assert "<img src=x onerror=window.ran=2>" in render(filled(Report))


def test_a_browser_runs_nothing_of_a_hostile_report(chromium: Chromium, tmp_path: Path) -> None:
    path = write(filled(Report), tmp_path, [(HOSTILE, filled(Timeline))], {HOSTILE: hostile_drawing()})
    chromium.open(path)
    chromium.ask("document.getElementById('graph-canvas').focus()")
    chromium.press("Home")
    assert HOSTILE in chromium.ask("document.getElementById('graph-node').textContent")
    assert chromium.ask("window.ran") is None
    assert chromium.ask("document.querySelectorAll('img, svg[onload]').length") == 0
    assert chromium.ask("document.querySelectorAll('script').length") == 2
    assert chromium.complaints() == []


def test_a_browser_would_refuse_a_script_that_got_into_it(chromium: Chromium, tmp_path: Path) -> None:
    """The second line of defence: the policy names what may run, and nothing does."""
    path = write(FULL, tmp_path)
    path.write_text(path.read_text().replace("</main>", "<script>window.ran = 1</script></main>"))
    chromium.open(path)
    assert chromium.ask("window.ran") is None
    assert "Content Security Policy" in "".join(chromium.complaints())


def test_it_loads_nothing() -> None:
    text = render(FULL)
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert not re.findall(r"https?://|url\(|@import", text)


def test_the_whole_of_a_run_is_shown() -> None:
    text = shown(FULL)
    for words in (
        "gpt_decode · cpu · reduce-overhead · static", "517.0 µs", "1.91×", "bit for bit", "Dynamo 1.00 s",
        "AOTAutograd 500.00 ms", "stream_plan", "134 → 182", "2 streams", "8 events", "compiler.ge_config.option_5",
        "takes effect in GE only", "mode.name", "command line", "versions.torch", "2.13.0", "Taken from the store",
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


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_browser_shows_it_without_a_complaint(name: str, width: int, chromium: Chromium, tmp_path: Path) -> None:
    """The page from a file, at two widths: nothing on the console, nothing wider than the window."""
    many = tuple(GraphFacts(id=f"{n}", fingerprint="f" * 64, nodes_before=1, nodes_after=2, fx="static") for n in "abc")
    chromium.open(write(evolve(EXAMPLES[name], graphs=many), tmp_path, TIMELINES), width=width)
    assert chromium.complaints() == []
    assert not chromium.scrolls_sideways()
    assert chromium.ask("getComputedStyle(document.body).margin") == "0px"  # the policy let our style in


def test_predicted_and_measured_share_a_scale() -> None:
    predicted = Timeline(source="predicted", nodes=("a",), streams=("default",), start_us=(0.0,), end_us=(10.0,))
    measured = evolve(predicted, source="measured", end_us=(20.0,))
    text = render(FULL, [("graph_0", predicted), ("graph_0", measured)])
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="22" class="kernel', text)]
    assert widths == [305, 610]
    assert "graph_0, predicted: 10.0 µs" in text
    assert "graph_0, measured: 20.0 µs" in text


def test_events_and_memory_are_in_the_timeline() -> None:
    text = render(FULL, TIMELINES)
    assert text.count('class="event"') == 2  # in the picture that the page opens with, too
    assert "at most 4.0 KiB alive" in text
    assert "mm_1 on stream1: 5.0 µs, from 10.0 µs to 15.0 µs" in text


def test_sinking_says_who_is_to_blame_and_what_mends_it() -> None:
    text = shown(INDUCTOR)
    for words in ("path 3", "rule 5: fia: tiling sink is off", "npu.fia.default", "S4 operators", "tiling=sink"):
        assert words in text, words


def test_few_samples_are_drawn_one_by_one_and_far_ones_on_a_logarithmic_axis() -> None:
    assert FULL.stages.benchmark is not None
    far = evolve(FULL.stages.benchmark, samples_us=tuple([1.0] * 40 + [1000.0] * 2), baselines={})
    assert "logarithmic" in shown(evolve(FULL, stages=evolve(FULL.stages, benchmark=far)))
    assert "logarithmic" not in shown(FULL)
    assert render(FULL).count("<title>517.0 µs</title>") == 1


def test_operators_outside_of_recordings_stand_with_their_reason_and_their_line() -> None:
    page = render(CUT_RUN)
    assert "3 segments, 2 operators outside recordings: cond at model.py:41, aten.nonzero at model.py:50" in page
    assert "/home/me/model.py:41: y = f(x)" in page
    assert "outside recordings" not in render(FULL)


def test_a_graph_whose_runs_overwrite_one_another_is_named_with_the_option_that_copies() -> None:
    assert "compiler.npugraph_ex.clone_output=true makes copies" in render(REPEATED_RUN)
    assert "makes copies" not in render(FULL)


def test_no_text_ends_a_block_of_data_or_begins_a_comment_in_it() -> None:
    value = {"a": HOSTILE, "<b>": ["]]>", "&lt;", "<!--<script>"]}
    block = environment().get_template("parts.html").module.data_block('a"b', value)
    found = re.fullmatch(r'<script type="application/json" id="a&#34;b">(.*)</script>', block)
    assert found is not None
    assert not set("<>&") & set(found[1])
    assert json.loads(found[1]) == value
