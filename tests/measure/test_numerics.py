from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npucompose.measure.numerics import combined, compare
from npucompose.schema.tolerance import TOLERANCES

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
    assert found.problems == ("result: tensor float32[1] differs by up to 1.19e-07, allowed is nothing",)


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
    assert found.problems == ("['a'][1]: 1 against 2",)
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
