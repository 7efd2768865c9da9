"""Whole diagnoses of graphs that were never compiled, as golden texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from npucompose.errors import ConfigError
from npucompose.npu.static_graph.diagnosis import TITLES, diagnose, not_compiled
from npucompose.npu.static_graph.facts import Op
from npucompose.npu.static_graph.operators import dynamic_ops, geared, shipped_table, uses
from npucompose.npu.static_graph.records import Blame, DiagnosisStep, Failure, SinkingFacts, SinkingVerdict
from npucompose.npu.static_graph.verdicts import static_parts, with_artefacts
from npucompose.schema.experiment import Operator
from tests.sinking.cases import CASES
from tests.sinking.made import GE, QUESTION, SMALL, TABLE, graph, op, own, told


@pytest.mark.parametrize("name", CASES)
def test_a_diagnosis_is_the_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    asked = CASES[name]
    golden(f"sinking/diagnoses/{name}.txt", told(diagnose(asked.question, asked.graphs, asked.ge, SMALL)))


@pytest.mark.parametrize(
    "error",
    ["Data-dependent branching at m.py:3", "Could not guard on DATA-DEPENDENT expression", "graph break at m.py:4"],
)
def test_a_model_that_was_not_compiled_has_one_guilty_step(error: str) -> None:
    facts = not_compiled(evolve(QUESTION, product="old"), error)
    guilty = "S1" if error.startswith("graph") else "S3"
    assert [one.id for one in facts.steps] == [f"S{n}" for n in range(9)]
    for one in facts.steps:
        if one.id == guilty:
            assert (one.status, one.evidence) == ("problem", (error,))
            assert (one.fix or "").startswith("torch.where" if guilty == "S3" else "move what breaks the graph out")
        else:
            assert (one.status, one.evidence, one.fix) == ("skipped", ("there is no graph to look at",), None)
    assert facts.product == "old"
    assert (facts.path, facts.fx_graph, facts.ge_graph, facts.ge_build) == (None, "unknown", "unknown", "unknown")
    assert facts.evidence["ge_build"] == facts.evidence["fx_graph"] == ("torch.compile made no graph",)
    assert facts.blame == (Blame(node="forward", operator="torch.compile", reason=error),)
    assert facts.failure is not None
    assert (facts.failure.what, facts.failure.graph) == (error, "")


@pytest.mark.parametrize("name", [name for name in CASES if "not_taken" in name])
def test_nothing_is_proven_beside_a_graph_that_was_not_taken(name: str) -> None:
    asked = CASES[name]
    facts = diagnose(asked.question, asked.graphs, asked.ge, SMALL)
    assert (facts.ge_graph, facts.ge_build, facts.path) == ("failed", "failed", None)
    assert "proven" not in facts.certainty.values()
    assert facts.failure is asked.graphs[-1].failure


def facts(
    fx: str = "unknown", ge: str = "unknown", build: str = "unknown", certainty: str = "proven", **more: Any
) -> SinkingFacts:
    def verdict(value: str) -> SinkingVerdict:
        sure: Any = "unknown" if value == "unknown" else certainty
        return SinkingVerdict(value=value, certainty=sure, evidence=(f"{sure} {value}",))  # type: ignore[arg-type]

    return SinkingFacts.from_verdicts(fx_graph=verdict(fx), ge_graph=verdict(ge), ge_build=verdict(build), **more)


def a_step(id: str, status: str, *evidence: str) -> DiagnosisStep:
    return DiagnosisStep(id=id, title=id, status=status, evidence=evidence)  # type: ignore[arg-type]


def a_blame(node: str) -> Blame:
    return Blame(node=node, operator="Add", reason="because")


DERIVED = facts(
    "dynamic", "static", "static", "derived", path=4, product="new", blame=(a_blame("derived"),),
    steps=(a_step("S0", "ok", "derived"), a_step("S6", "skipped"), a_step("S7", "ok", "derived")),
)  # fmt: skip


def test_what_a_file_proves_takes_the_place_of_what_was_derived() -> None:
    log = facts(
        build="dynamic", steps=(a_step("S0", "problem", "log"), a_step("S6", "skipped", "log")), blame=(a_blame("log"),)
    )
    dump = facts(ge="dynamic", build="mixed", steps=(a_step("S6", "ok", "dump"), a_step("S0", "skipped", "dump")))
    found = with_artefacts(DERIVED, [dump, log])
    assert (found.fx_graph, found.ge_graph, found.ge_build) == ("dynamic", "dynamic", "dynamic")
    assert found.certainty == {"fx_graph": "derived", "ge_graph": "proven", "ge_build": "proven"}
    assert found.evidence["ge_build"] == ("proven dynamic",)
    assert [one.node for one in found.blame] == ["log", "derived"]
    assert [(one.id, one.status, one.evidence) for one in found.steps] == [
        ("S0", "problem", ("log",)), ("S6", "ok", ("dump",)), ("S7", "ok", ("derived",)),
    ]  # fmt: skip
    assert (found.path, found.product) == (None, "new")


@pytest.mark.parametrize(
    ("before", "proven", "path"),
    [
        (4, facts("dynamic", "static", "static"), 4),
        (4, facts(build="mixed"), None),
        (5, facts("dynamic", "static", "mixed"), 5),
        (5, facts("dynamic", "static", "static"), None),
        (None, facts("dynamic", "static", "static"), None),
        (1, facts("static", "static", "static"), 1),
        (2, facts("dynamic", "dynamic", "dynamic"), 2),
    ],
)
def test_a_path_stays_while_the_proof_fits_it(before: int | None, proven: SinkingFacts, path: int | None) -> None:
    assert with_artefacts(evolve(DERIVED, path=before), [proven]).path == path


def test_files_alone_say_what_they_prove_and_no_more() -> None:
    first = facts("static", steps=(a_step("S7", "skipped", "first"),), product="new", path=1)
    first = evolve(first, evidence={"ge_build": ("GE marked nodes",)})
    second = facts("dynamic", ge="static", steps=(a_step("S7", "skipped", "second"), a_step("S0", "ok")))
    found = with_artefacts(None, [first, second])
    assert (found.fx_graph, found.ge_graph, found.ge_build) == ("dynamic", "static", "unknown")
    assert [(one.id, one.evidence) for one in found.steps] == [("S0", ()), ("S7", ("first",))]
    assert (found.path, found.product) == (None, None)
    assert found.evidence["ge_build"] == ("GE marked nodes",)


def test_each_step_has_its_title_and_its_place() -> None:
    asked = CASES["sinks"]
    found = diagnose(asked.question, asked.graphs, asked.ge, SMALL).steps
    assert [(one.id, one.title) for one in found] == list(TITLES.items())
    assert list(TITLES) == [f"S{n}" for n in range(9)]


def test_static_operators_share_a_part_over_an_edge_and_never_across_a_dynamic_one() -> None:
    def parts(*ops: Op, dynamic: set[str]) -> list[int]:
        return static_parts(ops, dynamic)

    a, b, c = op("a"), op("b", "a"), op("c", "b")
    assert parts(a, b, c, dynamic=set()) == [3]
    assert parts(a, b, c, dynamic={"b"}) == [1, 1]
    assert parts(a, op("other"), b, dynamic=set()) == [2, 1]
    assert parts(a, op("view", "a", view=True), op("d", "view"), dynamic=set()) == [2]
    assert parts(a, op("x", "a"), op("y", "a"), op("z", "x", "y"), dynamic=set()) == [4]
    assert parts(a, op("x"), op("y", "a", "x"), op("z", "y", "not_an_operator"), dynamic=set()) == [4]
    assert parts(a, op("x", "a"), op("y", "a", "x"), op("z", "a", "y"), dynamic={"x"}) == [1, 2]
    assert parts(op("v", view=True), dynamic=set()) == []


def test_gears_make_constants_of_sizes_and_of_nothing_else() -> None:
    symbols = {"s0": "key.size()[0]", "s1": "other.size()[1]", "n": "lens[0]", "u0": None}
    asked = evolve(QUESTION, gears={"key.0": (16,)})
    assert geared(graph(symbols=symbols), asked) == {"s0", "s1"}
    assert geared(graph(symbols=symbols), evolve(asked, mode="reduce-overhead")) == frozenset()
    assert geared(graph(symbols=symbols), QUESTION) == frozenset()


def test_what_nobody_can_tell_is_kept_apart_from_what_is_dynamic() -> None:
    made = graph(own("untold", "a", lens=("n",)), own("cannot", "b", lens=("n",)), own("sinks", "c", lens=("n",)))
    dynamic, unsure = dynamic_ops(made, evolve(QUESTION, product="new"), SMALL)
    assert (list(dynamic), list(unsure)) == (["b"], ["a"])
    assert [use.static for use in uses(made, evolve(QUESTION, product="new"), SMALL)] == [None, False, True]


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("old", "old"),
        ("OLDER", "old"),
        ("new", "new"),
        ("New1", "new"),
        ("a9", "new"),
        ("newer", "newer"),
        (None, None),
    ],
)
def test_a_products_name_is_matched_without_case(soc: str | None, family: str | None) -> None:
    assert SMALL.product(soc) == family


def test_the_name_of_no_product_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"unknown product 'new12' @ target\.soc.*old, new, newer, next"):
        SMALL.product("new12")


@pytest.mark.parametrize(
    ("row", "family", "sinks"),
    [
        ("sinks", "new", True), ("sinks", "next", None), ("sinks", "old", False), ("sinks", None, None),
        ("cannot", "new", False), ("cannot", None, False), ("untold", "new", None), ("untold", "old", False),
        ("sinks_on_new", "new", True), ("sinks_on_new", "newer", False), ("sinks_on_new", None, None),
    ],
)  # fmt: skip
def test_a_tiling_sinks_where_the_row_and_the_product_say_so(row: str, family: str | None, sinks: bool | None) -> None:
    assert SMALL.sinks(SMALL.operators[f"my::{row}"], family) is sinks


def test_the_table_answers_by_either_name_and_takes_rows_of_ones_own() -> None:
    mine = Operator(ge="Mine", source="measured", products=("new", "next"))
    table = SMALL.with_rows({"aten.mine": mine, "my::sinks": evolve(mine, ge="Sinks", products=None)})
    assert table.operators.get("aten::mine") == table.of_ge("Mine") == mine
    assert table.operators.get("aten.mine") is table.of_ge("mine") is None
    assert list(table.operators) == [*SMALL.operators, "aten::mine"]
    assert table.operators["my::sinks"].source == "measured"
    assert SMALL.with_rows({}) is SMALL
    assert shipped_table() is shipped_table() is TABLE
    with pytest.raises(ConfigError) as caught:
        SMALL.with_rows({"a.b.c": mine, "": mine, "a.b": evolve(mine, products=("new", "never", "ever"))})
    assert len(caught.value.problems) == 4


def test_ge_graphs_stand_beside_the_graphs_that_were_taken() -> None:
    """The first graph was refused and became none: the only GE graph, whose input has no size, is the second one's."""
    refused = evolve(graph(op("mm"), id="graph_0"), failure=Failure(graph="graph_0", what="refused"))
    taken = graph(op("mm"), id="graph_1")
    facts = diagnose(QUESTION, [refused, taken], [evolve(GE, data={"x": (-1, 8)})], TABLE)
    assert "graph_1: Dynamic FX graph compiled to static Ascend GE graph" in told(facts)
    without = diagnose(QUESTION, [refused, taken], [], TABLE)
    assert "graph_1: Static FX graph compiled to static Ascend GE graph" in told(without)
