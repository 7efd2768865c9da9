"""A plan that is written down and read again gives what the first one gave, for other inputs and in other memory."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import asdict, evolve

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.operands import layout_of
from npucompose_replay.packed_weights import packing
from npucompose_replay.plan import Buffer, Literally, Register, SameAsInput, SameAsOutput, ViewOfInput
from npucompose_replay.written_plan import Unwritten, WrittenPlan, _Reader, _Writer, read_plan, written
from replay_tests.test_generated_code import COPY
from tests.graph_helpers import same, traced

WEIGHT, TABLE = torch.randn(8, 8), torch.randn(8)


def block(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.softmax(x @ WEIGHT * 0.1, -1)
    return (h * x).relu(), h.sum(0), x


def writes_its_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    return x + 1, x[1:], x.to(torch.float64)


def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nn.functional.dropout(x, 0.5, True), torch.topk(x, 2)[0]


def made_again(kept: WrittenPlan, weights: Sequence[torch.Tensor], inputs: Sequence[Any], **how: Any) -> CapturedGraph:
    """As another process makes it: of text, and of copies of the constants."""
    plan = read_plan(
        json.loads(json.dumps(kept.facts)),
        weights=weights,
        constants=[constant.untyped_storage().clone() for constant in kept.constants],
        libraries=kept.libraries,
        inputs=inputs,
    )
    return CapturedGraph.from_plan(plan, inputs, **how)


@pytest.mark.parametrize("executor", ["native", "python"])
@pytest.mark.parametrize("function", [block, writes_its_input, draws])
def test_a_plan_read_again_gives_eagers_bits(function: Any, executor: Any):
    first = torch.randn(3, 8)
    recording = CapturedGraph.capture(traced(function, first), [first], executor=executor)
    kept = written(recording.plan, [WEIGHT, TABLE])
    given = torch.randn(3, 8)
    again = made_again(kept, [WEIGHT.clone(), TABLE.clone()], [given.clone()], executor=executor)
    for _ in range(2):
        got, expected = given.clone(), given.clone()
        torch.manual_seed(1)
        results = again.replay(got)
        torch.manual_seed(1)
        assert same(results, function(expected))
        assert torch.equal(got, expected)


def test_weights_are_named_and_other_constants_are_written():
    x = torch.randn(2, 8)
    recording = CapturedGraph.capture(traced(block, x), [x])
    (tenth,) = written(recording.plan, [WEIGHT]).constants
    assert same([tenth], [torch.tensor(0.1)])
    kept = written(recording.plan, [TABLE]).constants
    assert [same([one], [WEIGHT]) for one in kept if one.numel() > 1] == [True]
    other = torch.randn(8, 8)
    doubled = made_again(written(recording.plan, [WEIGHT]), [other], [x])
    assert same([doubled.replay(x)[1]], [torch.softmax(x @ other * 0.1, -1).sum(0)])


def test_a_weight_that_shares_its_storage_is_written_as_another_constant():
    """Elsewhere the two may lie apart, with the same values in the same places."""
    both = torch.randn(2, 8)
    first, second = both[0], both[1]

    def adds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + first + second,)

    x = torch.randn(3, 8)
    kept = written(CapturedGraph.capture(traced(adds, x), [x]).plan, [first, second])
    assert {constant.untyped_storage().nbytes() for constant in kept.constants} == {both.nbytes}
    apart = [torch.zeros(2, 8)[0], torch.zeros(2, 8)[1]]
    assert same(made_again(kept, apart, [x]).replay(x), adds(x))


def test_a_kernel_without_a_library_is_not_written():
    def copies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.empty_like(x)
        torch.ops.air.generated([x], [y], "wrn", [x.nbytes], COPY.address, 0)
        return (y,)

    x = torch.randn(4)
    recording = CapturedGraph.capture(traced(copies, x), [x])
    with pytest.raises(Unwritten, match="copy, which is in no library"):
        written(recording.plan, [])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_what_nobody_can_look_into_and_what_has_an_address_is_not_written():
    x = torch.randn(3, 8)
    recording = CapturedGraph.capture(traced(block, x), [x])
    step = recording.plan.steps[0]
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.ones(8, 8), 2)
    opaque = evolve(recording.plan, steps=(evolve(step, args=(*step.args[:-1], packed)), *recording.plan.steps[1:]))
    with pytest.raises(Unwritten, match=re.escape("a packed weight of aten.mm.out")):
        written(opaque, [])
    with pytest.raises(Unwritten, match="at one address"):
        written(evolve(recording.plan, pinned=frozenset({0})), [])
    waits = evolve(recording.plan, steps=(evolve(step, reads=step.operands[:1]), *recording.plan.steps[1:]))
    with pytest.raises(Unwritten, match="collective"):
        written(waits, [])


def by_mkl(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.ops.mkl._mkl_linear(x, packed, WEIGHT, TABLE, 3),)


def by_onednn(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.ops.mkldnn._linear_pointwise(x, packed, TABLE, "relu", [], ""),)


def recorded_with(product: Any, packed: torch.Tensor, x: torch.Tensor) -> CapturedGraph:
    """As generated code calls it, whose constants the weights are."""
    constants = {"packed": packed, "weight": WEIGHT, "table": TABLE}
    code: Any = SimpleNamespace(constants=constants, run=lambda inputs, observer: product(inputs[0], packed))
    return CapturedGraph.capture_code(code, [x])[0]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("product", "library"), [(by_mkl, "mkl"), (by_onednn, "onednn")])
def test_a_packed_weight_is_packed_again_of_the_weight_that_it_is(product: Any, library: str):
    if library == "mkl" and not torch.backends.mkl.is_available():
        pytest.skip("this torch has no MKL")
    x = torch.randn(3, 8)
    recording = recorded_with(product, packing[library](WEIGHT, 3), x)
    kept = written(recording.plan, [WEIGHT, TABLE])
    assert not kept.constants
    given = torch.randn(3, 8)
    assert same(made_again(kept, [WEIGHT.clone(), TABLE.clone()], [x]).replay(given), recording.replay(given))
    elsewhere = written(recording.plan, [TABLE])
    assert any(same([one], [WEIGHT]) for one in elsewhere.constants)
    assert same(made_again(elsewhere, [TABLE], [x]).replay(given), recording.replay(given))
    nothing_named = made_again(written(recording.plan, []), [], [x])
    assert same(nothing_named.replay(given), recording.replay(given))


SLIDES: list[Any] = [[0, 1], [1, 2], [1, 1], 2]
"""Padding, stride, dilation, groups."""


def convolved(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.ops.mkldnn._convolution_pointwise(x, packed, TABLE, *SLIDES, "relu", [], ""),)


ADDED: list[Any] = ["add", None, "relu", [], None]


def convolved_and_added(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (other,) = convolved(x, packed)
    return (torch.ops.mkldnn._convolution_pointwise.binary(x, other, packed, TABLE, *SLIDES, *ADDED),)


def convolved_and_added_in_place(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (other,) = convolved(x, packed)
    return (torch.ops.mkldnn._convolution_pointwise_.binary(other, x, packed, TABLE, *SLIDES, *ADDED),)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("product", [convolved_and_added, convolved_and_added_in_place])
def test_a_packed_filter_is_packed_again_where_its_product_is_added(product: Any):
    x, filters = torch.randn(2, 8, 1, 9), torch.randn(8, 4, 1, 3)
    recording = recorded_with(product, packing["onednn convolution"](filters, *SLIDES, list(x.shape)), x)
    kept = written(recording.plan, [TABLE])
    assert {one.shape for one in kept.constants if one.dim() > 1} == {filters.shape}
    given = torch.randn(2, 8, 1, 9)
    assert same(made_again(kept, [TABLE], [x]).replay(given), recording.replay(given))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_packed_filter_is_packed_again_for_the_same_inputs():
    x, filters = torch.randn(2, 8, 1, 9), torch.randn(8, 4, 1, 3)
    packed = packing["onednn convolution"](filters, *SLIDES, list(x.shape))
    recording = recorded_with(convolved, packed, x)
    kept = written(recording.plan, [TABLE])
    assert [one.shape for one in kept.constants if one.dim() > 1] == [filters.shape]
    given = torch.randn(2, 8, 1, 9)
    assert same(made_again(kept, [TABLE], [x]).replay(given), recording.replay(given))
    assert same(recording.replay(given), convolved(given, packed))
    (step,) = (step for step in recording.plan.steps if step.op._schema.name == "mkldnn::_convolution_pointwise")
    anew = evolve(step, args=(Register(0), *step.args[1:]))  # of whose sizes a plan says nothing
    with pytest.raises(Unwritten, match=re.escape("a packed weight of mkldnn._convolution_pointwise")):
        written(evolve(recording.plan, steps=(anew,)), [TABLE])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_transposed_filter_is_packed_again():
    """Its output padding comes before the stride, and its groups have a place of their own."""
    form: list[Any] = [[0, 1], [0, 1], [1, 2], [1, 1], 2]
    x, filters = torch.randn(2, 8, 1, 9), torch.randn(8, 4, 1, 3)
    packed = packing["onednn transposed convolution"](filters, *form, list(x.shape))

    def product(x: torch.Tensor, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.ops.mkldnn._convolution_transpose_pointwise(x, packed, TABLE, *form, "relu", [], ""),)

    recording = recorded_with(product, packed, x)
    kept = written(recording.plan, [TABLE])
    assert [one.shape for one in kept.constants if one.dim() > 1] == [filters.shape]
    given = torch.randn(2, 8, 1, 9)
    assert same(made_again(kept, [TABLE], [x]).replay(given), product(given, packed))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_a_packed_weight_that_is_not_the_plain_one_beside_it_is_not_written():
    recording = recorded_with(by_mkl, packing["mkl"](WEIGHT + 1, 3), torch.randn(3, 8))
    with pytest.raises(Unwritten, match=re.escape("a packed weight of mkl._mkl_linear")):
        written(recording.plan, [WEIGHT, TABLE])


def test_values_of_every_kind_are_read_as_they_were_written():
    x = torch.randn(3, 8)
    plan = CapturedGraph.capture(traced(block, x), [x]).plan
    writer, slots = _Writer(plan, []), [output.slot for output in plan.outputs if isinstance(output, Buffer)]
    writer._roots = {id(root): number for number, root in enumerate(plan.roots)}
    values: list[Any] = [
        None, True, 3, "text", 0.1, float("inf"), [1, (2.5, None)], (), torch.float64, torch.strided,
        torch.channels_last, torch.device("cpu"), Register(4), slots[0],
    ]  # fmt: skip
    reader = _Reader({}, [], [], [], [], slots=slots[:1])
    again = [reader._value(json.loads(json.dumps(writer._value(value)))) for value in values]
    assert again == values
    assert [type(one) for one in again] == [type(one) for one in values]
    with pytest.raises(Unwritten, match=r"^a complex$"):
        writer._value(1j)


@pytest.mark.parametrize(
    "output",
    [
        SameAsInput(index=2),
        ViewOfInput(index=1, layout=layout_of(torch.ones(4, 4)[1:, ::2])),
        SameAsOutput(index=3),
        Literally(value=(1.5, None)),
    ],
    ids=lambda output: type(output).__name__,
)
def test_outputs_that_are_no_buffers_are_read_as_they_were_written(output: Any):
    x = torch.randn(3, 8)
    writer = _Writer(CapturedGraph.capture(traced(block, x), [x]).plan, [])
    again = _Reader({}, [], [], [], [])._output(*json.loads(json.dumps(writer._output(output))))
    assert type(again) is type(output)
    assert asdict(again) == asdict(output)


def test_a_constant_that_a_step_writes_is_not_written():
    table = torch.zeros(8)

    def counts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table.add_(x[0])
        return (table + x,)

    x = torch.randn(3, 8)
    recording = CapturedGraph.capture(traced(counts, x), [x])
    with pytest.raises(Unwritten, match="a step writes"):
        written(recording.plan, [table])
