"""The drawing of a graph in report.html, in a browser: walked by keys, by pointer and by search, before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from report_examples import FULL, TIMELINES

from npucompose.report import graph_view
from npucompose.report.graph_view import graph_view as view_of
from npucompose.report.html import render, write
from npucompose.results.graphs import GraphDrawing, NodeTable
from tools.chromium import Chromium

BEFORE = NodeTable(
    names=("x", "mm", "relu", "dead", "add", "output"),
    operators=(1, 2, 3, 3, 4, 5),
    values=(6, 6, 6, 6, 6, 0),
    sources=(0, 7, 8, 8, 8, 0),
    streams=(0, 0, 0, 0, 0, 0),
    inputs=((), (0,), (0,), (0,), (1, 2), (4,)),
    texts=(
        "", "input", "aten.mm.default", "aten.relu.default", "aten.add.Tensor", "output", "f32[4]",
        "net.py:3: y = x @ x", "net.py:4: return y + x.relu()",
    ),
)  # fmt: skip
AFTER = NodeTable(
    names=("x", "mm", "relu", "add", "output"),
    operators=(1, 2, 3, 4, 5),
    values=(6, 6, 6, 6, 0),
    sources=(0, 7, 8, 8, 0),
    streams=(0, 9, 10, 9, 0),
    inputs=((), (0,), (0,), (1, 2), (3,)),
    events=((2, 3),),
    texts=(*BEFORE.texts, "default", "stream1"),
)
SMALL = {"graph_0": GraphDrawing(before=BEFORE, after=AFTER)}
LANDMARKS = """[...document.querySelectorAll('header, nav, main, section[aria-labelledby]')].map((found) => [
    found.tagName,
    found.getAttribute('aria-label') || document.getElementById(found.getAttribute('aria-labelledby'))?.textContent])"""
LINKS = "[...document.querySelectorAll('nav a')].map((a) => [a.textContent, Boolean(document.querySelector(a.hash))])"
BOX = """(() => { const canvas = document.getElementById('graph-canvas');
    canvas.scrollIntoView({block: 'center'});
    const box = canvas.getBoundingClientRect();
    return [box.left, box.top, box.width, box.height]; })()"""


def large(nodes: int) -> dict[str, GraphDrawing]:
    """Layers of a few nodes over two streams, as a model has them; every tenth node is an input."""
    reads = [() if n % 10 == 0 else tuple({max(0, n - 1 - n * 7 % 4), n // 10 * 10}) for n in range(nodes)]
    table = NodeTable(
        names=tuple(f"node_{n}" for n in range(nodes)),
        operators=tuple(1 if n % 10 == 0 else 2 + n % 3 for n in range(nodes)),
        values=(5,) * nodes,
        sources=tuple(6 + n % 40 for n in range(nodes)),
        streams=tuple(0 if n % 10 == 0 else 46 + n // 10 % 2 for n in range(nodes)),
        inputs=tuple(reads),
        events=tuple((n, n + 3) for n in range(9, nodes - 3, 50)),
        texts=(
            "", "input", "aten.mm.default", "aten.relu.default", "aten.add.Tensor", "f32[16, 256]",
            *(f"model.py:{n}: x = layer_{n}(x)" for n in range(40)), "default", "stream1",
        ),
    )  # fmt: skip
    return {"graph_0": GraphDrawing(before=table)}


@pytest.fixture
def page(chromium: Chromium, tmp_path: Path) -> Chromium:
    chromium.open(write(FULL, tmp_path, TIMELINES, SMALL))
    assert chromium.complaints() == []
    chromium.ask("document.getElementById('graph-canvas').focus()")
    return chromium


def said(page: Chromium) -> str:
    return page.ask("document.getElementById('graph-said').textContent")


def test_keys_walk_along_edges_and_say_each_node_with_its_line(page: Chromium) -> None:
    page.press("Home")
    assert said(page) == "x · input · f32[4]"
    page.press("ArrowDown")
    assert said(page) == "mm · aten.mm.default · f32[4] · default · net.py:3: y = x @ x"
    page.press("ArrowDown")
    assert said(page).startswith("add ·")
    page.press("ArrowUp")
    assert said(page).startswith("mm ·")
    page.press("ArrowRight")
    assert said(page).startswith("relu ·")
    assert "is waited for by add" in page.ask("document.getElementById('graph-node').textContent")
    page.press("End")
    assert said(page) == "output · output"


def test_a_keyboards_focus_shows_a_line_without_a_key(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(write(FULL, tmp_path, (), SMALL))
    for _ in range(40):
        chromium.press("Tab")
        if chromium.ask("document.activeElement.id") == "graph-canvas":
            break
    assert said(chromium) == "x · input · f32[4]"


def test_the_pointer_shows_the_line_of_the_model_and_a_click_keeps_it(page: Chromium) -> None:
    box = page.ask(BOX)
    seen: set[str] = set()
    for step in range(1, 60):
        page.point(box[0] + box[2] / 2, box[1] + box[3] * step / 60, click=step == 30)
        seen.add(page.ask("document.getElementById('graph-tip').textContent"))
    assert any("net.py:4: return y + x.relu()" in text for text in seen)


def test_before_and_after_are_both_there_and_the_chosen_node_stays(page: Chromium) -> None:
    labels = "[...document.querySelectorAll('#graph-states label')].map((one) => one.textContent.trim())"
    assert page.ask(labels) == ["before the passes: 6 nodes", "after the passes: 5 nodes"]
    page.press("Home")
    page.press("ArrowDown")
    page.ask("document.querySelector('#graph-states input').click()")
    assert page.ask("document.getElementById('graph-canvas').getAttribute('aria-label')").endswith(": 6 nodes")
    assert said(page) == "mm · aten.mm.default · f32[4] · net.py:3: y = x @ x"
    page.ask("document.getElementById('graph-canvas').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert "not in the other graph" in page.ask("document.getElementById('graph-node').textContent")


def test_a_node_is_found_by_name_operator_or_line(page: Chromium) -> None:
    page.ask("document.getElementById('graph-find').focus()")
    for letter in "relu":
        page.press(letter)
    page.press("Enter")
    assert said(page).startswith("1 of 2: relu ·")
    page.press("Enter")
    assert said(page).startswith("2 of 2: add ·")  # its line has the word
    page.ask("document.getElementById('graph-find').value = 'nowhere'")
    page.press("Enter")
    assert said(page) == "nothing found"


def test_streams_are_named_by_colour_and_the_drawing_has_them(page: Chromium) -> None:
    assert page.ask("[...document.querySelectorAll('#graph-legend li')].map((one) => one.textContent)") == [
        "default", "stream1", "dashed: only in this one of the two graphs",
    ]  # fmt: skip
    colours = page.ask("""(() => { const canvas = document.getElementById('graph-canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, seen = {};
        for (let n = 0; n < data.length; n += 4) seen[[data[n], data[n + 1], data[n + 2]]] = 1;
        return Object.keys(seen); })()""")
    assert {"47,111,222", "217,130,43"} <= set(colours)


PICTURE = "document.getElementById('graph-canvas').toDataURL()"
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
TOUCH = """((type, id, x, y) => {{ const canvas = document.getElementById('graph-canvas');
    canvas.setPointerCapture = () => {{}};
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(type, {{pointerId: id, clientX: box.left + x, clientY: box.top + y}}));
}})({})"""
WHEEL = """document.getElementById('graph-canvas').dispatchEvent(
    new WheelEvent('wheel', {{deltaY: -90, ctrlKey: {}, cancelable: true}}))"""


def seen(page: Chromium) -> str:
    page.ask(FRAME)
    return page.ask(PICTURE)


def test_a_drag_moves_two_fingers_zoom_and_all_is_the_whole_again(page: Chromium) -> None:
    whole = seen(page)
    for step in ("'pointerdown', 1, 300, 200", "'pointermove', 1, 340, 220", "'pointerup', 1, 340, 220"):
        page.ask(TOUCH.format(step))
    moved = seen(page)
    for step in ("'pointerdown', 1, 300, 200", "'pointerdown', 2, 320, 200", "'pointermove', 2, 420, 200"):
        page.ask(TOUCH.format(step))
    zoomed = seen(page)
    page.ask("document.getElementById('graph-fit').click()")
    assert len({whole, moved, zoomed}) == 3
    assert seen(page) == whole


def test_the_wheel_alone_scrolls_the_page_and_with_control_it_zooms(page: Chromium) -> None:
    whole = seen(page)
    assert page.ask(WHEEL.format("false")) is True
    assert seen(page) == whole
    assert page.ask(WHEEL.format("true")) is False  # the page does not do it as well
    assert seen(page) != whole


def test_landmarks_are_there_for_who_does_not_see_the_page(page: Chromium) -> None:
    found = page.ask(LANDMARKS)
    assert [tag for tag, _ in found[:3]] == ["HEADER", "NAV", "MAIN"]
    assert all(name for tag, name in found if tag in ("NAV", "SECTION"))
    links = page.ask(LINKS)
    assert links
    assert all(there for _, there in links)
    assert [name for tag, name in found if tag == "SECTION"] == [name for name, _ in links]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_graph_of_2500_nodes_is_drawn_without_a_complaint(
    width: int, dark: bool, chromium: Chromium, tmp_path: Path
) -> None:
    path = write(FULL, tmp_path, TIMELINES, large(2500))
    assert path.stat().st_size < 500_000
    chromium.open(path, width=width, dark=dark)
    assert chromium.complaints() == []
    assert not chromium.scrolls_sideways()
    assert chromium.ask("performance.getEntriesByName('graph-drawn').length") == 1


def test_where_scripts_are_off_the_page_says_where_the_graph_is(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(write(FULL, tmp_path, TIMELINES, SMALL), script=False)
    assert chromium.ask("document.getElementById('graph').hidden")
    assert "graphs/" in chromium.ask("document.querySelector('noscript').textContent")


def test_a_page_holds_only_so_much_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert view_of({}) is None
    monkeypatch.setattr(graph_view, "MOST_ON_A_PAGE", 20)
    view = view_of({"a": SMALL["graph_0"], "b": SMALL["graph_0"], "c": SMALL["graph_0"]})
    assert view is not None
    assert view["names"] == ["a"]
    assert view["notes"] == ["Not drawn, as the page would be too large: b, c."]
    cut: Any = view_of({"a": GraphDrawing(before=NodeTable(**{**_fields(BEFORE), "left_out": 7}))})
    assert cut["notes"] == ["a: the last 7 nodes in running order are not drawn."]


def _fields(table: NodeTable) -> dict[str, Any]:
    return {name: getattr(table, name) for name in NodeTable.__annotations__}


def test_a_plan_that_stands_in_the_graph_and_is_not_followed_is_named() -> None:
    assert FULL.streams is not None
    idle = evolve(FULL, streams=evolve(FULL.streams, applied=False))
    assert graph_view.NOT_APPLIED in render(idle, (), SMALL)
    assert graph_view.NOT_APPLIED not in render(FULL, (), SMALL)
    assert graph_view.NOT_APPLIED not in render(idle, (), {"graph_0": GraphDrawing(before=BEFORE)})


def test_the_data_of_the_page_is_that_of_the_tables() -> None:
    block = render(FULL, (), SMALL).split('id="graph-data">', 1)[1].split("</script>", 1)[0]
    (graph,) = json.loads(block)["graphs"]
    assert graph["streams"] == ["default", "stream1"]
    assert [state["names"] for state in graph["states"]] == [list(BEFORE.names), list(AFTER.names)]
    assert all(len(state["at"]) == len(state["names"]) for state in graph["states"])
