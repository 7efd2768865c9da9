"""Scopes, records and waits are read off a graph as TorchAir reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from npucompose import ops
from npucompose.graphs import is_planned
from npucompose.graphs.effects import (
    CORES,
    LABEL,
    PRIORITY,
    Scope,
    control,
    core_limits,
    core_scope,
    orders_streams,
    priorities,
    stream_labels,
)
from npucompose.schema.streams import Cores
from tests.sample_graphs import aten

ops.define()
LIMIT = dict(zip(CORES, ("8", "16"), strict=True))


class Written:
    """A graph written down scope by scope; every kernel is a relu of the input."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")

    def enter(self, **attributes: str) -> fx.Node:
        named = {{"label": LABEL, "priority": PRIORITY}.get(key, key): value for key, value in attributes.items()}
        return self.call("scope_enter", list(named), list(named.values()))

    def call(self, name: str, *args: Any) -> fx.Node:
        return self.graph.call_function(getattr(torch.ops.air, name).default, args)

    def kernel(self) -> fx.Node:
        return self.graph.call_function(aten.relu.default, (self.x,))


def test_the_four_operators_are_known_by_name() -> None:
    made = Written()
    found = [made.enter(label="s"), made.call("scope_exit"), record := made.call("record"), made.call("wait", [record])]
    assert [control(node) for node in found] == ["scope_enter", "scope_exit", "record", "wait"]
    assert [control(made.x), control(made.kernel()), control(made.graph.output(()))] == [None, None, None]


@pytest.mark.parametrize(
    ("write", "planned", "ordered"),
    [
        (lambda made: made.kernel(), False, False),
        (lambda made: made.call("record"), True, True),
        (lambda made: made.call("wait", []), True, True),
        (lambda made: made.enter(label="side"), True, True),
        (lambda made: made.enter(**LIMIT), True, False),
        (lambda made: made.call("scope_exit"), True, False),
    ],
    ids=["no scope", "record", "wait", "stream scope", "core scope", "exit"],
)
def test_a_plan_is_seen_and_whether_it_orders_streams(write: Any, planned: bool, ordered: bool) -> None:
    made = Written()
    write(made)
    assert (is_planned(made.graph), orders_streams(made.graph)) == (planned, ordered)


def test_a_scope_says_what_its_keys_say_and_nothing_else() -> None:
    made = Written()
    scope = Scope.from_node(made.enter(label="side", priority="2", **LIMIT))
    assert scope == Scope(keys=(LABEL, PRIORITY, *CORES), values=("side", "2", "8", "16"))
    assert (scope.stream, scope.priority, scope.cores) == ("side", 2, Cores(aicore=8, vectorcore=16))
    silent = Scope(keys=("_other",), values=("3",))
    assert (silent.stream, silent.priority, silent.cores) == (None, 0, None)
    for key in CORES:
        assert Scope(keys=(key,), values=("8",)).cores is None, "half a limit is none"
    assert Scope(keys=(LABEL, PRIORITY), values=("side",)).stream == "side", "a key without a value says nothing"


def test_the_innermost_scope_that_says_something_counts() -> None:
    made = Written()
    made.enter(label="outer", **LIMIT)
    first = made.kernel()
    made.enter(label="inner")
    second = made.kernel()
    made.enter(_other="x")
    third = made.kernel()
    made.call("scope_exit")
    made.call("scope_exit")
    fourth = made.kernel()
    made.call("scope_exit")
    outside = made.kernel()
    made.call("scope_exit")  # one too many closes nothing
    made.enter(_op_aicore_num="1", _op_vectorcore_num="2")
    last = made.kernel()
    limit = Cores(aicore=8, vectorcore=16)
    assert stream_labels(made.graph) == {first: "outer", second: "inner", third: "inner", fourth: "outer"}
    assert core_limits(made.graph) == {
        first: limit, second: limit, third: limit, fourth: limit, last: Cores(aicore=1, vectorcore=2)
    }  # fmt: skip
    assert outside not in core_limits(made.graph)


def test_a_core_scope_is_written_as_it_is_read() -> None:
    keys, values = core_scope(Cores(aicore=3, vectorcore=5))
    assert (keys, values) == (list(CORES), ["3", "5"])
    assert Scope(keys=tuple(keys), values=tuple(values)).cores == Cores(aicore=3, vectorcore=5)


def test_the_last_priority_of_a_stream_counts_and_none_is_not_told() -> None:
    made = Written()
    for attributes in (
        {"label": "a", "priority": "1"}, {"label": "a", "priority": "-2"}, {"label": "b", "priority": "0"},
        {"label": "c"}, {"priority": "4"},
    ):  # fmt: skip
        made.enter(**attributes)
    made.call("record")
    assert priorities(made.graph) == {"a": -2}
