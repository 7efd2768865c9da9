"""Which memories may become one: what a caller sees of them afterwards decides."""

from __future__ import annotations

import pytest
from torch import fx

from npucompose.graphs import Aliases
from npucompose.passes.outputs import Visible
from tests.sample_graphs import Program, aten


class Three:
    """Two inputs, a constant, and three values: the first is returned, the second is returned as a view."""

    def __init__(self) -> None:
        building = Program(inputs=2)
        self.x, self.y = building.values
        self.held = building.graph.get_attr("held")
        self.held.meta["val"] = building.values[0].meta["val"].clone()
        self.out, self.base, self.quiet, self.other = (
            building.call(aten.clone.default, source) for source in (self.x, self.x, self.y, self.y)
        )
        self.view = building.call(aten.t.default, self.base)
        building.graph.output((self.out, self.view))
        self.graph = building.graph
        self.visible = Visible(building.graph, Aliases.of(building.graph))

    def node(self, name: str) -> fx.Node:
        return getattr(self, name)


JOINS: list[tuple[str, str, bool]] = [
    ("out", "out", False),
    ("x", "out", False),
    ("held", "out", False),
    ("quiet", "out", True),
    ("base", "out", False),
    ("out", "view", False),
    ("out", "base", False),
    ("x", "base", False),
    ("quiet", "base", True),
    ("view", "base", True),
    ("base", "view", True),
    ("quiet", "other", True),
    ("x", "quiet", True),
    ("out", "quiet", True),
    ("held", "quiet", True),
]


@pytest.mark.parametrize(("kept", "gone", "may"), JOINS)
def test_no_output_joins_an_input_or_another_output(kept: str, gone: str, may: bool) -> None:
    given = Three()
    assert given.visible.may_join(given.node(kept), given.node(gone)) is may


@pytest.mark.parametrize(
    ("first", "kept", "gone", "may"),
    [
        (("quiet", "other"), "quiet", "base", True),
        (("x", "quiet"), "quiet", "base", False),
        (("x", "quiet"), "other", "quiet", True),
        (("out", "quiet"), "quiet", "base", False),
        (("quiet", "out"), "quiet", "other", True),
        (("quiet", "out"), "other", "quiet", True),
        (("quiet", "out"), "x", "quiet", False),
        (("quiet", "base"), "other", "quiet", True),
        (("quiet", "base"), "out", "quiet", False),
    ],
)
def test_joined_memories_are_one_for_the_next_question(first: tuple[str, str], kept: str, gone: str, may: bool) -> None:
    given = Three()
    given.visible.join(*(given.node(name) for name in first))
    assert given.visible.may_join(given.node(kept), given.node(gone)) is may


def test_three_that_are_joined_are_one() -> None:
    given = Three()
    given.visible.join(given.quiet, given.other)
    given.visible.join(given.x, given.other)
    assert not given.visible.may_join(given.quiet, given.base)
    assert given.visible.may_join(given.quiet, given.x)


def test_what_is_merged_leaves_the_graph_and_its_place_among_the_outputs_stays() -> None:
    given = Three()
    given.visible.merge(given.quiet, given.out)
    assert given.out not in given.graph.nodes
    assert given.quiet in given.visible.outputs
    assert [node.args[0][0] for node in given.graph.nodes if node.op == "output"] == [given.quiet]


def test_numbers_lie_nowhere_and_may_always_be_one() -> None:
    building = Program(inputs=1)
    one, two = (building.call(aten.sym_size.int, building.values[0], 0) for _ in range(2))
    building.graph.output((two,))
    visible = Visible(building.graph, Aliases.of(building.graph))
    assert visible.may_join(one, two)
    visible.merge(one, two)
    assert visible.outputs >= {one}
