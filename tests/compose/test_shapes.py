"""The shape policy acts on the real inputs: what Dynamo compiles shows it."""

from __future__ import annotations

import pytest
import torch

import npucompose
from npucompose.compose import shapes
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Shapes


def symbols_of(policy: Shapes, rows: int = 6) -> tuple[str, ...]:
    """Symbols of the graph that `x @ w` compiles to under the policy."""
    torch._dynamo.reset()
    dynamic = str(policy.dynamic).lower().replace("none", "null")
    made = npucompose.materialize("mode=reduce-overhead", f"shapes.dynamic={dynamic}")
    inputs = {"x": torch.randn(rows, 4), "weight": torch.randn(4, 5)}
    shapes.apply(policy, inputs)
    compiled = torch.compile(lambda x, w: x @ w, backend=made.backend, **made.compile_keywords)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs.values()), inputs["x"] @ inputs["weight"])
    return made.backend.compilations[0].symbols


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
        shapes.apply(policy, {"weight": torch.randn(2, 2), "count": 3})
    assert words in str(caught.value)
