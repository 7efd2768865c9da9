"""Which memories may become one: what a caller sees of them afterwards decides."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from npucompose.passes.cancel_transposes.moves import Editor
from npucompose.passes.simplify import Visible
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
        self.visible = Visible(building.graph)

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
    visible = Visible(building.graph)
    assert visible.may_join(one, two)
    visible.merge(one, two)
    assert visible.outputs >= {one}


def chain() -> tuple[Program, fx.Node, fx.Node, fx.Node]:
    """x, a copy, a copy of it, of which a view is the output."""
    building = Program(inputs=1)
    first = building.call(aten.clone.default, building.values[0])
    second = building.call(aten.clone.default, first)
    building.graph.output((building.call(aten.t.default, second),))
    return building, building.values[0], first, second


def test_an_editor_remembers_which_memories_it_made_one() -> None:
    building, x, first, second = chain()
    editor = Editor(building.graph, writes=False)
    assert editor.may_stand_for(x, first)
    assert editor.may_stand_for(first, second)
    editor.stand_for(first, second)
    assert not editor.may_stand_for(x, first), "the output would be a view of the input"
    assert editor.changed == 1
    assert second not in building.graph.nodes


def test_an_editor_s_own_nodes_are_new_memory_in_front_of_their_reader() -> None:
    building, x, first, second = chain()
    first.meta["stack_trace"] = "a line"
    editor = Editor(building.graph, writes=True)
    made = editor.laid_down(second, first)
    assert [node.name for node in building.graph.nodes][:3] == ["x0", "clone_default", made.name]
    assert (made.args, made.kwargs["memory_format"], made.meta["stack_trace"]) == (
        (first,), torch.contiguous_format, "a line"
    )  # fmt: skip
    assert editor.quiet(made, first, second)
    assert editor.may_stand_for(made, second)
    assert editor.permuted(second, first, x, (0, 1)) is x
    turned = editor.permuted(second, first, x, (1, 0))
    assert (turned.target, turned.args, turned.meta["stack_trace"]) == (aten.permute.default, (x, [1, 0]), "a line")
    editor.sweep([turned, made])
    assert turned not in building.graph.nodes
    assert made not in building.graph.nodes


def test_what_somebody_writes_is_not_quiet() -> None:
    building, x, first, second = chain()
    building.call(aten.add_.Tensor, first, 1)
    loud = Editor(building.graph, writes=True)
    assert (loud.quiet(x), loud.quiet(second), loud.quiet(first), loud.quiet(x, first)) == (True, True, False, False)
    assert not loud.may_stand_for(x, first)
