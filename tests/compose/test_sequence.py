"""model.sequence: what a call may change, what it makes of the inputs, and the one error for all that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npucompose.api import checked
from npucompose.compose.calls import check_calls, varied
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.models import MODELS
from npucompose.schema.experiment import call_text, dimension_of
from npucompose.table.structure import structure


def example() -> dict[str, Any]:
    return {"x": torch.arange(12.0).reshape(4, 3), "times": 3, "rate": 0.5, "causal": True, "lens": [5, 6], "name": "a"}


def test_a_dimension_is_cut_or_repeated_and_everything_else_stays() -> None:
    inputs = example()
    longer = varied({"x.0": 6}, inputs)["x"]
    assert torch.equal(longer, inputs["x"][[0, 1, 2, 3, 0, 1]])
    assert torch.equal(varied({"x.1": 2}, inputs)["x"], inputs["x"][:, :2])
    assert varied({"x.0": 0}, inputs)["x"].shape == (0, 3)
    assert varied({}, inputs) == inputs


def test_numbers_and_lists_keep_their_kind() -> None:
    changed = varied({"times": 4, "rate": 2, "causal": False, "lens": (1, 2, 3)}, example())
    assert (changed["times"], changed["rate"], changed["causal"], changed["lens"]) == (4, 2.0, False, [1, 2, 3])
    assert type(changed["rate"]) is float


def test_transposed_changes_the_strides_only() -> None:
    inputs = example()
    turned = varied({"x": "transposed"}, inputs)["x"]
    assert torch.equal(turned, inputs["x"])
    assert turned.stride() == (1, 4)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_resized_tensor_keeps_the_order_of_its_strides(shape: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).permute(*order)
    at, size = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 7))
    check_calls([{f"x.{at}": size}], {"x": tensor})
    resized = varied({f"x.{at}": size}, {"x": tensor})["x"]
    assert torch.equal(resized, tensor.index_select(at, torch.arange(size) % tensor.shape[at]))

    def dense(one: torch.Tensor) -> torch.Tensor:
        return one.permute(sorted(range(one.dim()), key=lambda d: -tensor.stride(d)))

    assert dense(resized).is_contiguous()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"xs": 4}, "unknown input 'xs' @ model.sequence[0]. Did you mean 'x'? Choices: x, times, "),
        ({"xs.0": 4}, "unknown input 'xs'"),
        ({"x.2": 4}, "'x.2' names no dimension: 'x' has rank 2, float32[4, 3] @ model.sequence[0]."),
        ({"times.0": 4}, "'times.0' names a dimension, but 'times' is 3 and no tensor"),
        ({"x.0": -1}, "'x.0' must be a size, an integer of at least 0: -1"),
        ({"x.0": True}, "'x.0' must be a size"),
        ({"x.0": (4,)}, "'x.0' must be a size, an integer of at least 0: [4]"),
        ({"x": 4}, "'x' is float32[4, 3] and takes no 4: change its sizes with x.0 and so on"),
        ({"times": 4.5}, "'times' must be an integer, as in the example inputs (3): 4.5"),
        ({"times": (4,)}, "'times' must be an integer"),
        ({"lens": 4}, "'lens' must be a list of integers, as in the example inputs ([5, 6]): 4"),
        ({"causal": 1}, "'causal' must be true or false"),
        ({"name": 1}, "'name' is 'a' and takes no 1"),
        ({"times": "transposed"}, "'times: transposed' needs a tensor of at least 2 dimensions"),
        ({"lens": "unmarked"}, "'lens: unmarked' needs a tensor; 'lens' is [5, 6]"),
    ],
)
def test_what_does_not_fit_the_example_is_refused_by_call_and_input(call: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_calls([call], example())
    (problem,) = caught.value.problems
    assert words in problem
    assert " @ model.sequence[0]." in problem


def test_an_empty_dimension_has_nothing_to_repeat() -> None:
    with pytest.raises(ConfigError, match=r"'x\.0' cannot grow to 4"):
        check_calls([{"x.0": 4}], {"x": torch.ones(0, 3)})


def test_every_mistake_of_every_call_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_calls([{"x.5": 4}, {}, {"y": 1, "lens": 3}], example())
    assert [p.partition("model.sequence")[2][:3] for p in caught.value.problems] == ["[0]", "[2]", "[2]"]


def test_the_yaml_is_typed() -> None:
    model = structure(MODELS.get("linear_scalar"), {"sequence": [{"x.0": 6, "times": 4, "x": "unmarked"}]}, "model")
    assert model.sequence == ({"x.0": 6, "times": 4, "x": "unmarked"},)
    with pytest.raises(ConfigError) as caught:
        structure(MODELS.get("linear_scalar"), {"sequence": [{"x": "transpoesd"}, 3, {"lens": [1, "a"]}]}, "model")
    assert len(caught.value.problems) == 3
    assert "one of transposed, unmarked" in str(caught.value)


def test_the_words_of_a_call_are_its_yaml() -> None:
    assert call_text({"x.0": 6, "lens": (1, 2), "y": "transposed"}) == "x.0: 6, lens: [1, 2], y: transposed"
    assert call_text({}) == "the example inputs"
    assert dimension_of("x.10") == ("x", 10)
    assert dimension_of("x") == ("x", None)
    assert dimension_of(".0") == (".0", None)


def test_a_call_that_the_shape_policy_cannot_take_is_refused_before_anything_compiles() -> None:
    gears = ["mode=max-autotune", "shapes=dynamic", "+shapes.gears={x.0:[8,4]}"]
    live = Session(checked(["model=linear_scalar", "model.sequence=[{x.0:4},{x.0:5}]", *gears]))
    with pytest.raises(ConfigError) as caught:
        live.compiled  # noqa: B018
    assert str(caught.value) == (
        "model.sequence[1]: 'x.0' @ shapes.gears: the input has size 5, which is none of [8, 4]."
    )


def test_the_calls_of_a_session_start_with_the_example_and_are_marked_as_the_policy_says() -> None:
    live = Session(
        checked(["model=linear_scalar", "shapes.mark_static=[x]", "model.sequence=[{x.0: 6},{x.0: 7, x: unmarked}]"])
    )
    assert live.calls == ({}, {"x.0": 6}, {"x.0": 7, "x": "unmarked"})
    tensors = [live.inputs(at, call)["x"] for at, call in enumerate(live.calls)]
    assert [tuple(t.shape) for t in tensors] == [(8, 64), (6, 64), (7, 64)]
    assert [hasattr(t, "_dynamo_static_input_type") or hasattr(t, "_dynamo_static_indices") for t in tensors] == [
        True,
        True,
        False,
    ]
