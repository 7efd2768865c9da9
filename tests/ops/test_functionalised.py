"""Operators of torch_npu that write: what a graph has in their place, and that the result is the same."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torchgen.model import FunctionSchema, SchemaKind

from npucompose import ops
from npucompose.ops import functionalised, npu
from npucompose.ops.catalogue import shipped

ops.define()


def test_the_pairs_are_those_of_torchs_generator() -> None:
    """torchnpugen groups the wheel's list with the rules of torchgen."""
    groups: dict[Any, dict[Any, str]] = defaultdict(dict)
    for name, schema in shipped().schemas.items():
        parsed = FunctionSchema.parse(schema)
        groups[parsed.signature()][parsed.kind()] = name
    wanted = {
        group[kind]: group[SchemaKind.functional]
        for group in groups.values()
        for kind in (SchemaKind.inplace, SchemaKind.mutable)
        if kind in group and SchemaKind.functional in group
    }
    found = {
        name
        for name in functionalised.pairs(shipped().schemas)
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "Functionalize")
    }
    assert found == set(wanted)
    assert {name: functionalised.pairs(shipped().schemas)[name] for name in found} == wanted
    assert len(found) == 20


def traced(function: Any, *given: torch.Tensor) -> list[str]:
    """The operators of the graph that torch.compile hands to a backend's compiler."""
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        def keep(made: torch.fx.GraphModule, _: Any) -> Any:
            seen.extend(str(node.target) for node in made.graph.nodes if node.op == "call_function")
            return made

        return aot_module_simplified(module, inputs, fw_compiler=keep)

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*given)
    return seen


def test_a_write_into_a_cache_is_a_new_cache_in_the_graph_and_the_cache_in_the_end() -> None:
    key, slots = torch.randn(3, 2, 16), torch.tensor([7, 0, 10])
    caches = [torch.randn(3, 4, 2, 16) for _ in range(2)]
    eager = [one.clone() for one in caches]

    def write(key: torch.Tensor, slots: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        torch.ops.npu.npu_scatter_pa_kv_cache(key, key + 1, one, other, slots, cache_mode="Norm")
        return one.sum() + other[0].sum()

    wanted = write(key, slots, *eager)
    with torch.no_grad():
        seen = traced(write, key, slots, *caches)
    assert "npu.npu_scatter_pa_kv_cache_functional.default" in seen
    assert not [name for name in seen if "auto_functionalized" in name or name == "npu.npu_scatter_pa_kv_cache.default"]
    key, slots, (one, other) = key, slots, [torch.zeros_like(cache) for cache in caches]
    compiled = torch.compile(write, backend="aot_eager", fullgraph=True)
    one.copy_(caches[0])
    other.copy_(caches[1])
    assert torch.equal(compiled(key, slots, one, other), wanted)


def test_what_an_operator_returns_beside_what_it_writes_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """npu_recurrent_gated_delta_rule returns one tensor and writes another."""
    monkeypatch.setattr(npu.SOURCES, "formed", set())
    library = torch.library.Library("npu", "FRAGMENT")
    name = "a_pair_of_the_tests"
    library.define(f"{name}(Tensor x, Tensor(a!) state) -> Tensor")
    library.define(f"{name}_functional(Tensor x, Tensor state) -> (Tensor, Tensor)")
    library.impl(f"{name}_functional", lambda x, state: (x * 2, state + x), "CompositeExplicitAutograd")

    def both(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return x * 2

    library.impl(name, both, "CompositeExplicitAutograd")
    functionalised.register(library, [name, f"{name}_functional"], npu.overload)
    x, state = torch.ones(3), torch.zeros(3)

    def call(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.a_pair_of_the_tests(x, state) + state

    with torch.no_grad():
        found = torch.compile(call, backend="aot_eager", fullgraph=True)(x, state)
    assert found.tolist() == [3.0] * 3
    assert state.tolist() == [1.0] * 3


def test_outside_of_a_trace_it_writes() -> None:
    x = torch.ones(2, 3)
    indices = torch.tensor([[0], [1]])
    with npu.forms_for_values():
        assert torch.ops.npu.npu_scatter_nd_update_(x, indices, torch.zeros(2, 3)) is x
