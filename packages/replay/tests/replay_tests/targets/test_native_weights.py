"""What the native replayer asks of frozen weights: what Python asks; where it says no, Python says what has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.front.detached import DetachedHandle, detach
from npucompose_replay.inductor.frozen_weights import Watch, Weight
from tests.graph_helpers import same, traced


def watched(model: nn.Module) -> Watch:
    """Over all parameters, as constants."""
    made = Watch([Weight(tensor, name, None) for name, tensor in model.named_parameters()])
    made.froze(set())
    made.checked_by(build.load().Weights())
    return made


def model_of() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 48).requires_grad_(False)


def set_data(model: nn.Linear, value: torch.Tensor) -> None:
    model.weight.data = value


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "written": lambda model: model.weight.add_(1),
    "the last one written": lambda model: model.bias.zero_(),
    "written through .data": lambda model: model.weight.data.add_(1),
    "other memory": lambda model: set_data(model, model.weight.data.clone()),
    "another dtype": lambda model: set_data(model, model.weight.data.double()),
    "another shape": lambda model: set_data(model, model.weight.data[:4]),
    "other strides": lambda model: set_data(model, model.weight.data.view(64, 48)),
    "freed": lambda model: model.weight.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen_natively_as_by_python(kind: str) -> None:
    model = model_of()
    watch = watched(model)
    assert watch.native.hold()
    assert watch.holds()
    CHANGES[kind](model)
    assert not watch.native.hold()
    assert not watch.holds()
    assert watch.change() is not None


def test_what_is_only_read_may_change_its_values_but_not_its_layout() -> None:
    model = model_of()
    watch = Watch([Weight(tensor, name, None) for name, tensor in model.named_parameters()])
    watch.froze({id(model.weight)})
    watch.checked_by(build.load().Weights())
    model.weight.add_(1)
    assert watch.native.hold()
    set_data(model, model.weight.data.t())
    assert not watch.native.hold()


def test_gradients_that_are_wanted_and_inference_mode_are_no_changes() -> None:
    model = model_of()
    watch = watched(model)
    model.requires_grad_(True)
    with torch.inference_mode():
        assert watch.native.hold()


def test_a_no_that_python_does_not_share_is_a_yes() -> None:
    """Negative control of the native one: here it alone is wrong."""

    class Never:
        def add(self, *_: Any) -> None:
            pass

        def hold(self) -> bool:
            return False

    watch = watched(model_of())
    watch.checked_by(Never())
    assert watch.holds()


def test_weights_that_have_changed_already_or_are_not_plain_are_left_to_python() -> None:
    model = model_of()
    late = Watch([Weight(model.weight, "weight", None)])
    late.froze(set())
    model.weight.add_(1)
    late.checked_by(build.load().Weights())
    sparse = Watch([Weight(torch.eye(4).to_sparse(), "sparse", None)])
    sparse.checked_by(build.load().Weights())
    assert (late.native, sparse.native) == (None, None)
    assert (late.holds(), sparse.holds()) == (False, True)


def handle_of(model: nn.Linear, *, native: bool) -> tuple[DetachedHandle, torch.Tensor]:
    """A handle of a graph that has the model's weights as constants."""
    weight, bias, x = model.weight, model.bias, torch.randn(4, 64)
    watch = watched(model)
    if not native:
        watch.native = None
    captured = CapturedGraph.capture(traced(lambda x: (torch.addmm(bias, x, weight.t()),), x), [x])
    outputs = captured.replay(x)
    return detach(captured, [x], outputs, (x,), {}, outputs[0], modules=[model], constants=watch), x


@pytest.mark.parametrize("native", [True, False])
def test_a_handle_follows_its_weights(native: bool) -> None:
    model = model_of()
    handle, x = handle_of(model, native=native)
    assert same([handle(x)], [model(x)])
    assert (handle._call is not None) == native
    model.weight.add_(1)
    with pytest.raises(SignatureError, match="weights as constants, and weight was written to: detach again"):
        handle(x)


@pytest.mark.parametrize("native", [True, False])
def test_a_handle_refuses_a_constant_that_its_module_has_replaced(native: bool) -> None:
    model = model_of()
    handle, x = handle_of(model, native=native)
    model.bias = nn.Parameter(torch.ones(48), requires_grad=False)
    with pytest.raises(SignatureError, match=r"'bias'.*is another tensor now"):
        handle(x)
