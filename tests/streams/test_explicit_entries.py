"""Entries that a person wrote: whom they find, what they say of a stream, and where they contradict each other."""

from __future__ import annotations

import warnings
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence, matching
from npucompose.schema.streams import Cores, ExtraEdge, Match, PlanEntry, SourceMatch, Streams
from npucompose.streams import explicit
from npucompose.streams.explicit import assigned, cores, extra_edges, priorities
from npucompose.vendor.devices import ATLAS_A2
from tests.sample_graphs import mm_abs_sub, node, traced

X = torch.randn(4, 4)


def needed() -> Dependence:
    return Dependence.from_graph(traced(mm_abs_sub, X).graph)


def entry(stream: str, name: str = "mm", **more: Any) -> PlanEntry:
    return PlanEntry(stream=stream, match=Match(name=name), **more)


def wanted(*entries: PlanEntry, **more: Any) -> Streams:
    return Streams(kind="explicit", plan=entries, max_streams=9, **more)


def test_each_kernel_has_the_stream_of_the_first_entry_that_finds_it() -> None:
    found = assigned(needed(), wanted(entry("a", "abs_1"), entry("b", "re:abs_1|sub"), entry("default", "mm")))
    assert found == ["default", "a", "b", "default"]


def test_an_entry_that_comes_too_late_is_told_with_its_place() -> None:
    plan = wanted(entry("a", "*"), entry("b", "sub"))
    with pytest.raises(PlanError) as caught:
        assigned(needed(), plan)
    assert caught.value.code == "no_match"
    assert "streams.plan[1] (stream 'b') (name: sub) matches only kernels that an earlier" in str(caught.value)


def test_a_warning_is_given_once_for_an_entry_and_names_the_caller() -> None:
    plan = wanted(entry("a", "*"), entry("b", "sub"), entry("c", "nope"), on_no_match="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert assigned(needed(), plan) == ["a"] * 4
    first, second = (str(one.message) for one in caught)
    assert "streams.plan[1] (stream 'b') (name: sub) matches only" in first
    assert "streams.plan[2] (stream 'c') (name: nope) matches nothing: no name fits 'nope'. There are: mm" in second
    assert all(one.category is UserWarning and one.filename == explicit.__file__ for one in caught)


def test_an_edge_goes_from_all_that_after_finds_to_all_that_before_finds() -> None:
    edges = (
        ExtraEdge(after=Match(name="re:abs_1|mm"), before=Match(name="re:sub|add")),
        ExtraEdge(after=Match(name="mm"), before=Match(name="abs_1")),
    )
    found = extra_edges(needed(), Streams(edges=edges))
    assert [(first.name, then.name) for first, then in found] == [
        ("mm", "sub"), ("mm", "add"), ("abs_1", "sub"), ("abs_1", "add"), ("mm", "abs_1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "place"), [("after", "streams.edges[0].after"), ("before", "streams.edges[0].before")]
)
def test_an_edge_that_finds_nothing_says_on_which_side(field: str, place: str) -> None:
    sides = {"after": Match(name="mm"), "before": Match(name="mm"), field: Match(name="nope")}
    with pytest.raises(PlanError) as caught:
        extra_edges(needed(), Streams(edges=(ExtraEdge(**sides),)))
    assert f"{place} (name: nope) matches nothing" in str(caught.value)


def test_priorities_are_those_that_are_not_zero() -> None:
    assert priorities(wanted(entry("a", priority=2), entry("b"), entry("a", priority=2))) == {"a": 2}
    assert priorities(wanted(entry("b"))) == {}


def test_one_stream_has_one_priority() -> None:
    with pytest.raises(PlanError) as caught:
        priorities(wanted(entry("b"), entry("a", priority=2), entry("a", priority=1)))
    assert caught.value.code == "priority"
    assert (
        "streams.plan[2] gives stream 'a' priority 1, an earlier entry priority 2: one stream has one value of priority"
        in str(caught.value)
    )


LIMIT = Cores(aicore=8, vectorcore=16)
MODEL = attrs.evolve(ATLAS_A2, name="a device", cube=8, vector=16)


def test_limits_are_those_of_the_streams_that_have_one() -> None:
    assert cores(wanted(entry("a", cores=LIMIT), entry("b"), entry("a", cores=LIMIT)), MODEL) == {"a": LIMIT}


@pytest.mark.parametrize(("cube", "vector"), [(9, 16), (8, 17)])
def test_a_limit_beyond_the_device_is_refused_with_its_place(cube: int, vector: int) -> None:
    plan = wanted(entry("b"), entry("a", cores=Cores(aicore=cube, vectorcore=vector)))
    with pytest.raises(PlanError) as caught:
        cores(plan, MODEL)
    assert caught.value.code == "cores"
    assert (
        f"streams.plan[1].cores asks for {cube} cube and {vector} vector cores; a device has 8 cube and 16 vector cores"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (LIMIT, None, "gives stream 'a' no limit, an earlier entry 8 cube and 16 vector cores"),
        (None, LIMIT, "gives stream 'a' 8 cube and 16 vector cores, an earlier entry no limit"),
        (LIMIT, Cores(aicore=8, vectorcore=15), "gives stream 'a' 8 cube and 15 vector cores, an earlier entry 8 cube"),
    ],
)
def test_one_stream_has_one_limit(first: Cores | None, second: Cores | None, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        cores(wanted(entry("a", cores=first), entry("a", cores=second)), MODEL)
    assert caught.value.code == "cores"
    assert f"streams.plan[1] {words}" in str(caught.value)


def stacked(trace: str | None = None, *modules: str) -> fx.Node:
    made = fx.Graph().placeholder("x")
    if trace is not None:
        made.meta["stack_trace"] = trace
    made.meta["nn_module_stack"] = {str(k): (path, object) for k, path in enumerate(modules)}
    return made


TRACE = '  File "/a/net/outer.py", line 3, in f\n    g()\n  File "/a/net/attn.py", line 41, in g\n    return x\n'


def test_what_a_node_is_called_by() -> None:
    graph = traced(mm_abs_sub, X).graph
    assert matching.targets(node(graph, "mm")) == ("aten.mm.default", "aten.mm")
    assert matching.targets(node(graph, "x_1")) == ("x_1",)
    assert matching.modules(stacked(None, "L['self']", "L['self'].layers[0]", "L['self'].layers[0].up")) == (
        "layers.0",
        "layers.0.up",
    )
    assert matching.modules(fx.Graph().placeholder("x")) == ()
    assert [frame.group("file", "line") for frame in matching.frames(stacked(TRACE))] == [
        ("/a/net/outer.py", "3"), ("/a/net/attn.py", "41")
    ]  # fmt: skip
    assert matching.frames(stacked()) == []


@pytest.mark.parametrize(
    ("file", "lines", "fits"),
    [
        ("attn.py", None, True),
        ("net/attn.py", None, True),
        ("/a/net/attn.py", None, True),
        ("b/net/attn.py", None, False),
        ("tn.py", None, False),  # whole parts of a path
        ("net", None, False),
        ("outer.py", None, True),  # any of the calls that made it
        ("attn.py", (41, 41), True),
        ("attn.py", (40, 42), True),
        ("attn.py", (42, 50), False),
        ("attn.py", (1, 40), False),
        ("outer.py", (41, 41), False),  # the line of the same file
    ],
)
def test_a_source_fits_by_the_end_of_its_path_and_its_lines(
    file: str, lines: tuple[int, int] | None, fits: bool
) -> None:
    assert matching.matches(Match(source=SourceMatch(file=file, lines=lines)), stacked(TRACE)) is fits


def test_all_fields_of_a_match_have_to_fit() -> None:
    graph = traced(mm_abs_sub, X).graph
    made = node(graph, "abs_1")
    made.meta.update(stacked(TRACE, "L['self'].layers[0]").meta)
    right: dict[str, Any] = {
        "target": "aten.abs",
        "name": "abs_1",
        "module": "layers.0",
        "source": SourceMatch(file="attn.py"),
    }
    wrong: dict[str, Any] = {
        "target": "aten.mm",
        "name": "mm",
        "module": "layers.1",
        "source": SourceMatch(file="b.py"),
    }
    assert matching.find(Match(**right), graph.nodes) == (made,)
    for field, value in wrong.items():
        assert matching.find(Match(**{**right, field: value}), graph.nodes) == ()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"name": "x_1"}, "it finds only views, inputs or sizes, which start no kernel"),
        ({"name": "subb"}, "no name fits 'subb'. Near: sub."),
        ({"name": "zzzzzz"}, "no name fits 'zzzzzz'. There are: mm, abs_1, sub, add."),
        ({"target": "aten.abss.default"}, "no target fits 'aten.abss.default'. Near: aten.abs.default"),
        ({"target": "re:aten.abss.default"}, "no target fits 're:aten.abss.default'. Near: aten.abs.default"),
        ({"module": "layers"}, "no module fits 'layers'. The nodes of this graph do not say theirs."),
        ({"name": "mm", "target": "aten.abs"}, "every field fits some node, but no node fits them all"),
        ({"name": "nope", "target": "aten.nope"}, "no target fits 'aten.nope'"),
    ],
)
def test_why_an_entry_finds_nothing(tree: dict[str, Any], words: str) -> None:
    found = needed()
    others = [one for one in found.origins if one not in found.kernels]
    assert words in matching.why_none(Match(**tree), found.kernels, others)


def test_the_lines_that_there_are_are_told_by_file_and_line() -> None:
    kernels = [stacked(TRACE), stacked(TRACE.replace("41", "9")), stacked(TRACE)]
    why = matching.why_none(Match(source=SourceMatch(file="zzzz")), kernels, [])
    assert why == "no source line fits. There are: attn.py:41, attn.py:9."
    assert matching.why_none(Match(source=SourceMatch(file="b.py")), [stacked()], []) == (
        "no source line fits. The nodes of this graph do not say theirs."
    )


def test_every_module_around_a_node_is_offered() -> None:
    inside = stacked(None, "L['self']", "L['self'].layers", "L['self'].layers.up")
    why = matching.why_none(Match(module="zzzzzz"), [inside], [])
    assert why == "no module fits 'zzzzzz'. There are: layers, layers.up."


def test_of_many_names_eight_are_told() -> None:
    def told(asked: str, count: int) -> str:
        graph = fx.Graph()
        nodes = [graph.create_node("call_function", torch.abs, name=f"name_{k}") for k in range(count)]
        return matching.why_none(Match(name=asked), nodes, []).partition("'. ")[2]

    assert told("qqqq", 9) == "There are: name_0, name_1, name_2, name_3, name_4, name_5, name_6, name_7, …."
    assert told("qqqq", 8).endswith("name_7.")
    assert told("name_x", 9).startswith("Near: name_")
    assert told("name_x", 9).count(",") == 2
