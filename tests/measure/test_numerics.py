from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from attrs import asdict
from hypothesis import given
from hypothesis import strategies as st

from npucompose.bits import same_bytes
from npucompose.measure.numerics import combined, compare
from npucompose.results.measured import EXACT, TOLERANCES, Numerics, NumericTolerance, Share

NAN = float("nan")


def test_the_same_bits_are_the_same_whatever_they_mean() -> None:
    value = torch.tensor([NAN, float("inf"), -0.0, 1.0])
    found = compare(value, value.clone())
    assert (found.bitwise, found.passed, found.max_abs_err) == (True, True, 0.0)


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int8", "uint8", "bool"]
)
def test_every_dtype_equals_itself_and_not_another_value(name: str) -> None:
    dtype: torch.dtype = getattr(torch, name)
    zero, one = torch.zeros(2, 3).to(dtype), torch.ones(2, 3).to(dtype)
    assert compare(zero, zero.clone()).bitwise
    other = compare(zero, one)
    assert (other.bitwise, other.passed, other.max_abs_err) == (False, False, 1.0)


def test_a_rounding_error_passes_but_not_bit_for_bit() -> None:
    found = compare(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]))
    assert (found.bitwise, found.passed, found.max_abs_err) == (False, True, 2**-23)
    assert found.tolerance == {"float32": {"rtol": 1e-4, "atol": 1e-5}}


def test_exact_lets_no_rounding_error_pass() -> None:
    found = compare(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), exact=True)
    assert not found.passed
    assert found.problems == ("result: tensor float32[1] differs by up to 1.19e-07, tolerance 0",)


def test_the_sign_of_zero_is_a_difference_of_bits_and_of_nothing_else() -> None:
    found = compare(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.bitwise, found.passed, found.max_abs_err) == (False, True, 0.0)
    assert "sign of zero" in compare(torch.tensor([0.0]), torch.tensor([-0.0]), exact=True).problems[0]


@pytest.mark.parametrize("got", [NAN, float("inf"), -float("inf")])
def test_nan_or_infinity_against_a_number_fails_without_a_figure(got: float) -> None:
    found = compare(torch.tensor([1.0, 2.0]), torch.tensor([1.0, got]))
    assert (found.passed, found.max_abs_err) == (False, None)
    assert "NaN or infinite" in found.problems[0]


def test_nan_in_the_same_place_does_not_hide_a_difference_elsewhere() -> None:
    assert not compare(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 2.0])).passed
    assert compare(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0 + 2**-23])).passed


def test_integers_have_no_tolerance_however_large() -> None:
    found = compare(torch.tensor([2**60]), torch.tensor([2**60 + 1]))
    assert (found.bitwise, found.passed, found.max_abs_err) == (False, False, 1.0)


@pytest.mark.parametrize(
    ("reference", "got", "words"),
    [
        (torch.zeros(2), torch.zeros(3), "tensor float32[2] against a tensor float32[3]"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "float32[2] against a tensor float64[2]"),
        (torch.zeros(()), 0.0, "tensor float32[] against a float"),
        (3, 4, "3 against 4"),
        (3, 3.0, "a int against a float"),
        (None, 1, "a NoneType against a int"),
        ((1,), [1], "another structure"),
        ({"a": 1}, {"b": 1}, "another structure"),
        (torch.zeros(2).to_sparse(), torch.zeros(2).to_sparse(), "return a dense tensor"),
    ],
)
def test_what_cannot_be_compared_fails_with_words(reference: Any, got: Any, words: str) -> None:
    found = compare(reference, got)
    assert not found.passed
    assert not found.bitwise
    assert words in found.problems[0]


def test_a_problem_names_its_place_in_the_tree() -> None:
    found = compare({"a": (torch.zeros(1), 1)}, {"a": (torch.zeros(1), 2)})
    assert found.problems == ("result['a'][1]: 1 against 2",)
    assert found.compared == 2


def test_other_strides_are_told_and_fail_nothing() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    found = compare((value,), (value.t().contiguous().t(),))
    assert (found.bitwise, found.stride_mismatches) == (True, ("[0]",))


def test_the_stride_of_a_dimension_of_one_means_nothing() -> None:
    value = torch.zeros(1, 3)
    assert compare(value, torch.zeros(3, 1).t()).stride_mismatches == ()


def test_only_the_first_problems_are_kept() -> None:
    found = compare(list(range(30)), [-1] * 30)
    assert len(found.problems) == 11
    assert found.problems[-1] == "and 20 more"


def test_one_bad_step_fails_them_all() -> None:
    good, bad = compare(torch.zeros(1), torch.zeros(1)), compare(torch.zeros(1), torch.ones(1))
    both = combined({"step 0": good, "step 1": bad})
    assert (both.passed, both.bitwise, both.max_abs_err, both.compared) == (False, False, 1.0, 2)
    assert both.problems[0].startswith("step 1, result: ")
    assert combined({"step 0": good, "step 1": good}).bitwise


def test_a_conjugated_view_equals_its_values() -> None:
    value = torch.tensor([1 + 2j])
    assert compare(value.conj(), torch.tensor([1 - 2j])).bitwise


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bitwise_agrees_with_the_bytes(a: list[float], b: list[float]) -> None:
    x, y = torch.tensor(a), torch.tensor(b)
    same = x.numpy().tobytes() == y.numpy().tobytes()
    found = compare(x, y)
    assert found.bitwise == same
    assert found.passed or not same


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(0, 1e-3))
def test_the_gate_agrees_with_torch(values: list[float], error: float) -> None:
    x = torch.tensor(values)
    y = x + error
    allowed = TOLERANCES["float32"]
    assert compare(x, y).passed == torch.allclose(y.double(), x.double(), rtol=allowed.rtol, atol=allowed.atol)


TWICE = NumericTolerance(rtol=1.0, atol=0.0)
"""Allows twice the reference; with the two exchanged, half of it."""


@pytest.mark.parametrize(("a", "b"), [(1.0, 3.0), (1.0 + 0j, 3.0 + 0j), (torch.tensor([1.0]), torch.tensor([3.0]))])
def test_what_is_allowed_is_counted_from_the_reference(a: Any, b: Any) -> None:
    assert not compare(a, b, declared=TWICE).passed
    found = compare(b, a, declared=TWICE)
    assert (found.passed, found.bitwise, found.max_abs_err, found.problems) == (True, False, 2.0, ())
    assert not compare(b, a, declared=TWICE, exact=True).passed
    assert not compare(b, a).passed


def test_numbers_of_python_are_compared_as_the_widest_of_their_kind() -> None:
    assert compare(1.0, 1.0).tolerance == {"float64": asdict(TOLERANCES["float64"])}
    assert compare(1 + 0j, 1 + 0j).tolerance == {"complex128": asdict(TOLERANCES["complex128"])}
    assert compare(2 + 1j, 2 - 1j).max_abs_err == 2.0
    assert compare(3, 3).tolerance == {}


@pytest.mark.parametrize(
    ("reference", "got", "error", "problem"),
    [
        (3, 5, 2.0, "result: 3 against 5"),
        ("a", "b", None, "result: 'a' against 'b'"),
        (torch.ones(2), torch.zeros(2), 1.0,
         "result: tensor float32[2] differs by up to 1, tolerance 1e-05 + 0.0001 * |reference|"),
        (torch.ones(2), torch.ones(2).to_sparse(), None,
         "result: a tensor float32[2] against a tensor float32[2], another layout"),
        (torch.ones(2), torch.ones(3), None, "result: a tensor float32[2] against a tensor float32[3]"),
        (torch.ones(2), 1.0, None, "result: a tensor float32[2] against a float"),
        (1.0, torch.ones(2), None, "result: a float against a tensor float32[2]"),
        (torch.tensor([NAN]), torch.tensor([1.0]), None,
         "result: tensor float32[1] is NaN or infinite where the other is not"),
        (torch.tensor([NAN, 1.0]), torch.tensor([2.0, 1.0]), None,
         "result: tensor float32[2] is NaN or infinite where the other is not"),
    ],
)  # fmt: skip
def test_a_difference_is_told_with_its_size_and_what_is_allowed(
    reference: Any, got: Any, error: float | None, problem: str
) -> None:
    found = compare(reference, got)
    assert (found.max_abs_err, found.problems) == (error, (problem,))
    assert (found.passed, found.bitwise, found.stride_mismatches) == (False, False, ())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_cannot_be_compared() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    found = compare(quantized, quantized)
    assert not found.passed
    assert found.problems[0].endswith(
        "tensor qint8[2] of layout torch.strided cannot be compared; return a dense tensor"
    )


def test_what_agrees_has_no_problem_and_names_its_reference() -> None:
    found = compare({"a": 1, "b": None}, {"a": 1, "b": None}, name="the model")
    assert found == Numerics(
        reference="the model", max_abs_err=0.0, bitwise=True, tolerance={}, passed=True, compared=2
    )
    assert compare(1, 1).reference == "eager"


def test_another_structure_has_no_figure_and_is_shown_as_far_as_it_is_short() -> None:
    class Spec:
        num_leaves = 7

        def __init__(self, letters: int) -> None:
            self.letters = letters

        def __str__(self) -> str:
            return "a  b\n" + "c" * (self.letters - 4)

    from npucompose.measure.numerics import _shown

    assert _shown(Spec(200)) == "a b " + "c" * 196
    assert _shown(Spec(201)) == "a b " + "c" * 196 + "… (7 leaves)"
    found = compare((1,), [1], name="eager")
    assert (found.passed, found.bitwise, found.max_abs_err, found.reference) == (False, False, None, "eager")


def test_one_place_with_a_difference_is_enough_and_the_largest_is_told() -> None:
    one = torch.ones(1)
    found = compare([one, one, one], [one, one + 1, one + 3])
    assert (found.passed, found.bitwise, found.max_abs_err) == (False, False, 3.0)
    assert len(found.problems) == 2
    assert compare([one, one], [torch.tensor([NAN]), one]).max_abs_err is None


@pytest.mark.parametrize("count", [9, 10, 11])
def test_ten_problems_are_told_and_no_more_is_said_of_none(count: int) -> None:
    problems = compare(list(range(count)), [-1] * count).problems
    assert len(problems) == count
    assert ("and 1 more" in problems) == (count == 11)


def test_a_model_s_tensor_with_a_gradient_is_compared_without_a_word() -> None:
    weight = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare(weight, weight.detach() + 1).max_abs_err == 1.0
        assert compare(weight, weight.detach().clone()).bitwise


def test_nothing_in_a_tensor_has_no_strides_and_no_difference() -> None:
    found = compare(torch.zeros(0, 3), torch.zeros(3, 0).t())
    assert (found.bitwise, found.stride_mismatches) == (True, ())
    assert compare(torch.zeros(2, 3), torch.zeros(2, 3)).stride_mismatches == ()
    close = compare((torch.ones(2, 3),), (torch.ones(3, 2).t() + 1e-7,))
    assert (close.passed, close.stride_mismatches) == (True, ("[0]",))


def test_an_infinity_in_both_hides_no_other_place() -> None:
    inf = float("inf")
    far, near = torch.tensor([inf, 2.0]), torch.tensor([inf, 1.0 + 2**-23])
    assert compare(torch.tensor([inf, 1.0]), far).max_abs_err == 1.0
    assert compare(torch.tensor([inf, 1.0]), near).passed
    signs = compare(torch.tensor([inf, 0.0]), torch.tensor([inf, -0.0]), exact=True)
    assert "sign of zero" in signs.problems[0]


def test_only_bits_count_for_the_same_bytes() -> None:
    assert same_bytes(torch.tensor([NAN]), torch.tensor([NAN]))
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bytes(torch.tensor([True]), torch.tensor([True]))
    assert not same_bytes(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert not same_bytes(torch.tensor([1 + 2j]), torch.tensor([1 - 2j]))
    assert same_bytes(torch.arange(6.0).reshape(2, 3).t(), torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]))


def numerics(**parts: Any) -> Numerics:
    return Numerics(
        **{"reference": "eager", "max_abs_err": 0.0, "bitwise": True, "passed": True, "compared": 1, **parts}
    )


def test_a_verdict_of_several_holds_what_each_says() -> None:
    first = numerics(
        tolerance={"float32": {"rtol": 1.0}}, stride_mismatches=("x", "y"), max_abs_err=1.0, compared=2, bitwise=False,
        replay=Share(max_abs_err=2.0, bitwise=False, passed=True),
    )  # fmt: skip
    second = numerics(
        reference="told last", tolerance={"float16": {"rtol": 2.0}}, stride_mismatches=("y", "z"), passed=False,
        bitwise=False, cause="passes", problems=("one", "two"), max_abs_err=0.5,
        replay=Share(max_abs_err=1.0, bitwise=True, passed=False),
        tracing=Share(max_abs_err=None, bitwise=True, passed=True),
    )  # fmt: skip
    assert combined({"step 0": first, "step 1": second}) == Numerics(
        reference="eager", max_abs_err=1.0, bitwise=False, passed=False, compared=3,
        tolerance={"float32": {"rtol": 1.0}, "float16": {"rtol": 2.0}}, stride_mismatches=("x", "y", "z"),
        problems=("step 1, one", "step 1, two"), cause="passes", passes=None,
        replay=Share(max_abs_err=2.0, bitwise=False, passed=False),
        tracing=Share(max_abs_err=None, bitwise=True, passed=True),
    )  # fmt: skip


def test_calls_that_all_agree_agree_together() -> None:
    share = Share(max_abs_err=0.0, bitwise=True, passed=True)
    both = combined({"step 0": numerics(replay=share), "step 1": numerics(passes=share)})
    assert (both.bitwise, both.passed, both.cause, both.problems) == (True, True, None, ())
    assert (both.replay, both.passes, both.tracing) == (share, share, None)
    with pytest.raises(ValueError, match="nothing was compared"):
        combined({})


@pytest.mark.parametrize(
    ("causes", "expected"),
    [(("tracing", "replay"), "replay"), (("passes", "model"), "model"), ((None, "tracing"), "tracing")],
)
def test_of_several_causes_the_first_in_order_is_told(causes: tuple[Any, ...], expected: str) -> None:
    found = combined({str(i): numerics(cause=cause, passed=False) for i, cause in enumerate(causes)})
    assert found.cause == expected


def test_where_eager_differs_from_itself_its_problems_stand_alone_and_what_the_model_does_is_told_once() -> None:
    many = tuple(f"p{n}" for n in range(12))
    first = numerics(cause="model", passed=False, problems=many)
    found = combined({"a": first, "b": numerics(problems=("q",), model="keeps state"), "c": numerics(model="more")})
    assert (found.problems, found.model) == (many, "keeps state")


def test_what_is_declared_widens_and_what_must_be_exact_stays_so() -> None:
    assert compare(torch.tensor([1]), torch.tensor([2]), declared=TWICE).tolerance == {"int64": asdict(EXACT)}
    wide = compare(torch.tensor([1.0]), torch.tensor([1.5]), declared=TWICE)
    assert wide.tolerance == {"float32": {"rtol": 1.0, "atol": 1e-5}}
    assert wide.passed


def test_a_result_with_other_strides_is_named_by_where_it_is() -> None:
    x = torch.rand(2, 3)
    turned = x.t().contiguous().t()
    assert compare(x, turned).stride_mismatches == ("result",)
    assert compare({"a": [x, x]}, {"a": [x, turned]}).stride_mismatches == ("['a'][1]",)
    assert compare(x, x.clone()).stride_mismatches == ()
    one, other = compare(x, turned), compare([x], [turned])
    assert combined({"a": one, "b": other, "c": one}).stride_mismatches == ("result", "[0]")
