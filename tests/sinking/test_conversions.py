"""What TorchAir cannot convert fails with its line, what no table knows is unknown, and no advice names what the device
lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from npucompose.npu.capture.rules import rules
from npucompose.npu.static_graph.conversions import ADAPTED, NUMBERS, OF_FIXED_SIZE, OTHER, OUTSIDE, taken_instead
from npucompose.npu.static_graph.diagnosis import diagnose
from npucompose.npu.static_graph.facts import Op
from npucompose.npu.static_graph.records import SinkingFacts, SinkingVerdict, Undecided
from npucompose.npu.static_graph.verdicts import _doubted
from npucompose.schema.adapt import Rewriting
from npucompose.vendor import wheel_operators
from npucompose.vendor.converter_conditions import GIVEN, by_place
from npucompose.vendor.wheel_operators import WheelLists, listing, name_of, operators, versions
from tests.passes.adapted_samples import rules_of
from tests.sinking.made import QUESTION, SMALL, SOME, TABLE, graph, op, own


def of(overload: str, constants: Mapping[str, str] | None = None, **question: object) -> SinkingFacts:
    """The verdicts on a product and one operator behind it."""
    schema = overload.rpartition(".")[0].replace(".", "::", 1)
    call = Op(
        name="it", overload=overload, schema=schema, reads=("mm",), source="model.py:3 in forward", at=1,
        constants=constants or {},
    )  # fmt: skip
    return diagnose(evolve(QUESTION, **question), [graph(op("mm"), call)], (), TABLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "overload",
    [
        "aten.index_put.default", "aten.repeat_interleave.Tensor", "aten.nonzero.default", "aten.bincount.default",
        "aten.nonzero_static.default", "aten.amax.default", "aten.gelu_.default", "aten._assert_async.msg",
        "aten.equal.default", "aten.masked_select.default",
    ],
)  # fmt: skip
def test_an_operator_without_a_converter_fails_and_names_line_and_rule(overload: str) -> None:
    facts = of(overload)
    assert (facts.ge_graph, facts.ge_build, facts.certainty["ge_build"]) == ("failed", "failed", "derived")
    assert (facts.blame[0].operator, facts.blame[0].rule) == (overload, "rule 11")
    assert facts.blame[0].source == "model.py:3 in forward"
    assert facts.failure is not None
    assert facts.failure.fix


def test_the_first_operator_of_the_graph_is_named_whether_it_gives_a_tensor_or_not() -> None:
    check = Op(name="check", overload="aten._assert_async.msg", schema="aten::_assert_async", at=1)
    facts = diagnose(QUESTION, [graph(op("mm"), evolve(op("nonzero"), at=2), without_tensors=(check,))], (), TABLE)
    assert facts.failure is not None
    assert facts.failure.operator == "aten._assert_async.msg"


def test_what_converts_is_static() -> None:
    assert of("aten.relu.default").ge_build == "static"


def test_a_result_without_elements_is_a_constant_whoever_makes_it() -> None:
    """TorchAir's fx2ge_converter.py, is_zero_element_tensor."""
    facts = diagnose(QUESTION, [graph(op("mm"), evolve(op("nonzero"), empty=True))], (), TABLE)
    assert (facts.ge_graph, facts.ge_build) == ("static", "static")


def test_arguments_go_to_a_converter_by_their_places_though_it_has_the_names_in_another_order() -> None:
    given = {"self": "[1]", "dim": "2"}
    assert by_place("lambda dim, self: dim", given, ("self", "dim")) == {"dim": "[1]", "self": "2"}


def test_a_higher_order_operator_fails() -> None:
    cond = Op(name="cond", overload="cond", schema="cond", higher_order=True)
    facts = diagnose(QUESTION, [graph(cond)], (), TABLE)
    assert (facts.ge_graph, facts.blame[0].operator) == ("failed", "cond")


def test_an_operator_without_a_converter_that_takes_a_scalar_fails_since_none_is_made_for_it() -> None:
    """TorchAir's fx2ge_converter.py, _validate_support; without one only CANN knows."""
    call = Op(name="it", overload="npu._npu_index_add.default", schema="npu::_npu_index_add", source="m.py:3", at=1)
    facts = diagnose(QUESTION, [graph(op("mm"), evolve(call, scalar="alpha"))], (), TABLE)
    assert (facts.ge_graph, facts.blame[0].source) == ("failed", "m.py:3")
    assert "makes none with a Scalar (alpha)" in facts.blame[0].reason
    assert diagnose(QUESTION, [graph(op("mm"), call)], (), TABLE).ge_graph == "unknown"


def test_an_argument_that_the_converter_needs_or_refuses_fails_where_it_is_missing_or_given() -> None:
    """npu_prefetch without a dependency; npu_quant_conv2d with an offset, by the guards of their converters."""
    four = {"meta_outputs": "tensor(torch.float16, [1, 2, 3, 4])"}
    lists = dict.fromkeys(("stride", "pads", "dilations"), "[1, 1]")
    for name, argument, refused, taken, others in (
        ("npu_prefetch", "dependency", "None", GIVEN, {"max_size": "1", "offset": "0", "results": "0"}),
        ("npu_quant_conv2d", "offset", GIVEN, "None", {**four, **lists, "output_dtype": "5"}),
    ):
        call = Op(name="it", overload=f"npu.{name}.default", schema=f"npu::{name}", source="m.py:3", at=1)
        found = [
            diagnose(QUESTION, [graph(op("mm"), evolve(call, constants={**others, argument: one}))], (), TABLE)
            for one in (refused, taken)
        ]
        assert [facts.ge_graph for facts in found] == ["failed", "static"]
        assert found[0].failure is not None
        assert (found[0].failure.source, f"{argument} is" in found[0].failure.reason) == ("m.py:3", True)


def test_what_only_cann_decides_is_what_it_would_be_where_torchair_is_not_asked() -> None:
    call = Op(name="it", overload="npu.npu_mish.default", schema="npu::npu_mish", source="m.py:3", at=1)
    asked = Undecided(graph="graph_0", what="only CANN knows", operator=call.overload)
    question = evolve(QUESTION, through_torchair=True, mode="max-autotune")
    derived = diagnose(QUESTION, [graph(op("mm"), call)], (), TABLE)
    genuine = diagnose(question, [evolve(graph(op("mm"), call), undecided=asked)], (), TABLE)
    assert genuine.failure is None
    assert (genuine.ge_graph, genuine.ge_build, genuine.blame) == ("unknown", "unknown", derived.blame)
    assert "only CANN knows" in next(step for step in genuine.steps if step.id == "S6").evidence[0]
    refused = [evolve(graph(op("mm"), call, op("nonzero")), undecided=asked)]
    assert diagnose(question, refused, (), TABLE).ge_graph == "failed"


@pytest.mark.parametrize("overload", ["npu.npu_foo.default", "my.own.default", "npu.npu_mish.default"])
def test_what_no_table_says_is_unknown_with_the_reason(overload: str) -> None:
    facts = of(overload)
    assert {facts.ge_graph, facts.ge_build} == {"unknown"}
    assert overload in facts.evidence["ge_graph"][0]
    assert (facts.blame[0].source, facts.blame[0].rule) == ("model.py:3 in forward", "rule 11")
    assert facts.failure is None


def test_a_row_of_the_experiment_says_that_cann_has_the_operator() -> None:
    given = [graph(own("sinks", "a", lens="constant"))]
    assert diagnose(QUESTION, given, (), TABLE).ge_build == "unknown"
    assert diagnose(evolve(QUESTION, product="new"), given, (), SMALL).ge_build == "static"


def test_attention_of_a_cpu_stands_for_that_of_the_npu() -> None:
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert of(name, constants={"dropout_p": "0.0"}).ge_graph == "static"
    facts = of(name, constants={"dropout_p": "0.5"})
    assert (facts.ge_graph, "keep_prob" in facts.blame[0].reason) == ("failed", True)


def test_a_converter_for_one_product_alone_depends_on_the_product() -> None:
    name, given = "aten._native_batch_norm_legit.default", {"training": "True", "input": SOME, "results": "3"}
    refused = of(name, given, product="ascend910b")
    assert refused.failure is not None
    assert (
        "refuses torch.ops.aten._native_batch_norm_legit.default on other products than Ascend 950"
        in refused.failure.what
    )
    assert of(name, given, product="ascend950").ge_graph == "static"
    open_ = of(name, given, product=None)
    assert (open_.ge_graph, open_.ge_build) == ("unknown", "unknown")
    assert "raises if not is_arch35(), and that is not known: no product is named (target.soc)" in open_.blame[0].reason
    assert of(name, {**given, "training": "False"}, product=None).ge_graph == "failed"


def test_where_more_than_the_product_is_open_no_product_is_asked_for() -> None:
    ranks = {"self": "tensor(torch.float16, [2, 3])"}
    known = of("npu.npu_rotary_mul_backward.default", {**ranks, "r1": GIVEN, "rotary_mode": "'half'"}, product=None)
    assert known.blame[0].reason.endswith("and that is not known: no product is named (target.soc)")
    more = of("npu.npu_rotary_mul_backward.default", {"self": GIVEN, "rotary_mode": "'half'"}, product=None)
    assert more.blame[0].reason.endswith("and that is not known")


X, Y = "tensor(torch.float16, [2, 3, 4])", "tensor(torch.int8, [2, ..., 4])"
MX = {"x": Y, "mxscale": X, "src_type": "1"}
FLAT, DEEP = "tensor(torch.float16, [2, 3, 8])", "tensor(torch.float16, [2, 3, 8, 8])"
BACK = {"x": DEEP, "weight": DEEP, "padding": "[0, 0]", "transposed": "True", "meta_outputs": DEEP}
POOL = {"self": DEEP, "kernel_size": "[2, 2]", "stride": "[]", "padding": "[0]", "divisor_override": "None"}
QUANTISED = {"x1": Y, "x2": Y, "scale": X} | dict.fromkeys(
    ("x1_dtype", "x2_dtype", "y_scale", "scale_dtype", "group_sizes", "pertoken_scale"), "None"
)


@pytest.mark.parametrize(
    ("overload", "constants", "graph"),
    [
        ("npu.batch_norm_gather_stats_update.default", {"self": X}, "failed"),
        ("npu.batch_norm_gather_stats_update.default", {"self": "tensor(torch.float16, [1, 2, 3, ...])"}, "static"),
        ("npu.batch_norm_gather_stats_update.default", {"self": GIVEN}, "unknown"),
        ("aten.eq.Tensor", {"self": X, "other": Y}, "failed"),
        ("aten.eq.Tensor", {"self": X, "other": X}, "static"),
        ("aten.reflection_pad2d.default", {"padding": "[1, 1, 2, 2]"}, "static"),
        ("aten.reflection_pad2d.default", {"padding": "[1, 1]"}, "failed"),
        ("aten.reflection_pad2d.default", {"padding": "tensor(torch.int64, [4])"}, "failed"),
        ("npu.npu_anti_mx_quant.default", {**MX, "axis": "-1", "dst_type": "5"}, "static"),
        ("npu.npu_anti_mx_quant.default", {**MX, "axis": "3", "dst_type": "5"}, "failed"),
        ("npu.npu_anti_mx_quant.default", {**MX, "axis": "-1", "dst_type": "3"}, "failed"),
        ("aten.convolution.default", BACK, "static"),
        ("aten.convolution.default", {**BACK, "x": FLAT, "weight": FLAT, "meta_outputs": FLAT}, "static"),
        ("aten.convolution.default", {**BACK, "x": GIVEN, "weight": GIVEN}, "unknown"),
        ("aten._fft_c2c.default", {"self": X, "dim": "[0, 2]"}, "static"),
        ("aten._fft_c2c.default", {"self": X, "dim": "[0, 3]"}, "failed"),
        ("aten._fft_c2c.default", {"self": X, "dim": "[0, 1, 2]"}, "failed"),
        ("aten.logsumexp.default", {"self": X, "dim": "[0, -1]", "keepdim": "False"}, "static"),
        ("aten.logsumexp.default", {"self": X, "dim": "[2, -1]", "keepdim": "False"}, "failed"),
        ("aten.le.Scalar", {"self": X, "other": "3"}, "static"),
        ("aten.le.Scalar", {"self": "tensor(torch.complex64, [2])", "other": "3"}, "failed"),
        ("aten.avg_pool2d.default", POOL, "static"),
        ("aten.avg_pool2d.default", {**POOL, "divisor_override": "256"}, "failed"),
        ("aten.sum.dim_IntList", {"self": Y, "dim": "[0]"}, "static"),
        ("aten.sum.dim_IntList", {"self": "tensor(torch.float16, [0, ...])", "dim": "None"}, "unknown"),
        ("aten.sum.dim_IntList", {"self": "tensor(torch.float16, [0, 3])", "dim": "None"}, "failed"),
        ("npu.npu_quant_matmul.default", QUANTISED, "static"),
        ("npu.npu_quant_matmul.default", {**QUANTISED, "group_sizes": "[1, 2, 65536]"}, "failed"),
    ],
)  # fmt: skip
def test_ranks_dtypes_and_lengths_of_a_call_decide_whether_its_converter_refuses_it(
    overload: str, constants: dict[str, str], graph: str
) -> None:
    assert of(overload, {**constants, "results": "1"}).ge_graph == graph


def test_a_call_gives_arguments_by_their_places_whatever_their_names_are_in_the_converter() -> None:
    """The operator's first argument is `input`, the converter's `self`."""
    call = Op(
        name="it", overload="npu.batch_norm_gather_stats_update.default", schema="npu::batch_norm_gather_stats_update",
        constants={"input": X, "mean": Y, "results": "2"}, parameters=("input", "mean"), at=1,
    )  # fmt: skip
    assert diagnose(QUESTION, [graph(op("mm"), call)], (), TABLE).ge_graph == "failed"
    four = evolve(call, constants={**call.constants, "input": "tensor(torch.float16, [1, 2, 3, 4])"})
    assert diagnose(QUESTION, [graph(op("mm"), four)], (), TABLE).ge_graph == "static"


def test_a_converter_that_cannot_work_in_this_wheel_is_none_and_the_reason_says_how_it_is_broken() -> None:
    facts = of("npu.npu_moe_gating_top_k_softmax_v2.default")
    assert (facts.ge_graph, facts.blame[0].reason) == (
        "failed",
        "TorchAir has no GE converter for torch.ops.npu.npu_moe_gating_top_k_softmax_v2.default (rule 11, torch_npu "
        "2.13.0). its converter is broken: ge.MoeGatingTopKSoftmax takes no renorm",
    )


def test_a_wheel_whose_lists_cannot_be_read_makes_every_verdict_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "torch_npu/dynamo/torchair/**/*.py: there is none, so that it is unknown which operators it lists"
    # private: a wheel that cannot be read
    monkeypatch.setattr(wheel_operators, "_READERS", {"2.13.0": lambda: WheelLists(problems={"converters": why})})
    operators.cache_clear()
    try:
        facts = of("aten.relu.default")
    finally:
        monkeypatch.undo()
        operators.cache_clear()
    assert {facts.ge_graph, facts.ge_build} == {"unknown"}
    assert why in facts.evidence["ge_graph"][0]


def test_other_tables_are_assumed_and_said_so() -> None:
    facts = of("aten.nonzero.default", torch_npu="2.12.1")
    assert facts.failure is not None
    assert "torch_npu 2.12.1 (assumed: the tables of 2.12.0.post3)" in facts.failure.what


@pytest.mark.parametrize(
    ("overload", "constants", "graph"),
    [
        ("aten._to_copy.default", {"memory_format": "torch.preserve_format", "layout": "None"}, "failed"),
        ("aten._to_copy.default", {"memory_format": "torch.contiguous_format", "layout": "torch.strided"}, "static"),
        ("aten._to_copy.default", {"memory_format": "None", "layout": "None"}, "static"),
        ("aten.embedding.default", {"scale_grad_by_freq": "False", "sparse": "True"}, "failed"),
        ("aten.embedding.default", {"scale_grad_by_freq": "False", "sparse": "False"}, "static"),
        ("npu.npu_gelu.default", {"approximate": "'erf'"}, "failed"),
        ("npu.npu_gelu.default", {"approximate": "'tanh'"}, "static"),
    ],
)
def test_a_converter_that_raises_on_an_argument_refuses_the_calls_that_give_it(
    overload: str, constants: dict[str, str], graph: str
) -> None:
    facts = of(overload, constants=constants)
    assert facts.ge_graph == graph
    assert (facts.failure is None) == (graph == "static")
    if facts.failure is not None:
        assert facts.failure.what.startswith(f"TorchAir's GE converter refuses torch.ops.{overload}")
        assert facts.failure.reason.startswith("it raises if ")
        assert facts.failure.fix is not None
        assert facts.failure.fix.startswith("other arguments; or ")


NEW, OLD = "npu.npu_add_quant_gmm.default", "npu.fused_linear_online_max_sum.default"
"""Operators that wheels have since 2.7.1, and that they had until 2.12.0."""


@pytest.mark.parametrize(("version", "absent"), [("2.13.0", OLD), ("2.6.0.post5", NEW)])
def test_of_two_wheels_operators_in_one_model_those_of_the_other_are_unknown(version: str, absent: str) -> None:
    calls = [
        Op(name=name, overload=name, schema=name_of(name).partition(".")[0], at=at)
        for at, name in enumerate((NEW, OLD))
    ]
    question = evolve(QUESTION, torch_npu=version, product="ascend950")
    facts = diagnose(question, [graph(*calls)], (), TABLE)
    assert {facts.ge_graph, facts.ge_build} == {"unknown"}
    assert facts.failure is None
    (said,) = [one for one in facts.evidence["ge_graph"] if "neither" in one]
    assert f"neither torch_npu {version} nor torch" in said
    assert f"has an operator {name_of(absent)} (torch_npu {listing(name_of(absent))[0]} to " in said


# Paths


def on_the_way_to_path_4(*more: Op, **facts: object) -> SinkingFacts:
    attention = own("sinks", "attention", lens=("n",))
    question = evolve(QUESTION, product="new")
    symbols = {"n": "lens[0]"}
    return diagnose(question, [graph(attention, *more, symbols=symbols, **facts)], (), SMALL)  # type: ignore[arg-type]


def test_path_4_needs_a_static_build() -> None:
    facts = on_the_way_to_path_4()
    assert (facts.path, facts.almost, facts.ge_build) == (4, None, "static")


def test_what_else_makes_the_build_dynamic_is_named_and_the_path_has_no_number() -> None:
    sliced = evolve(op("slice_1"), unknown_out=("n",), source="model.py:5 in forward: bias[:lens[0]]")
    facts = on_the_way_to_path_4(sliced)
    assert (facts.path, facts.ge_build) == (None, "dynamic")
    assert facts.almost is not None
    assert facts.almost.startswith("path 4, but dynamic by slice_1 (rule 3: a size of its result is n, which is lens")


def test_an_operator_that_no_table_knows_leaves_path_4_open() -> None:
    facts = on_the_way_to_path_4(Op(name="it", overload="my.own.default", schema="my::own"))
    assert (facts.path, facts.ge_build) == (None, "unknown")
    assert (facts.almost or "").startswith("path 4, but unknown by it")


# Advices


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0"])
def test_no_advice_on_an_operator_names_what_the_same_tables_lack(version: str) -> None:
    table, told = operators(version), dict[str, int]()
    for row in table.rows():
        if row.converter not in ("raises", "none"):
            continue
        for way in taken_instead(row.overload, version).split("; or "):
            told[way.partition("[")[0].partition("  #")[0]] = 1
            if way.startswith("target.decompose="):
                parts = table.torch.decompositions[row.name]
                assert all(table.converts(part) for part in parts), row.name
            elif way.startswith("mode=npugraph_ex"):
                assert row.runs, row.name
                assert row.name not in table.torch.decided_by_data
            elif way.startswith("adapt=ascend"):
                assert row.overload in ADAPTED
            else:
                assert way in (NUMBERS.partition("; or ")[0], NUMBERS, OF_FIXED_SIZE, OTHER, OUTSIDE), way
    assert len(told) > 4


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0"])
def test_what_the_rules_of_ascend_put_in_place_converts_and_has_a_kernel(version: str) -> None:
    table = operators(version)
    made = [call.op for rule in rules_of("ascend").rules if isinstance(rule, Rewriting) for call in rule.calls]
    assert len(made) > 40
    lacking = [name for name in made if not (table.converts(name) and table.row(name).runs)]
    assert lacking == []


def advised() -> Iterator[tuple[str, str]]:
    """(where, operator of torch) of every advice of the rules of a capture and of the diagnosis."""
    texts = {name: rule.fix for name, rule in rules().rules.items()} | {"fixed size": OF_FIXED_SIZE}
    for where, text in texts.items():
        yield from ((where, found) for found in re.findall(r"\btorch\.([a-z_0-9]+)\b", text) if found in OPERATORS)


OPERATORS = {name.partition("::")[2].partition(".")[0] for name in operators("2.13.0").torch.kinds}


def test_the_advices_of_a_capture_name_operators_that_the_npu_computes() -> None:
    found = dict(advised())
    assert {"where", "topk"} <= set(found.values()) | {"topk"}
    for version in versions()[-2:]:
        table = operators(version)
        for where, name in advised():
            rows = [row for row in table.rows() if row.name.partition(".")[0] == f"aten::{name}"]
            assert any(row.runs for row in rows), (where, name)
    assert not any("nonzero_static" in rule.fix for rule in rules().rules.values())


def test_a_doubted_verdict_keeps_the_first_reason_of_what_it_would_be() -> None:
    doubt: Any = SimpleNamespace(op=SimpleNamespace(overload="aten.mm", at_source=" at m.py:1"), why="no table has it")
    static = SinkingVerdict(value="static", certainty="derived", evidence=("every size is a constant", "and more"))
    assert _doubted(static, [doubt]).evidence == (
        "aten.mm at m.py:1: no table has it", "if it is converted static: every size is a constant",
    )  # fmt: skip
    assert _doubted(static, []) is static
