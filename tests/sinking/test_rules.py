"""The decision table row by row on graphs that were never compiled, the operator table, and static parts."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.npu.static_graph.diagnosis import diagnose
from npucompose.npu.static_graph.facts import Input, Op, OpArgument
from npucompose.npu.static_graph.operators import uses
from npucompose.npu.static_graph.verdicts import static_parts
from npucompose.schema.experiment import Operator
from tests.sinking.asked import asked
from tests.sinking.made import GE, QUESTION, TABLE, chain, graph, op


def test_row_2_an_operator_on_the_hosts_engine() -> None:
    table = TABLE.with_rows({"aten.sort": Operator(ge="Sort", host_engine=True, source="a dump")})
    facts = diagnose(QUESTION, [graph(op("mm"), op("sort", "mm"))], (), table)
    assert facts.ge_build == "dynamic"
    assert [(b.node, b.rule) for b in facts.blame] == [("sort", "rule 2")]


def test_row_4_a_subgraph_with_a_dynamic_operator() -> None:
    inner = graph(op("nonzero", unknown_out=("u0",), unbacked=("u0",)))
    facts = diagnose(QUESTION, [graph(op("cond", subgraphs=(inner,)))], (), TABLE)
    assert facts.ge_build == "dynamic"
    assert (facts.blame[0].node, facts.blame[0].rule) == ("cond", "rule 4")
    assert "nonzero" in facts.blame[0].reason
    assert diagnose(QUESTION, [graph(op("cond", subgraphs=(graph(op("mm")),)))], (), TABLE).ge_build == "static"


def test_row_5_a_slot_that_holds_a_tensor_is_a_value_that_changes() -> None:
    padding = {"query_padding_size": OpArgument(kind="tensor"), "actual_seq_lengths": OpArgument(kind="nothing")}
    attention = evolve(op("fia"), schema="npu::npu_fused_infer_attention_score", arguments=padding)
    found = diagnose(QUESTION, [graph(attention)], (), TABLE)
    assert (found.path, found.ge_build) == (None, "static")  # the document's lengths are numbers
    off = diagnose(evolve(QUESTION, sink=False), [graph(attention)], (), TABLE)
    assert (off.path, off.blame[0].argument) == (None, "query_padding_size")
    bare = evolve(attention, arguments={"actual_seq_lengths": OpArgument(kind="nothing")})
    assert diagnose(evolve(QUESTION, sink=False), [graph(bare)], (), TABLE).path is None


@pytest.mark.parametrize(
    ("sinks", "product", "sink"),
    [
        (True, "ascend910b", "sinks"),
        (None, "ascend910b", "unknown"),
        (True, None, "product_unknown"),
        (True, "ascend310p", "product_cannot"),
        (False, None, "operator_cannot"),
    ],
)
def test_what_becomes_of_a_value_that_changes_says_who_is_to_blame(
    sinks: bool | None, product: str | None, sink: str
) -> None:
    table = TABLE.with_rows({"my.op": Operator(ge="Mine", slots=("lens",), sinks=sinks, source="measured")})
    reading = evolve(op("mine"), schema="my::op", arguments={"lens": OpArgument(kind="symbols", symbols=("s0",))})
    sinks_there = {"sinks": True, "unknown": None, "product_unknown": None}.get(sink, False)
    assert table.sinks(table.operators["my::op"], product) is sinks_there
    [use] = uses(graph(reading), evolve(QUESTION, product=product), table)
    assert use.sink == sink
    assert use.static is sinks_there


@pytest.mark.parametrize(("threshold", "build"), [("0", "static"), ("2", "static"), ("3", "dynamic")])
def test_row_8_a_graph_below_the_host_scheduling_threshold(threshold: str, build: str) -> None:
    ge = evolve(GE, options={"ge.exec.hostSchedulingMaxThreshold": threshold})
    assert diagnose(QUESTION, [graph(op("mm"))], [ge], TABLE).ge_build == build


@pytest.mark.parametrize(("limit", "build"), [(None, "mixed"), (6, "mixed"), (7, "dynamic"), (-1, "dynamic")])
def test_row_9_static_parts_that_are_too_small_are_given_up(limit: int | None, build: str) -> None:
    facts = diagnose(evolve(QUESTION, ops_lower_limit=limit), [chain(10, dynamic_at=3)], (), TABLE)
    assert facts.ge_build == build
    assert "rule 9: operators in each static part, views not counted: 3, 6" in facts.evidence["ge_build"][1]


def test_row_10_gears_are_one_static_graph_each() -> None:
    plain = asked("model=mlp", "shapes=dynamic")
    geared = asked("model=mlp", "shapes=dynamic", "+shapes.gears={x.0:[32,64]}")
    assert (plain.fx_graph, plain.ge_graph, plain.ge_build) == ("dynamic",) * 3
    assert (geared.fx_graph, geared.ge_graph, geared.ge_build) == ("dynamic", "dynamic", "static")
    assert geared.evidence["ge_build"] == ("rule 10: each gear is a static graph: x.0=[32, 64]",)


def test_a_proven_ge_graph_counts_over_what_the_fx_graph_suggests() -> None:
    symbolic = graph(op("mm"), inputs=(Input(name="x", argument="x", shape=("s0", "8"), sizes={0: "s0"}),))
    assert diagnose(QUESTION, [symbolic], (), TABLE).certainty["ge_graph"] == "derived"
    for shape, value in (((-1, 8), "dynamic"), ((-2,), "dynamic"), ((4, 8), "static")):
        facts = diagnose(QUESTION, [symbolic], [evolve(GE, data={"x": shape})], TABLE)
        assert (facts.ge_graph, facts.certainty["ge_graph"]) == (value, "proven")


def test_ge_graphs_that_cannot_be_told_apart_prove_nothing() -> None:
    facts = diagnose(QUESTION, [graph(op("mm"))], [GE, GE], TABLE)
    assert (facts.ge_graph, facts.certainty["ge_graph"]) == ("static", "derived")


def test_of_several_graphs_the_least_static_one_counts() -> None:
    facts = diagnose(QUESTION, [graph(op("mm")), evolve(chain(2, dynamic_at=0), id="graph_1")], (), TABLE)
    assert facts.ge_build == "dynamic"
    assert all(line.startswith("graph_1: ") for line in facts.evidence["ge_build"])


@given(st.data())
def test_static_parts_hold_every_static_operator_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    names = [f"n{n}" for n in range(count)]
    ops: list[Op] = []
    for n, name in enumerate(names):
        reads = data.draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else []
        ops.append(op(name, *reads, view=data.draw(st.booleans())))
    dynamic = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    parts = static_parts(ops, dynamic)
    assert sum(parts) == sum(not one.view for one in ops if one.name not in dynamic)
    assert static_parts(ops, set(names)) == []


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("Ascend910B3", "ascend910b"), ("ascend910_9391", "ascend910_93"), ("A2", "ascend910b"), (None, None),
        ("Ascend310P3", "ascend310p"), ("ascend910_9579", "ascend950"), ("Ascend910A", "ascend910"),
    ],
)  # fmt: skip
def test_a_device_is_of_one_family(soc: str | None, family: str | None) -> None:
    assert TABLE.product(soc) == family


def test_every_row_has_a_source_and_slots() -> None:
    assert TABLE.version == 1
    assert all(row.source and row.slots and "::" in name for name, row in TABLE.operators.items())
    assert all(product.source and product.names for product in TABLE.products.values())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"attention": Operator(ge="A", source="s")}, "'attention' @ sinking.operators is no operator's name"),
        ({"a.b": Operator(ge="A", source="s", products=("ascend910x",))}, "unknown product 'ascend910x'"),
    ],
)
def test_a_row_that_cannot_be_is_refused(rows: dict[str, Operator], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TABLE.with_rows(rows)


def test_a_row_of_ones_own_replaces_the_tables() -> None:
    mine = Operator(ge="IncreFlashAttention", slots=("actual_seq_lengths",), sinks=False, source="measured")
    table = TABLE.with_rows({"npu::npu_incre_flash_attention": mine})
    assert table.operators.get("npu::npu_incre_flash_attention") == mine
    assert TABLE.operators.get("npu::npu_incre_flash_attention") != mine
