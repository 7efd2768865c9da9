"""passes=replace: patterns are found as models write them, replaced, and left alone where somebody else looks in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.graphs import op_counts, printed
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.replace import BUILT_IN, PATTERNS, Pattern, Replace
from npucompose.passes.replace.rewrite import replace_all
from tests.passes.test_rewrites import before_and_after
from tests.sample_graphs import CAN, traced

WEIGHT = torch.linspace(0.5, 1.5, 8)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def norm_in_float(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + 1e-5)).to(x.dtype)


def add_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = y + x
    return norm(total, weight), total


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


CASES: list[tuple[str, Callable[..., Any], list[torch.Tensor]]] = [
    ("npu_rms_norm", norm, [some(2, 3, 8), WEIGHT]),
    ("npu_rms_norm", norm_in_float, [some(2, 3, 8, dtype=torch.bfloat16), WEIGHT.bfloat16()]),
    ("npu_add_rms_norm", add_norm, [some(2, 3, 8), some(2, 3, 8) * 2, WEIGHT]),
    ("npu_swiglu", swiglu, [some(2, 3, 8), some(2, 3, 8) + 1]),
    ("npu_rotary_mul", rotary, [some(2, 4, 5, 16), some(1, 1, 5, 16), some(1, 1, 5, 16) + 1]),
]


@pytest.mark.parametrize(("operator", "function", "inputs"), CASES, ids=[f"{c[0]}-{c[1].__name__}" for c in CASES])
def test_what_models_write_becomes_one_operator(operator: str, function: Any, inputs: list[torch.Tensor]) -> None:
    module = traced(function, *inputs)
    (record,) = PassPipeline(passes=(("replace", Replace()),), can=CAN, check=True)(module)
    assert op_counts(module.graph)[f"npu.{operator}.default"] == 1
    assert (record.matches, record.exact) == (1, False)
    assert all(node.meta.get("val") is not None for node in module.graph.nodes if node.op != "output")
    wanted, got = function(*inputs), module(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-5 if inputs[0].dtype == torch.float32 else 2e-2, atol=1e-5)


def test_replace_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/replace.txt", before_and_after(Replace(), traced(add_norm, some(2, 8), some(2, 8), WEIGHT)))


def test_a_value_in_the_middle_that_somebody_else_reads_is_kept() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * rstd * weight, rstd

    module = traced(f, some(2, 8), WEIGHT)
    assert Replace().rewrite(module.graph, CAN).matches == 0


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6) * w, [some(2, 8), WEIGHT]),
        (lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w, [some(2, 8), WEIGHT]),
        (norm, [some(2, 8), some(2, 8)]),
        (swiglu, [some(2, 3, 8), some(1, 3, 8)]),
        (lambda x, c, s: x * c + torch.cat((-x[..., 4:], x[..., :4]), -1) * s, [some(1, 1, 5, 16)] * 3),
    ],
    ids=["another power", "another dimension", "a weight of rank 2", "broadcast", "not halves"],
)
def test_what_is_nearly_a_pattern_is_left_alone(function: Any, inputs: list[torch.Tensor]) -> None:
    module = traced(function, *inputs)
    before = op_counts(module.graph)
    assert Replace().rewrite(module.graph, CAN).matches == 0
    assert op_counts(module.graph) == before


class Moved(Pattern):
    """-(exp(x) + 1) becomes -1 - exp(x), which `lies` as it is told to."""

    name = "moved"

    def __init__(self, lies: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.lies = lies

    def inputs(self) -> list[torch.Tensor]:
        return [some(2, 8)]

    def finds(self) -> list[tuple[Callable[..., Any], torch.dtype]]:
        return [(lambda x: (x.exp() + 1).neg(), torch.float32)]

    def replace(self, x: torch.Tensor) -> torch.Tensor:
        return self.lies(-1 - x.exp())


@pytest.mark.parametrize(
    ("lies", "replaced"),
    [
        (lambda x: x, 1),
        (lambda x: x.double(), 0),
        (lambda x: x[:1], 0),
        (lambda x: x.t().contiguous().t(), 0),
        (lambda x: torch.cat([x, x])[2:], 0),
    ],
    ids=["the same form", "dtype", "shape", "strides", "offset"],
)
def test_a_replacement_of_another_form_is_taken_back(lies: Any, replaced: int) -> None:
    module = traced(lambda x: (x.exp() + 1).neg().abs(), some(2, 8))
    before = printed(module.graph)
    pattern: Any = type("Lying", (Moved,), {"__init__": lambda self: Moved.__init__(self, lies)})
    assert replace_all(module.graph, [pattern()], check=False).matches == replaced
    assert (printed(module.graph) == before) is (replaced == 0)
    module.graph.lint()


class Both(Moved):
    """Two results, of which the first lies as it is told to."""

    name = "both"

    def finds(self) -> list[tuple[Callable[..., Any], torch.dtype]]:
        return [(lambda x: ((e := x.exp()).neg(), e), torch.float32)]

    def replace(self, x: torch.Tensor) -> Any:
        return self.lies(-x.exp()), x.exp()


@pytest.mark.parametrize(("lies", "replaced"), [(lambda x: x, 1), (lambda x: x.double(), 0)], ids=["same", "dtype"])
def test_each_result_of_a_replacement_has_its_form(lies: Any, replaced: int) -> None:
    module = traced(lambda x: ((e := x.exp()).neg().abs(), e.abs()), some(2, 8))
    pattern: Any = type("BothLying", (Both,), {"__init__": lambda self: Both.__init__(self, lies)})
    assert replace_all(module.graph, [pattern()], check=False).matches == replaced


def test_memory_that_is_written_is_left_alone() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = norm(x, weight)
        x.mul_(2)
        return y

    assert Replace().rewrite(traced(f, some(2, 8), WEIGHT).graph, CAN).matches == 0


def test_what_an_operator_reads_that_was_made_functional_is_not_written() -> None:
    from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

    module = traced(norm, some(2, 8), WEIGHT)
    (output,) = module.graph.find_nodes(op="output")
    (normed,) = output.all_input_nodes
    given = {"other": normed, "alpha": 1, "_self_base_index": 0, "_self_alias": True}
    with module.graph.inserting_before(output):
        call = module.graph.call_function(
            auto_functionalized_v2,
            (torch.ops.aten.add_.Tensor,),
            {**given, "_all_bases": [next(iter(module.graph.nodes))]},
        )
    call.meta["val"] = (normed.meta["val"], normed.meta["val"])
    assert Replace(patterns=("rms_norm",)).rewrite(module.graph, CAN).matches == 1


def test_sizes_may_be_symbols() -> None:
    module = traced(add_norm, some(3, 8), some(3, 8), WEIGHT, mode="symbolic")
    found = Replace(patterns=("swiglu", "add_rms_norm")).rewrite(module.graph, CAN)
    if found.matches:
        module.recompile()
        x, y = some(5, 8), some(5, 8)
        torch.testing.assert_close(module(x, y, WEIGHT), add_norm(x, y, WEIGHT))


def test_every_built_in_pattern_is_on_by_default_under_its_own_name() -> None:
    assert Replace().patterns == BUILT_IN == tuple(name for name, _ in PATTERNS.built_in)
    assert [PATTERNS.get(name).name for name in BUILT_IN] == list(BUILT_IN)


def test_a_pattern_that_is_not_there_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"unknown pattern 'rms_nrm' @ passes\.replace\.patterns\. Did you mean"):
        Replace(patterns=("rms_norm", "rms_nrm")).check()
