"""The pass fold_parameters: what it computes once, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import npucompose
from npucompose.api import checked
from npucompose.errors import ConfigError
from npucompose.graphs import op_counts
from npucompose.passes.base import Constant, Request
from npucompose.passes.fold_parameters import FoldParameters
from npucompose.targets.npu import NpuTarget
from tests.sample_graphs import CAN, traced

CHOSEN = ("mode=reduce-overhead", "passes=fold_parameters", "check=per_pass")


def compiled(function: Any, *overrides: str, **parameters: torch.Tensor) -> tuple[torch.nn.Module, Any]:
    """A model whose forward is `function(self, x)`, and the same compiled; `buffer_…` are buffers."""

    class Model(torch.nn.Module):
        forward = function

    model = Model()
    for name, value in parameters.items():
        if name.startswith("buffer"):
            model.register_buffer(name, value)
        else:
            setattr(model, name, torch.nn.Parameter(value, requires_grad=False))
    return model, npucompose.compile(model, *CHOSEN, *overrides)


def facts(done: Any) -> Any:
    (record,) = done.materialised.backend.compilations[0].passes
    return record


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(model: torch.nn.Module, done: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        got, wanted = done(x), model(x)
    assert torch.equal(got, wanted)
    assert got.stride() == wanted.stride()


def test_permuted_copied_and_cast_parameters_become_constants_with_the_same_bits() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w.t().contiguous() + self.bias.double().float() + self.w.sum()

    model, done = compiled(forward, w=some(3, 4), bias=some(3))
    check(model, done, some(2, 4))
    record = facts(done)
    assert (record.matches, record.exact, record.max_abs_err) == (2, True, 0)
    assert record.folds.bytes == 3 * 4 * 4 + 3 * 4
    assert len(record.folds.parameters) == 2
    graph = done.materialised.backend.compilations[0].graph_module.graph
    assert op_counts(graph) == {"aten.mm.default": 1, "aten.add.Tensor": 2, "aten.sum.default": 1}


@pytest.mark.parametrize("shared", [True, False])
def test_a_parameter_whose_memory_is_written_through_another_tensor_is_left_alone(shared: bool) -> None:
    def forward(w: torch.Tensor, counter: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return x @ w.t().contiguous()

    weight = some(3, 4)
    counter = weight[0] if shared else some(4)
    module = traced(forward, weight.clone(), counter.clone(), some(2, 4))
    known = {
        "w_1": Constant(value=weight, kind="parameter"),
        "counter_1": Constant(value=counter, kind="buffer"),
    }
    folded = FoldParameters().run(Request(graph_module=module, can=CAN, constants=known)).matches
    assert folded == (0 if shared else 1)


def test_a_parameter_whose_gradient_is_wanted_is_no_constant() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w

    model, done = compiled(forward, w=some(4, 4))
    model.w.requires_grad_(True)
    check(model, done, some(2, 4))
    backend = done.materialised.backend
    graph_module = backend.compilations[0].graph_module
    with torch.no_grad():
        assert [constant.kind for constant in backend.constants(graph_module).values()] == ["parameter"]
    with torch.enable_grad():
        assert backend.constants(graph_module) == {}


def test_fold_parameters_before_and_after(golden: Callable[[str, str], None]) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w.t().contiguous() + self.bias.double().float()

    model, done = compiled(forward, w=some(3, 4), bias=some(3))
    check(model, done, some(2, 4))
    (found,) = done.materialised.backend.compilations
    texts = f"before:\n{found.before.text}\nafter ({facts(done).matches} matches):\n{found.text_after}"
    golden("passes/fold_parameters.txt", texts)


@pytest.mark.parametrize("overrides", [(), ("passes.fold_parameters.buffers=true",)])
def test_buffers_are_folded_only_where_that_is_said(overrides: tuple[str, ...]) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ self.buffer.t().contiguous()

    model, done = compiled(forward, *overrides, buffer=some(3, 4))
    check(model, done, some(2, 4))
    assert facts(done).matches == len(overrides)
    model.buffer.mul_(2)
    folded = bool(overrides)
    with torch.no_grad():
        assert torch.equal(done(some(2, 4)), model(some(2, 4))) is not folded


def test_what_the_graph_writes_is_left_alone_even_through_another_tensor() -> None:
    shared = some(4, 4)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.buffer_cache[1:].add_(1)
        return x @ self.buffer_cache.t().contiguous() + x @ self.w.t().contiguous()

    model, done = compiled(forward, "passes.fold_parameters.buffers=true", buffer_cache=shared, w=some(4, 4))
    start = shared.clone()
    with torch.no_grad():
        for _ in range(3):
            shared.copy_(start)
            wanted = model(some(2, 4))
            shared.copy_(start)
            assert torch.equal(done(some(2, 4)), wanted)
    assert facts(done).matches == 1


def test_a_constant_is_never_handed_out_or_written() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        mine = self.w.t().contiguous()
        mine.add_(x)
        return mine

    model, done = compiled(forward, w=some(4, 4))
    for _ in range(2):
        check(model, done, some(4, 4))

    def handing_out(self: Any, x: torch.Tensor) -> Any:
        return self.w.t().contiguous().view(-1)

    model, done = compiled(handing_out, w=some(4, 4))
    with torch.no_grad():
        done(some(4, 4)).zero_()
    check(model, done, some(4, 4))
    assert facts(done).matches == 0


def test_views_alone_cost_nothing_and_are_not_folded() -> None:
    model, done = compiled(lambda self, x: x @ self.w.t(), w=some(3, 4))
    check(model, done, some(2, 4))
    assert facts(done).matches == 0


@pytest.mark.parametrize("keyword", ["training", "cache"])
def test_what_a_constant_would_make_wrong_is_refused(keyword: str) -> None:
    with pytest.raises(ConfigError, match=f"constants of parameters, which compile.{keyword}=true cannot have"):
        checked(["passes=fold_parameters", "mode=max-autotune", "pipeline=check", f"compile.{keyword}=true"])


def test_on_an_npu_it_is_listed_as_not_acting_because_generated_code_finds_no_constant() -> None:
    assert FoldParameters.uses == "constants"
    assert not any(NpuTarget().capabilities(mode).constants for mode in NpuTarget.modes)
