from __future__ import annotations

import random
import warnings
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from npucompose.errors import ConfigError, PlanError
from npucompose.graphs import fingerprint, printed
from npucompose.results.streams import StreamEvent
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply, plan, plan_of, strip, validate
from npucompose.streams.execute import find_races
from npucompose.table.structure import structure
from tests.recipe.fakes import npugraph_ex_operators
from tests.sample_graphs import CAN, mm_abs_sub, names, programs, run, traced
from tests.searches import examples

AUTO = Streams(min_gain=0)
BY_SHAPE = Streams(objective="events", cost="none")
X = torch.randn(4, 4)


def streams(**tree: Any) -> Streams:
    return structure(Streams, {"kind": "explicit", **tree}, "streams")


ABS_SUB = streams(
    plan=[
        {"stream": "stream1", "match": {"target": "aten.abs"}},
        {"stream": "stream1", "match": {"target": "aten.sub.Tensor"}},
    ]
)


@pytest.mark.parametrize("wanted", [BY_SHAPE, ABS_SUB], ids=["auto", "explicit"])
def test_mm_abs_sub_takes_two_streams_and_one_event(wanted: Streams) -> None:
    found = plan(traced(mm_abs_sub, X).graph, wanted, CAN)
    assert found.nodes == {"mm": "default", "abs_1": "stream1", "sub": "stream1", "add": "default"}
    assert found.events == (StreamEvent(recorder="sub", waiter="add"),)


def test_the_planned_mm_abs_sub_is_the_seed_s_listing(golden: Any) -> None:
    module = traced(mm_abs_sub, X)
    assert apply(module.graph, BY_SHAPE, CAN) == 2
    module.graph.lint()
    golden("passes/stream_plan.txt", printed(module.graph))


def test_a_chain_stays_on_one_stream() -> None:
    module = traced(lambda x: x.abs().relu().neg().exp(), X)
    before = printed(module.graph)
    assert set(plan(module.graph, AUTO, CAN).nodes.values()) == {"default"}
    assert apply(module.graph, AUTO, CAN) == 0
    assert printed(module.graph) == before


def branches(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x.mm(x).mm(x) + x.abs().neg()
    return x


def test_a_stream_that_is_through_is_used_again_instead_of_a_new_one() -> None:
    found = plan(traced(branches, X).graph, Streams(objective="events", cost="none", max_streams=8), CAN)
    assert found.streams == ("default", "stream1")
    assert [stream for name, stream in found.nodes.items() if name.startswith(("mm", "add"))] == ["default"] * 9


def test_max_streams_is_kept_by_auto_and_by_the_device() -> None:
    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.abs() + x.neg() + x.relu() + x.exp() + x.sin()

    graph = traced(wide, X).graph
    assert len(plan(graph, attrs.evolve(BY_SHAPE, max_streams=5), CAN).streams) == 5
    assert len(plan(graph, attrs.evolve(BY_SHAPE, max_streams=3), CAN).streams) == 3
    assert len(plan(graph, attrs.evolve(BY_SHAPE, max_streams=1), CAN).streams) == 1
    one = Capabilities(target="t", mode="m", max_streams=1)
    assert len(plan(graph, attrs.evolve(BY_SHAPE, max_streams=5), one).streams) == 1


def test_views_follow_their_producer_and_weights_views_stay_outside(golden: Any) -> None:
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        left = x.abs().t()
        halves = (x + 1).split(2)
        return torch.cat([halves[1], halves[0]]).mm(weight.t()) + left.neg()

    module = traced(forward, X, torch.randn(4, 4))
    apply(module.graph, AUTO, CAN)
    golden("streams/views.txt", printed(module.graph))


def test_constants_go_where_they_are_read() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mm(x).mm(torch.ones(4, 4)) + x.abs() * torch.zeros(4, 4)

    found = plan(traced(forward, X).graph, attrs.evolve(AUTO, objective="events", cost="none"), CAN)
    assert found.nodes["ones"] == found.nodes["mm_1"] == "default"
    assert found.nodes["zeros"] == found.nodes["mul"] == "stream1"
    assert len(found.events) == 1


def test_an_input_is_written_only_after_every_stream_has_read_it() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        read = x.mm(x)
        x.copy_(y.neg())
        return read

    module = traced(forward, X, torch.randn(4, 4))
    wanted = streams(plan=[{"stream": "s", "match": {"name": "mm"}}])
    apply(module.graph, wanted, CAN)
    assert plan_of(module.graph).events == (StreamEvent(recorder="mm", waiter="copy_"),)


def test_random_numbers_keep_their_order_across_streams() -> None:
    module = traced(lambda x: torch.rand_like(x) + torch.rand_like(x).abs(), X)
    wanted = streams(plan=[{"stream": "s", "match": {"name": "rand_like_1"}}])
    found = plan(module.graph, wanted, CAN)
    assert StreamEvent(recorder="rand_like", waiter="rand_like_1") in found.events


def test_symbolic_sizes_are_planned_and_no_guard_is_added() -> None:
    module = traced(mm_abs_sub, X, mode="symbolic")
    shape_env = next(n.meta["val"].fake_mode.shape_env for n in module.graph.nodes if n.name == "mm")
    guards = len(shape_env.guards)
    assert apply(module.graph, BY_SHAPE, CAN) == 2
    assert len(shape_env.guards) == guards
    module.recompile()
    for size in (4, 6):
        x = torch.randn(size, size)
        assert torch.equal(module(x), mm_abs_sub(x))


def test_undefined_stream_operators_are_said_so() -> None:
    with pytest.raises(PlanError, match=r"torch\.ops\.nowhere\.scope_enter, … are not defined"):
        apply(traced(mm_abs_sub, X).graph, AUTO, Capabilities(target="t", mode="m", scope_namespace="nowhere"))


def test_kind_none_changes_nothing() -> None:
    module = traced(mm_abs_sub, X)
    before = fingerprint(module.graph)
    assert apply(module.graph, Streams(kind="none"), CAN) == 0
    assert fingerprint(module.graph) == before


def test_priorities_and_the_other_package_s_operators_are_written_as_asked() -> None:
    npugraph_ex_operators()
    module = traced(mm_abs_sub, X)
    can = Capabilities(target="npu", mode="npugraph_ex", scope_namespace="npugraph_ex")
    wanted = streams(plan=[{"stream": "s", "priority": 3, "match": {"target": "aten.abs"}}])
    apply(module.graph, wanted, can)
    enter = next(n for n in module.graph.nodes if "scope_enter" in n.name)
    assert str(enter.target) == "npugraph_ex.scope_enter.default"
    assert {str(n.target) for n in module.graph.nodes if n.name.startswith(("record", "wait"))} == {
        "air.record.default",
        "air.wait.default",
    }
    assert enter.args == (["_user_stream_label", "_user_stream_priority"], ["s", "3"])
    assert plan_of(module.graph).priorities == {"s": 3}


MATCHES = [
    ({"target": "aten.abs"}, ["abs_1"]),
    ({"target": "aten.abs.default"}, ["abs_1"]),
    ({"target": "re:aten\\.(abs|sub)\\..*"}, ["abs_1", "sub"]),
    ({"name": "s*b"}, ["sub"]),
    ({"name": "re:.*"}, ["mm", "abs_1", "sub", "add"]),
    ({"module": "layers.0.attn"}, ["abs_1", "sub"]),
    ({"module": "layers.*"}, ["abs_1", "sub"]),
    ({"module": "re:.*attn", "target": "aten.sub"}, ["sub"]),
    ({"source": {"file": "net/attn.py"}}, ["abs_1", "sub"]),
    ({"source": {"file": "attn.py", "lines": [40, 41]}}, ["abs_1"]),
]


def labelled() -> fx.GraphModule:
    module = traced(mm_abs_sub, X)
    for made, line in (("abs_1", 41), ("sub", 44)):
        found = next(n for n in module.graph.nodes if n.name == made)
        found.meta["nn_module_stack"] = {
            "a": ("L['self'].layers[0]", object),
            "b": ("L['self'].layers[0].attn", object),
        }
        found.meta["stack_trace"] = f'  File "/src/net/attn.py", line {line}, in forward\n    return x\n'
    return module


@pytest.mark.parametrize(("match", "expected"), MATCHES)
def test_an_entry_finds_nodes_by_target_name_module_and_source(match: dict[str, Any], expected: list[str]) -> None:
    found = plan(labelled().graph, streams(plan=[{"stream": "s", "match": match}]), CAN)
    assert [name for name, stream in found.nodes.items() if stream == "s"] == expected


def test_the_first_entry_that_matches_wins() -> None:
    wanted = streams(
        max_streams=3,
        plan=[{"stream": "a", "match": {"name": "abs_1"}}, {"stream": "b", "match": {"name": "re:abs_1|sub"}}],
    )
    found = plan(labelled().graph, wanted, CAN)
    assert (found.nodes["abs_1"], found.nodes["sub"]) == ("a", "b")


REFUSED = [
    (
        {"plan": [{"stream": "s", "match": {"target": "aten.abss"}}]},
        "no_match",
        "streams.plan[0] (stream 's')",
        "aten.abs",
    ),
    ({"plan": [{"stream": "s", "match": {"name": "subb"}}]}, "no_match", "no name fits 'subb'. Near: sub", "sub"),
    ({"plan": [{"stream": "s", "match": {"module": "layers.0.atn"}}]}, "no_match", "Near: layers.0.attn", "module"),
    (
        {"plan": [{"stream": "s", "match": {"source": {"file": "b.py"}}}]},
        "no_match",
        "no source line fits",
        "attn.py:41",
    ),
    ({"plan": [{"stream": "s", "match": {"name": "x_1"}}]}, "no_match", "start no kernel", "x_1"),
    (
        {"plan": [{"stream": "s", "match": {"name": "sub", "target": "aten.mm"}}]},
        "no_match",
        "no node fits them all",
        "",
    ),
    (
        {"plan": [{"stream": "a", "match": {"name": "*"}}, {"stream": "b", "match": {"name": "sub"}}]},
        "no_match",
        "streams.plan[1] (stream 'b')",
        "an earlier entry has taken",
    ),
    ({"edges": [{"after": {"name": "add"}, "before": {"name": "abs_1"}}]}, "cycle", "abs_1 -> sub -> add -> abs_1", ""),
    ({"edges": [{"after": {"name": "mm"}, "before": {"name": "mm"}}]}, "cycle", "mm -> mm", ""),
    ({"edges": [{"after": {"name": "nope"}, "before": {"name": "mm"}}]}, "no_match", "streams.edges[0].after", "nope"),
    (
        {"plan": [{"stream": "a", "match": {"name": "abs_1"}}, {"stream": "b", "match": {"name": "sub"}}]},
        "too_many_streams",
        "3 streams (a, b, default)",
        "streams.max_streams is 2",
    ),
    (
        {
            "plan": [
                {"stream": "a", "match": {"name": "abs_1"}},
                {"stream": "a", "priority": 1, "match": {"name": "sub"}},
            ]
        },
        "priority",
        "streams.plan[1]",
        "one stream has one value of priority",
    ),
]


@pytest.mark.parametrize(("tree", "code", "where", "what"), REFUSED)
def test_a_plan_that_cannot_be_followed_is_refused_by_name(tree: Any, code: str, where: str, what: str) -> None:
    module = labelled()
    before = printed(module.graph)
    with pytest.raises(PlanError) as caught:
        apply(module.graph, streams(**tree), CAN)
    assert caught.value.code == code
    assert where in str(caught.value)
    assert what in str(caught.value)
    assert printed(module.graph) == before


def test_warn_goes_on_without_the_entry() -> None:
    tree = {
        "on_no_match": "warn",
        "plan": [{"stream": "s", "match": {"name": "nope"}}, {"stream": "s", "match": {"name": "sub"}}],
    }
    with pytest.warns(UserWarning, match="matches nothing"):
        found = plan(labelled().graph, streams(**tree), CAN)
    assert found.nodes["sub"] == "s"


def test_an_extra_edge_orders_what_data_does_not() -> None:
    wanted = streams(
        plan=[{"stream": "s", "match": {"name": "abs_1"}}],
        edges=[{"after": {"name": "abs_1"}, "before": {"name": "mm"}}],
    )
    module = traced(mm_abs_sub, X)
    apply(module.graph, wanted, CAN)
    assert StreamEvent(recorder="abs_1", waiter="mm") in plan_of(module.graph).events
    assert apply(module.graph, wanted, CAN) == 0


def test_an_extra_edge_alone_moves_kernels_and_no_stream() -> None:
    wanted = streams(edges=[{"after": {"name": "sub"}, "before": {"name": "mm"}}])
    module = traced(mm_abs_sub, X)
    assert apply(module.graph, wanted, CAN) == 3
    assert names(module.graph)[1:5] == ["abs_1", "sub", "mm", "add"]
    assert apply(module.graph, wanted, CAN) == 0


def test_a_graph_that_is_planned_otherwise_is_not_quietly_kept() -> None:
    module = traced(mm_abs_sub, X)
    apply(module.graph, AUTO, CAN)
    with pytest.raises(PlanError, match="already_planned"):
        apply(module.graph, streams(plan=[{"stream": "z", "match": {"name": "mm"}}]), CAN)


WRONG_TREES = [
    ({"kind": "none", "plan": [{"stream": "s", "match": {"name": "a"}}]}, "'kind: none' follows no plan: remove"),
    ({"kind": "explicit"}, "needs entries in 'plan' or 'edges' @ streams"),
    ({"plan": [{"stream": "s", "match": {}}]}, "at least one of target, name, module, source @ streams.plan[0].match"),
    ({"plan": [{"stream": "s", "match": {"name": "re:("}}]}, "'name' is not a regular expression"),
    ({"plan": [{"stream": "s", "match": {"source": {"file": "a.py", "lines": [3, 2]}}}]}, "[first, last]"),
    ({"plan": [{"stream": "", "match": {"name": "a"}}]}, "'stream' must be a name"),
    ({"kind": "autto"}, "Did you mean 'auto'?"),
]


@pytest.mark.parametrize(("tree", "words"), WRONG_TREES)
def test_a_wrong_streams_tree_is_refused_with_its_path(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Streams, tree, "streams")
    assert words in str(caught.value)


def test_stripping_gives_back_the_graph() -> None:
    module = traced(mm_abs_sub, X)
    before = printed(module.graph)
    apply(module.graph, BY_SHAPE, CAN)
    assert strip(module.graph) == 4
    module.graph.lint()
    assert printed(module.graph) == before


@given(programs(), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=examples(25), deadline=None)
def test_any_order_that_an_auto_plan_allows_gives_the_same_bits(module: Any, max_streams: int, seed: int) -> None:
    expected = run(module)
    wanted = Streams(min_gain=0, max_streams=max_streams)
    found = plan(module.graph, wanted, CAN)
    changed = apply(module.graph, wanted, CAN)
    module.graph.lint()
    validate(module.graph)
    if changed:
        assert plan_of(module.graph) == found
    assert len(found.streams) <= max_streams
    assert run(module) == expected
    find_races(module.graph, orders=3, seed=seed)
    text = printed(module.graph)
    assert apply(module.graph, wanted, CAN) == 0
    assert printed(module.graph) == text


@given(programs(), st.integers(0, 10_000))
@settings(max_examples=examples(25), deadline=None)
def test_any_assignment_whatever_is_made_safe(module: Any, seed: int) -> None:
    expected = run(module)
    chance = random.Random(seed)
    entries = [
        {"stream": chance.choice(["default", "a", "b"]), "match": {"name": name}}
        for name in plan(module.graph, AUTO, CAN).nodes
    ]
    if not entries:
        return
    apply(module.graph, streams(max_streams=3, plan=entries), CAN)
    module.graph.lint()
    assert run(module) == expected
    find_races(module.graph, orders=3, seed=seed)


def test_no_warning_comes_out_of_a_plan_that_fits() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(traced(mm_abs_sub, X).graph, ABS_SUB, CAN)


def test_a_plan_that_was_written_wrong_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is proven, not what was meant."""
    from npucompose.streams import planning

    written = planning.emit
    monkeypatch.setattr(
        planning, "emit", lambda graph, plan, *rest: written(graph, attrs.evolve(plan, events=()), *rest)
    )
    module = traced(lambda x: x @ x + (x.abs() - x), torch.randn(8, 8))
    with pytest.raises(PlanError) as caught:
        apply(module.graph, Streams(min_gain=0), CAN)
    assert caught.value.code == "race"
