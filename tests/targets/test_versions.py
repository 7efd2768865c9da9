"""More shapes than torch keeps versions of a function: one version with symbols, then eager, never an error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config

import npucompose
from npucompose.compose.session import Session


@pytest.fixture(autouse=True)
def three_versions():
    torch._dynamo.reset()
    with config.patch(recompile_limit=3):
        yield
    torch._dynamo.reset()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.relu() * 2 + 1


def unrolled(x: torch.Tensor) -> torch.Tensor:
    """Its code depends on the size: torch makes a version for each, whatever it may make symbols of."""
    total = torch.zeros(4)
    for row in range(x.shape[0]):
        total = total + x[row]
    return total


def symbols_of(fast: Any) -> list[bool]:
    return [bool(compilation.before.symbols) for compilation in fast.materialised.backend.compilations]


def recordings_of(fast: Any) -> list[int]:
    return [len(compilation.lowered.captured) for compilation in fast.materialised.backend.compilations]


def all_right(fast: Any, function: Any, rows: Any) -> None:
    with torch.no_grad():
        for n in rows:
            x = torch.randn(n, 4)
            assert torch.equal(fast(x), function(x)), n


def test_where_nobody_chose_shapes_one_graph_with_symbols_serves_all_but_the_first():
    fast = npucompose.compile(scaled, "mode=reduce-overhead", "target.when_new=at_once")
    all_right(fast, scaled, [*range(2, 14), 5, 2])
    assert symbols_of(fast) == [False, True]
    assert recordings_of(fast) == [1, 12]  # that of 2 too: torch asks the version used last first
    assert fast.materialised.provenance["shapes.dynamic"] == "npucompose.compile"


def test_static_shapes_stay_static_for_as_many_versions_as_torch_keeps():
    fast = npucompose.compile(scaled, "mode=reduce-overhead", "shapes=static")
    all_right(fast, scaled, (2, 3, 4, 3, 2))
    assert symbols_of(fast) == [False, False, False]
    all_right(fast, scaled, [*range(5, 10), 2, 7])
    assert symbols_of(fast) == [False, False, False, True]
    assert fast.statistics.calls == 12


def test_a_module_has_the_same_rule_and_is_called_as_a_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval().requires_grad_(False)
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    fast = npucompose.compile(model, "mode=reduce-overhead", "shapes=static")
    all_right(fast, model, range(2, 8))
    assert len(seen) == 12


def test_where_every_call_wants_a_version_of_its_own_the_rest_runs_eagerly_after_one_warning():
    fast = npucompose.compile(unrolled, "mode=reduce-overhead", "shapes=static")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        all_right(fast, unrolled, [*range(2, 12), 2, 11, 10])
    told = [w for w in caught if "every call wants a version of its own" in str(w.message)]
    assert len(told) == 1
    assert symbols_of(fast) == [False] * 6


def test_a_call_known_to_be_beyond_all_versions_does_not_ask_torch_again(monkeypatch: pytest.MonkeyPatch):
    fast = npucompose.compile(unrolled, "mode=reduce-overhead", "shapes=static")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        all_right(fast, unrolled, range(2, 12))
        counted = torch._dynamo.utils.counters["stats"].total()
        asked: list[int] = []
        module: Any = torch._dynamo.convert_frame
        exceeds = module.exceeds_recompile_limit
        monkeypatch.setattr(module, "exceeds_recompile_limit", lambda *a: asked.append(1) or exceeds(*a))
        all_right(fast, unrolled, (11, 10, 11))
    assert not asked
    assert torch._dynamo.utils.counters["stats"].total() == counted


def test_an_error_of_the_model_itself_comes_out_as_in_eager_also_beyond_the_versions():
    fast = npucompose.compile(scaled, "mode=reduce-overhead", "shapes=static")
    all_right(fast, scaled, range(2, 9))
    with pytest.raises(TypeError):
        fast()


@pytest.mark.slow
def test_max_autotune_has_the_same_rule():
    fast = npucompose.compile(scaled, "mode=max-autotune")
    with torch.no_grad():
        for n in range(2, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(fast(x), scaled(x))
    assert symbols_of(fast) == [False, False, False, True]


def test_a_run_makes_more_declared_calls_than_torch_keeps_versions():
    overrides = [
        "model=add", "mode=reduce-overhead", "pipeline=check", "shapes=static",
        "model.sequence=[{x.0:3,y.0:3},{x.0:4,y.0:4},{x.0:5,y.0:5},{x.0:6,y.0:6}]",
    ]  # fmt: skip
    from npucompose import api

    session = Session(api.checked(overrides))
    with torch.no_grad():
        for step, call in enumerate(session.calls):
            inputs = session.inputs(step, call)
            assert torch.equal(session.call(session.compiled, inputs), session.call(session.reference, inputs))
    assert any(compilation.before.symbols for compilation in session.compilations)
