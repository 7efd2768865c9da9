"""Named inputs as the arguments of a call: what Python itself would make of `forward(**inputs)`, or one refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npucompose.errors import ConfigError
from npucompose.models.inputs import Bound, bind, mapped, signature_of, tensors_of


def affine(x: Any, scale: Any = None, shift: Any = None) -> tuple[Any, ...]:
    return x, scale, shift


def mixed(a: Any, b: Any = 5, /, c: Any = 7, *rest: Any, k: Any, o: Any = 3, **more: Any) -> tuple[Any, ...]:
    return a, b, c, rest, k, o, more


def test_an_input_behind_one_that_is_left_out_keeps_its_name() -> None:
    """Observation 13: by position, `shift` would land in `scale`."""
    assert bind(affine, {"x": 1, "shift": 2}) == Bound((1,), {"shift": 2})
    assert bind(affine, {"x": 1, "shift": 2})(affine) == (1, None, 2)


def one_and_rest(first: Any = 1, *rest: Any) -> tuple[Any, ...]:
    return first, rest


def test_defaults_are_filled_in_only_before_what_goes_by_position_alone() -> None:
    assert bind(one_and_rest, {"rest": [8, 9]}) == Bound((1, 8, 9), {})
    assert bind(one_and_rest, {"first": 2, "rest": [8]}) == Bound((2, 8), {})
    assert bind(one_and_rest, {}) == Bound((), {})
    assert bind(mixed, {"a": 2, "b": 3, "c": 4, "rest": [8], "k": 1}) == Bound((2, 3, 4, 8), {"k": 1})
    assert bind(mixed, {"a": 2, "b": 6, "k": 1}) == Bound((2, 6), {"k": 1})


def test_the_order_of_the_mapping_says_nothing() -> None:
    assert bind(affine, {"shift": 3, "scale": 2, "x": 1}) == Bound((1, 2, 3), {})


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ({"k": 1, "a": 2}, (2, 5, 7, (), 1, 3, {})),
        ({"k": 1, "a": 2, "c": 4, "o": None}, (2, 5, 4, (), 1, None, {})),
        ({"k": 1, "a": 2, "rest": [8, 9]}, (2, 5, 7, (8, 9), 1, 3, {})),
        ({"k": 1, "b": 6, "a": 2}, (2, 6, 7, (), 1, 3, {})),
        ({"k": 1, "a": 2, "other": 4}, (2, 5, 7, (), 1, 3, {"other": 4})),
        ({"k": 1, "a": 2, "more": {"other": 4}, "z": 5}, (2, 5, 7, (), 1, 3, {"other": 4, "z": 5})),
        ({"k": 1, "a": 2, "more": 4}, (2, 5, 7, (), 1, 3, {"more": 4})),
    ],
)
def test_every_kind_of_parameter_is_reached_by_its_name(inputs: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    assert bind(mixed, inputs)(mixed) == wanted


@given(st.sets(st.sampled_from(["scale", "shift"])), st.randoms())
def test_a_call_is_what_python_makes_of_the_keywords(names: set[str], random: Any) -> None:
    keys = [*names, "x"]
    random.shuffle(keys)
    inputs = {key: object() for key in keys}
    assert bind(affine, inputs)(affine) == affine(**inputs)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": 1, "shfit": 2}, "it has no parameter 'shfit' (did you mean 'shift'?). Its signature is (x, scale=None"),
        ({"scale": 1}, "the inputs scale: 'x' has no default and is missing."),
        ({}, "the inputs nothing: 'x' has no default"),
        ({1: 2}, "every input needs the name of a parameter: 1."),
    ],
)
def test_what_does_not_bind_is_refused_with_the_signature(inputs: Mapping[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind(affine, inputs, "model.factory 'm:make'")
    assert words in str(caught.value)
    assert str(caught.value).startswith("model.factory 'm:make': affine cannot be called with the inputs ")
    assert "\n" not in str(caught.value)


def test_a_name_that_is_given_twice_and_a_rest_that_is_no_row_are_refused() -> None:
    with pytest.raises(ConfigError, match="'z' is given twice, once inside 'more'"):
        bind(mixed, {"a": 1, "k": 1, "z": 1, "more": {"z": 2}})
    with pytest.raises(ConfigError, match=r"\*rest takes a list or tuple, not a int"):
        bind(mixed, {"a": 1, "k": 1, "rest": 3})


def test_a_wrapper_that_hands_its_arguments_on_has_the_names_of_what_it_wraps() -> None:
    class Inner(nn.Module):
        def forward(self, x: Any, *, scale: Any = None) -> Any:
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.__signature__ = signature_of(self.inner)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    assert bind(Outer(), {"scale": 2, "x": 1}) == Bound((1,), {"scale": 2})
    with pytest.raises(ConfigError, match="it has no parameter 'y'"):
        bind(Outer(), {"y": 1})


@dataclass
class Pair:
    left: torch.Tensor
    rest: list[Any]


class Cache:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.length = keys, 3


def test_tensors_are_found_and_replaced_in_dataclasses_objects_and_containers() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    value = {"pair": Pair(left=one, rest=[two, "a", None]), "cache": Cache(three), "again": one}
    assert [t.numel() for t in tensors_of(value)] == [1, 2, 3]
    other = mapped(value, lambda t: t + 1)
    assert other["pair"].left is other["again"]
    assert (other["pair"].left.item(), other["cache"].keys.tolist(), other["cache"].length) == (2, [2.0] * 3, 3)
    assert (value["cache"].keys == 1).all()


def test_objects_are_opened_for_a_comparison() -> None:
    from npucompose.measure.numerics import compare

    wanted, same, other = ([Cache(torch.full((2,), v)), Pair(torch.ones(1), [1])] for v in (1.0, 1.0, 2.0))
    assert compare(wanted, same).bitwise
    assert not compare(wanted, other).passed


def test_what_is_bound_without_a_signature_is_a_mapping_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may put the inputs of the next step into the one that was given."""
    monkeypatch.setattr("npucompose.models.inputs.signature_of", lambda function: None)
    given = {"x": 1}
    bound = bind(affine, given)
    given["x"] = 2
    assert bound == Bound((), {"x": 1})
