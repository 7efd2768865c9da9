"""The shape policy acts on the real inputs: what Dynamo compiles shows it."""

from __future__ import annotations

import pytest
import torch

import npucompose
from npucompose.compose.calls import apply_shapes, is_static
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Shapes


def symbols_of(policy: Shapes, rows: int = 6) -> tuple[str, ...]:
    """Symbols of the graph that `x @ w` compiles to under the policy."""
    torch._dynamo.reset()
    dynamic = str(policy.dynamic).lower().replace("none", "null")
    made = npucompose.materialize("mode=reduce-overhead", f"shapes.dynamic={dynamic}")
    inputs = {"x": torch.randn(rows, 4), "weight": torch.randn(4, 5)}
    apply_shapes(policy, inputs)
    compiled = torch.compile(lambda x, w: x @ w, backend=made.backend, **made.compile_keywords)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs.values()), inputs["x"] @ inputs["weight"])
    return made.backend.compilations[0].before.symbols


def test_static_dynamic_and_marked_inputs_compile_to_graphs_with_those_symbols() -> None:
    assert symbols_of(Shapes(dynamic=False)) == ()
    assert len(symbols_of(Shapes(dynamic=True))) == 3
    assert len(symbols_of(Shapes(dynamic=True, mark_static=("weight",)))) == 1
    assert symbols_of(Shapes(dynamic=True, mark_static=("*",))) == ()
    assert len(symbols_of(Shapes(dynamic=None, mark_dynamic={"re:x|y": (0,)}))) == 1


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Shapes(mark_static=("wieght",)), "'wieght' @ shapes.mark_static names no input. Did you mean 'weight'?"),
        (Shapes(mark_static=("count",)), "'count' @ shapes.mark_static is 3: it holds no tensor"),
        (Shapes(mark_dynamic={"weight": (2,)}), "dimension 2 of 'weight' @ shapes.mark_dynamic"),
        (Shapes(mark_dynamic={"re:(": (0,)}), "is not a regular expression"),
    ],
)
def test_a_policy_that_does_not_fit_the_inputs_is_refused(policy: Shapes, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_shapes(policy, {"weight": torch.randn(2, 2), "count": 3})
    assert words in str(caught.value)


def told(policy: Shapes, inputs: dict[str, object], unmarked: frozenset[str] = frozenset()) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        apply_shapes(policy, inputs, unmarked=unmarked)
    return refused.value.problems


def marks(tensor: torch.Tensor) -> tuple[set[int], set[int]]:
    """(static, dynamic) dimensions as Dynamo reads them."""
    return set(getattr(tensor, "_dynamo_static_indices", ())), set(getattr(tensor, "_dynamo_dynamic_indices", ()))


def test_every_tensor_of_an_argument_is_marked_but_of_those_that_are_left_out() -> None:
    inputs = {"x": torch.ones(2, 3), "cache": [torch.ones(4), {"k": torch.ones(5)}], "y": torch.ones(2, 3)}
    policy = Shapes(mark_static=("cache",), mark_dynamic={"re:x|y": (0, -1)})
    apply_shapes(policy, inputs, unmarked=frozenset({"y"}))
    assert marks(inputs["x"]) == (set(), {0, 1})
    assert marks(inputs["y"]) == (set(), set())
    assert [marks(t)[0] for t in (inputs["cache"][0], inputs["cache"][1]["k"])] == [{0}, {0}]
    apply_shapes(Shapes(mark_static=("y",)), inputs, unmarked=frozenset({"y"}))
    assert marks(inputs["y"]) == (set(), set())


@pytest.mark.parametrize(("dim", "fits"), [(0, True), (1, True), (-2, True), (2, False), (-3, False)])
def test_a_dimension_is_counted_from_either_end(dim: int, fits: bool) -> None:
    policy, inputs = Shapes(mark_dynamic={"x": (dim,)}), {"x": torch.ones(2, 3)}
    if fits:
        apply_shapes(policy, inputs)
        assert marks(inputs["x"])[1] == {dim % 2}
    else:
        assert told(policy, inputs) == (f"dimension {dim} of 'x' @ shapes.mark_dynamic: it has 2 dimensions, (2, 3).",)


def test_gears_are_told_to_the_device_where_all_fit() -> None:
    said: list[tuple[object, dict[int, list[int]]]] = []
    inputs = {"x": torch.ones(2, 3), "a.b": torch.ones(4), "n": 3}
    policy = Shapes(gears={"x.0": (2, 4), "x.1": (3, 6), "a.b.0": (4, 8)})
    apply_shapes(policy, inputs, lambda tensor, gears: said.append((tensor, gears)), unmarked=frozenset({"a.b"}))
    ((tensor, gears),) = said
    assert tensor is inputs["x"]
    assert gears == {0: [2, 4], 1: [3, 6]}
    apply_shapes(policy, inputs)
    given = "Inputs: x (2, 3), a.b (4,)."
    wrong = {"x.0": (3, 4), "x.2": (2, 3), "x": (2, 3), "n.0": (2, 3), "z.0": (2, 3), "x.-1": (2, 3), "x.1": (3, 6)}
    said.clear()
    with pytest.raises(ConfigError) as refused:
        apply_shapes(Shapes(gears=wrong), inputs, lambda tensor, gears: said.append((tensor, gears)))
    assert said == []
    assert refused.value.problems == (
        "'x.0' @ shapes.gears: the input has size 2, which is none of [3, 4].",
        *(f"'{key}' @ shapes.gears is no input.dimension. {given}" for key in ("x.2", "x", "n.0", "z.0", "x.-1")),
    )


def test_a_name_that_finds_nothing_is_told_with_the_inputs() -> None:
    inputs = {"weight": torch.ones(2), "n": 3}
    assert told(Shapes(mark_static=("q*", "n"), mark_dynamic={"wieght": (0,)}), inputs) == (
        "'q*' @ shapes.mark_static names no input. Inputs: weight, n.",
        "'n' @ shapes.mark_static is 3: it holds no tensor to mark.",
        "'wieght' @ shapes.mark_dynamic names no input. Did you mean 'weight'? Inputs: weight, n.",
    )
    policy = Shapes(mark_static=("w*", "re:n|m"))
    assert [is_static(policy, name) for name in ("weight", "n", "m", "nm")] == [True, True, True, False]
