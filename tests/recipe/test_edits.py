"""Edits of a graph that a script carries: nodes inserted, moved, replaced, given other arguments, removed."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.recipe import carried
from npucompose.recipe.carried import GraphEdit, apply_frozen, graph_fingerprint
from tests.recipe.fakes import events_source
from tests.sample_graphs import mm_abs_sub, names, node, traced

aten = torch.ops.aten


def edited(*, mode: str = "fake") -> tuple[fx.GraphModule, GraphEdit]:
    module = traced(mm_abs_sub, torch.randn(2, 2), mode=mode)
    return module, GraphEdit(module.graph)


def test_an_inserted_node_stands_behind_the_one_named_and_has_the_value_of_its_operator() -> None:
    module, edit = edited()
    assert edit["mm"] is node(module.graph, "mm")
    edit.insert("half", aten._to_copy.default, (edit["mm"],), {"dtype": torch.float16}, after="mm")
    edit.insert("both", aten.max.dim, [edit["half"], 0], after="half")
    edit.insert("first", operator.getitem, (edit["both"], 0), after="both")
    edit.insert("made", aten.ones.default, ([3],), after="x_1")
    assert names(module.graph) == ["x_1", "made", "mm", "half", "both", "first", "abs_1", "sub", "add", "output"]
    assert edit["half"].meta["val"].dtype == torch.float16
    assert edit["half"].kwargs == {"dtype": torch.float16}
    assert type(edit["both"].args) is type(edit["mm"].args)
    assert edit["first"].meta["val"].shape == (2,)
    for name in ("half", "first", "made"):
        assert edit[name].meta["val"].fake_mode is edit["mm"].meta["val"].fake_mode
    with pytest.raises(RuntimeError, match="the name 'mm' is taken in this graph: the new node would be 'mm_1'"):
        edit.insert("mm", aten.neg.default, (edit["x_1"],), after="x_1")


def test_values_are_made_without_a_fake_mode_where_the_graph_has_none() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = [torch.ones(2), (torch.ones(3), 1)]
    edit = GraphEdit(graph)
    edit.insert("part", operator.getitem, (x, 0), after="x")
    edit.insert("twice", aten.add.Tensor, (edit["part"],), {"other": edit["part"]}, after="part")
    assert edit["twice"].meta["val"].tolist() == [2.0, 2.0]
    assert carried._tensors(x.meta["val"])[1].shape == (3,)
    assert carried._tensors(3) == []


def test_nodes_are_moved_replaced_given_other_arguments_and_removed() -> None:
    module, edit = edited()
    edit.move("mm", after="sub")
    assert names(module.graph) == ["x_1", "abs_1", "sub", "mm", "add", "output"]
    edit.replace("sub", by="abs_1")
    assert edit["add"].args == (edit["mm"], edit["abs_1"])
    edit.arguments("add", [edit["mm"], edit["mm"]], {"alpha": 2})
    assert (edit["add"].args, edit["add"].kwargs) == ((edit["mm"], edit["mm"]), {"alpha": 2})
    edit.arguments("add", (edit["mm"], edit["mm"]))
    assert edit["add"].kwargs == {}
    edit.remove("sub", "abs_1")
    assert names(module.graph) == ["x_1", "mm", "add", "output"]
    with pytest.raises(KeyError):
        edit["sub"]


def test_frozen_edits_are_applied_to_their_graph_and_the_module_then_runs_them() -> None:
    module, _ = edited()
    x = torch.randn(2, 2)
    told = module(x)

    def edits(edit: GraphEdit) -> None:
        edit.replace("sub", by="x_1")
        edit.remove("sub", "abs_1")

    frozen_graphs = {graph_fingerprint(module.graph): edits}
    apply_frozen(module, frozen_graphs, "mine")
    assert torch.equal(module(x), torch.mm(x, x) + x)
    assert not torch.equal(module(x), told)
    with pytest.raises(RuntimeError, match=r"The passes mine were frozen for the graph \w{12}, and this .* \w{12}: "):
        apply_frozen(module, frozen_graphs, "mine")


def test_edits_that_leave_no_graph_are_refused() -> None:
    module, _ = edited()
    backwards: dict[str, Any] = {graph_fingerprint(module.graph): lambda edit: edit.move("x_1", after="mm")}
    with pytest.raises(RuntimeError, match="used before it has been defined"):
        apply_frozen(module, backwards, "mine")


def test_events_are_defined_once_and_stay_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without npucompose: under a name of their own, for air has its events here already."""
    names: dict[str, Any] = {}
    exec(events_source().replace("air", "air_alone"), names)
    events = torch.ops.air_alone
    assert not hasattr(events, "record")
    names["define_events"]()
    names["define_events"]()
    assert events.record().numel() == 0
    assert events.record(device=torch.device("meta")).device.type == "meta"
    assert events.wait([torch.ones(1)]) is None
    graph = fx.Graph()
    graph.call_function(events.wait.default, ([graph.call_function(events.record.default)],))
    graph.output(())
    assert not graph.eliminate_dead_code()
    assert len(graph.nodes) == 3
