"""What is asked in test_diagnoses: each case has one thing that decides."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from npucompose.npu.static_graph.facts import Change, GeFacts, OpArgument
from npucompose.npu.static_graph.records import Failure
from tests.sinking.made import Asked, about, graph, number, op, own, tensor

SINK = "ge.tiling_schedule_optimize"
S0 = {"s0": "key.size()[0]", "n": "lens[0]"}
KEY = (tensor("arg0_1", "key", "s0", 8), number("arg1_1", "lens[0]", "n"))
READS_N = own("sinks", "attention", lens=("n",))
UNKNOWN_SIZE = evolve(op("mm"), unknown_in=("s0",), unknown_out=("s0",), source="model.py:1 in forward")
FAILURE = Failure(
    graph="graph_0", what="TorchAir has no GE converter for aten.item", operator="aten.item.default", node="item",
    source="model.py:5 in forward: x.item()", reason="not implemented!", fix="numbers",
)  # fmt: skip
HANDED_OVER = GeFacts(
    name="ge_0",
    data={"arg0_1": (-1, 8), "arg1_1": (1,), "arg2_1": (-2,)},
    inputs={
        "attention": ("Sinks", {"lens": "Data", "lens_kv": "Const", "x": "Data"}),
        "add": ("Add", {"x1": "Data", "x2": "Const"}),
    },
    options={SINK: "1"},
)


def change(**more: Any) -> Change:
    return Change(
        **{"argument": "x", "what": "shape", "before": "[4]", "after": "[6]", "call": 2, "marked": False, **more}
    )


CASES: dict[str, Asked] = {
    # What the operators read.
    "all_constant": about(graph(own("sinks", "a", lens="constant", kv="nothing"), op("add", "a"))),
    "nothing_is_read": about(graph(own("sinks", "a", lens="nothing"), own("cannot", "b")), sink=False),
    "sinks": about(
        graph(
            own("sinks", "a", lens=("n",), kv="tensor"),
            own("sinks", "b", "a", lens="constant"),
            symbols={"n": "lens[0]"},
            inputs=KEY[1:],
        )
    ),
    "sink_is_off": about(graph(READS_N, symbols={"n": "lens[0]"}, inputs=KEY[1:]), sink=False),
    "packed": about(
        graph(
            evolve(READS_N, arguments={"lens": OpArgument(kind="symbols", symbols=("n",), packed=True)}),
            own("sinks", "b", "attention", lens=("n",)),
            symbols={"n": "lens[0]"},
            inputs=KEY[1:],
        )
    ),
    "lengths_are_a_tensor": about(graph(own("sinks", "a", lens="tensor")), sink=False),
    "sink_is_off_in_another_mode": about(graph(READS_N), sink=False, mode="reduce-overhead"),
    "operator_cannot": about(
        graph(READS_N, own("cannot", "b", lens=("n", "m"), more=("n",)), symbols={"n": "lens[0]", "m": None})
    ),
    "product_cannot": about(graph(READS_N), product="old"),
    "product_of_the_row_only": about(graph(own("sinks_on_new", "a", lens=("n",))), product="newer"),
    "product_is_not_named": about(graph(READS_N), product=None),
    "product_of_which_nobody_knows": about(graph(READS_N), product="next"),
    "row_of_which_nobody_knows": about(graph(own("untold", "a", lens=("n",)), READS_N)),
    "no_row": about(graph(own("stranger", "a", x="tensor", lens=("n", "m"), more=("m",), fixed="constant"))),
    "no_row_and_an_unknown_size": about(graph(evolve(own("stranger", "a", lens=("n",)), unknown_out=("n",)))),
    "torchs_own_may_take_numbers": about(graph(evolve(own("stranger", "a", lens=("n",)), schema="aten::mul"))),
    "unknown_before_impossible": about(
        graph(own("untold", "a", lens=("n",)), own("cannot", "b", lens=("n",)), own("sinks", "c", lens="constant"))
    ),
    "one_sinks_and_one_cannot": about(graph(READS_N, own("cannot", "b", "attention", lens="tensor"))),
    # Sizes.
    "size_of_an_input": about(graph(UNKNOWN_SIZE, op("view", "mm", view=True), inputs=KEY, symbols=S0)),
    "size_of_no_argument": about(
        graph(op("mm", unknown_in=("s0",)), inputs=(tensor("buffer", None, 2, "s0"),), symbols={"s0": "b"})
    ),
    "two_sizes_that_reading_graphs_have": about(
        graph(
            READS_N,
            UNKNOWN_SIZE,
            inputs=(*KEY, tensor("arg2_1", "caches[1].k", 2, "s0", "s1")),
            symbols={**S0, "s1": None},
        ),
        mark_static=("x",),
        marked=("x",),
    ),
    "marked_and_unknown_all_the_same": about(
        graph(UNKNOWN_SIZE, inputs=(*KEY, tensor("arg2_1", "key", "s0")), symbols=S0),
        mark_static=("k*",),
        marked=("key",),
    ),
    "one_marked_and_one_not": about(
        graph(UNKNOWN_SIZE, inputs=(*KEY, tensor("arg2_1", "x", "s0")), symbols=S0),
        mark_static=("key",),
        marked=("key",),
    ),
    "gears": about(graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0), gears={"key.0": (16, 32), "x.1": (2,)}),
    "gears_act_in_ge_only": about(
        graph(UNKNOWN_SIZE, inputs=KEY, symbols=S0), gears={"key.0": (16, 32)}, mode="reduce-overhead"
    ),
    "gears_and_another_unknown": about(
        graph(
            UNKNOWN_SIZE,
            evolve(UNKNOWN_SIZE, name="other", unknown_out=("s0", "z")),
            op("plain"),
            inputs=(*KEY, tensor("arg2_1", "x", "z")),
            symbols={**S0, "z": None},
        ),
        gears={"key.0": (16, 32)},
    ),
    "gears_and_another_size": about(
        graph(
            evolve(UNKNOWN_SIZE, unknown_in=("s0", "z"), unknown_out=("s0", "z")),
            op("mm_1", unknown_in=("s0",), unknown_out=("s0",)),
            inputs=(*KEY, tensor("arg2_1", "x", "z")),
            symbols={**S0, "z": "x"},
        ),
        gears={"key.0": (16, 32)},
    ),
    "data_decide": about(
        graph(
            op("where"),
            op("masked", "where", unknown_out=("u0", "u1"), unbacked=("u0", "u1")),
            op("mm", "masked", unknown_in=("u0",)),
            symbols={"u0": None, "u1": None},
        )
    ),
    "nonzero": about(
        graph(
            op("nonzero", unknown_out=("u0",), unbacked=("u0",), source="model.py:7 in forward"),
            op("nonzero", "nonzero", unknown_out=("u1",), unbacked=("u1",)),
            symbols={"u0": None, "u1": None},
        )
    ),
    "number_makes_a_size": about(
        graph(
            op("view", unknown_out=("n",), source="model.py:3 in forward"),
            op("relu", "view", unknown_in=("n",), unknown_out=("n",)),
            op("new", unknown_out=("m",)),
            inputs=KEY[1:],
            symbols={"n": "lens[0]"},
        )
    ),
    "number_that_is_a_size_too": about(graph(op("cat", unknown_out=("s0",)), inputs=KEY, symbols=S0)),
    "origin_is_not_told": about(graph(op("mm", unknown_in=("s0",)), symbols={})),
    # What GE makes of it.
    "host": about(graph(own("host", "a", lens="constant"), op("mm", "a"))),
    "subgraph": about(
        graph(
            op(
                "cond",
                subgraphs=(
                    graph(op("mm")),
                    graph(own("cannot", "b", lens=("n",)), own("host", "c"), id="graph_0.body"),
                ),
            )
        )
    ),
    "subgraph_that_nobody_can_tell": about(graph(op("cond", subgraphs=(graph(own("untold", "b", lens=("n",))),)))),
    "no_static_part": about(
        graph(op("a", unknown_out=("u0",), unbacked=("u0",)), op("b", "a", view=True), symbols={"u0": None})
    ),
    "static_parts": about(
        graph(
            *(op(f"a{n}", *[f"a{n - 1}"][:n]) for n in range(4)),
            op("cut", "a3", unknown_out=("u0",), unbacked=("u0",)),
            *(op(f"b{n}", "cut", *[f"b{n - 1}"][:n]) for n in range(3)),
            op("end", "b2", "a0"),
            symbols={"u0": None},
        )
    ),
    "static_parts_below_the_limit": about(
        graph(op("a"), op("cut", "a", unknown_out=("u0",), unbacked=("u0",)), op("b", "cut"), symbols={"u0": None}),
        ops_lower_limit=2,
    ),
    "limit_of_none": about(
        graph(op("a"), op("cut", "a", unknown_out=("u0",), unbacked=("u0",)), symbols={"u0": None}), ops_lower_limit=-1
    ),
    "limit_of_zero": about(
        graph(op("a"), op("cut", "a", unknown_out=("u0",), unbacked=("u0",)), symbols={"u0": None}), ops_lower_limit=0
    ),
    "an_unsure_operator_cuts_too": about(
        graph(
            *(op(f"a{n}", *[f"a{n - 1}"][:n]) for n in range(4)),
            own("untold", "b", "a3", lens=("n",)),
            own("cannot", "c", "b", lens=("n",)),
            op("d", "c"),
        )
    ),
    "handed_over": about(
        graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0), ge=(HANDED_OVER,), through_torchair=True
    ),
    "handed_over_static": about(
        graph(READS_N, symbols={"n": "lens[0]"}, inputs=KEY[1:], id="g7"),
        ge=(evolve(HANDED_OVER, data={"a": (2, 0), "b": ()}, options={}),),
    ),
    "handed_over_static_with_sink_off": about(
        graph(READS_N), ge=(evolve(HANDED_OVER, data={"a": (2, 0)}, options={SINK: "0"}),), sink=False
    ),
    "handed_over_with_gears": about(
        graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0), ge=(HANDED_OVER,), gears={"key.0": (16, 32)}
    ),
    "scheduled_by_the_host": about(
        graph(READS_N), ge=(evolve(HANDED_OVER, options={"ge.exec.hostSchedulingMaxThreshold": "3"}),)
    ),
    "not_so_few_nodes": about(
        graph(READS_N), ge=(evolve(HANDED_OVER, options={"ge.exec.hostSchedulingMaxThreshold": "2"}),)
    ),
    "one_ge_graph_too_few": about(graph(READS_N), graph(op("mm"), id="graph_1"), ge=(HANDED_OVER,)),
    "handed_over_with_a_forced_node": about(
        graph(READS_N), ge=(evolve(HANDED_OVER, data={"a": (2, 0)}, forced=("Pack", "Pack_1")),), through_torchair=True
    ),
    "handed_over_with_gears_and_a_forced_node": about(
        graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0),
        ge=(evolve(HANDED_OVER, forced=("Gather",)),),
        gears={"key.0": (16, 32)},
    ),
    # What was not taken.
    "foreseen_not_to_be_taken": about(
        graph(
            READS_N,
            without_tensors=(op("sym_size"), op("_local_scalar_dense", source="model.py:4 in forward: x.tolist()")),
        )
    ),
    "nothing_is_foreseen_where_it_was_tried": about(
        graph(READS_N, without_tensors=(op("_local_scalar_dense"),)), through_torchair=True
    ),
    "not_taken": about(graph(READS_N, inputs=KEY, symbols={**S0, "u0": None}, failure=FAILURE), through_torchair=True),
    "not_taken_and_nobody_knows_where": about(
        graph(op("mm"), failure=Failure(graph="graph_0", what="It was refused", reason="so")), through_torchair=True
    ),
    "the_second_is_not_taken": about(
        graph(READS_N, symbols={"n": "lens[0]"}, inputs=KEY[1:]),
        graph(READS_N, id="graph_1", failure=evolve(FAILURE, graph="graph_1")),
        ge=(evolve(HANDED_OVER, data={"a": (2, 0)}),),
        through_torchair=True,
    ),
    "the_first_is_dynamic_and_the_second_is_not_taken": about(
        graph(READS_N, symbols={"n": "lens[0]"}, inputs=KEY[1:]),
        graph(READS_N, id="graph_1", failure=evolve(FAILURE, graph="graph_1")),
        ge=(evolve(HANDED_OVER, data={"a": (-1, 0)}, forced=("Pack",)),),
        through_torchair=True,
    ),
    # Several graphs.
    "three_graphs": about(
        graph(READS_N),
        graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0, id="graph_1"),
        graph(own("untold", "u", lens=("n",)), id="graph_2"),
    ),
    "symbols_from_the_second_graph_on": about(
        graph(own("sinks", "a", lens="constant")), graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0, id="graph_1")
    ),
    "symbols_in_the_first_graph_only": about(
        graph(READS_N, UNKNOWN_SIZE, inputs=KEY, symbols=S0), graph(own("sinks", "a", lens="constant"), id="graph_1")
    ),
    "another_graph_reads_nothing": about(
        graph(UNKNOWN_SIZE, inputs=KEY, symbols=S0), graph(READS_N, id="graph_1", symbols={"n": "lens[0]"})
    ),
    "one_unknown_and_one_static": about(graph(op("mm")), graph(own("untold", "u", lens=("n",)), id="graph_1")),
    "one_unknown_and_one_dynamic": about(
        graph(own("untold", "u", lens=("n",))),
        graph(own("cannot", "c", lens=("n",)), id="graph_1"),
        graph(op("mm"), id="graph_2"),
    ),
    # Long lists.
    "six_sentences": about(
        graph(
            op("mm"),
            inputs=tuple(tensor(f"arg{n}_1", f"x{n}", f"s{n}") for n in range(6)),
            symbols={f"s{n}": f"x{n}.size()[0]" for n in range(6)},
        )
    ),
    "seven_sentences": about(
        graph(
            op("mm"),
            inputs=tuple(tensor(f"arg{n}_1", f"x{n}", f"s{n}") for n in range(7)),
            symbols={f"s{n}": None for n in range(7)},
        )
    ),
    # The question itself.
    "shapes_by_themselves": about(
        graph(op("mm")), dynamic=None, fullgraph=False, sink=False, product=None, mode="max-autotune-npugraph"
    ),
    "shapes_static": about(graph(op("mm")), dynamic=False),
    "breaks": about(graph(op("mm")), graph(op("add"), id="graph_1"), fullgraph=False, breaks=("print()", "a call")),
    # Calls.
    **{
        f"call_{name}": about(graph(op("mm")), changes=changes, dynamic=dynamic, marked=("x",))
        for name, changes, dynamic in (
            ("of_another_length", (change(argument="lens", what="length", before="2", after="3"),), True),
            ("marked", (change(marked=True),), True),
            ("constant", (change(argument="y"), change(what="value")), False),
            ("found_out", (change(argument="y"), change(what="value")), None),
            ("marked_and_longer", (change(marked=True), change(argument="l", what="length")), True),
            ("not_marked", (change(),), True),
            ("symbol", (change(argument="y"), change(what="value", before="4", after="6")), True),
            ("symbol_and_length", (change(what="value"), change(argument="l", what="length")), True),
        )
    },
}
