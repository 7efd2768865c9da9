"""compile.training, compile.cache and exports: where they act, where they are listed, where they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.models.base import Built
from npucompose.models.inputs import bind
from tests.npu.needs import offline

JOINT = "compiler.experimental_config.aot_config_enable_joint_graph=true"
OFFLINE = ("target=npu_offline", "mode=max-autotune")


def checked(*overrides: str) -> Checked:
    return check(compose(["model=mlp", "pipeline=check", *overrides]))


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    return str(caught.value)


def entries(*overrides: str) -> dict[str, str]:
    return {entry.option: entry.why for entry in checked(*overrides).effective}


# Training.


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_recordings_are_for_inference(mode: str) -> None:
    words = refused(f"mode={mode}", "compile.training=true")
    assert f"compile.training has no effect in mode={mode}" in words
    assert "it takes effect in: max-autotune" in words
    assert "compile.training" in entries(f"mode={mode}", "compile.training=true", "strict=off")


def test_training_is_compared_and_not_measured() -> None:
    assert "not measured: write pipeline=check" in refused(
        "mode=max-autotune", "compile.training=true", "pipeline=bench"
    )


def test_a_device_that_has_no_gradients_lists_it() -> None:
    chosen = ("target=null_device", "mode=max-autotune", "compile.training=true", "pipeline=compile_only")
    assert "no meaning on target=null_device" in entries(*chosen)["compile.training"]
    assert "no meaning on target=null_device" in refused(*chosen, "strict=all")


@offline
def test_a_joint_graph_needs_training() -> None:
    assert "write compile.training=true" in refused(*OFFLINE, JOINT)
    assert entries(*OFFLINE, JOINT, "compile.training=true") == {}


# The cache.


def test_a_laptop_has_no_cache_of_torchair_s_and_says_so() -> None:
    chosen = ("mode=reduce-overhead", "compile.cache=true")
    assert "no meaning on target=cpu in mode=reduce-overhead" in entries(*chosen)["compile.cache"]
    assert "no meaning on target=cpu" in refused(*chosen, "strict=all")
    assert entries("mode=eager", "compile.cache=true")["compile.cache"] == "mode=eager compiles nothing"


@offline
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_the_cache_acts_offline(mode: str) -> None:
    assert entries("target=npu_offline", f"mode={mode}", "compile.cache=true") == {}


@offline
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("compile.training=true", "has no backward"),
        ("compile.fullgraph=false", "caches one whole graph"),
        ("compiler.export.export_mode=true", "a graph is run or exported"),
    ],
)
def test_what_a_cache_cannot_go_with_is_refused(more: str, words: str) -> None:
    assert words in refused(*OFFLINE, "compile.cache=true", more)


# Exports.


@offline
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("pipeline=check", "capture, replay cannot follow. Write pipeline=export."),
        ("compiler.experimental_config.frozen_parameter=true", "an exported graph has no addresses"),
        ("compile.training=true", "exports graphs for inference"),
        ("target.decompose=[aten.addmm]", "dynamo_export takes no decompositions"),
    ],
)
def test_what_an_export_cannot_go_with_is_refused(more: str, words: str) -> None:
    assert words in refused(*OFFLINE, "pipeline=export", "compiler.export.export_mode=true", more)


@offline
def test_the_pipeline_of_that_name_turns_the_export_on_and_tells_what_torchair_turns_on_with_it() -> None:
    made = checked(*OFFLINE, "pipeline=export")
    assert made.experiment.compiler["export.export_mode"]
    assert made.experiment.pipeline.stages == ("compile",)
    assert {e.option: e.effective for e in made.effective} == {
        "compiler.experimental_config.enable_ref_data": True,
    }


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_captured_graphs_cannot_be_exported(mode: str) -> None:
    told = refused(f"mode={mode}", "pipeline=export")
    assert told.startswith("compiler.export.export_mode=true (conf/pipeline/export.yaml, chosen on the command line)")
    assert f" has no effect in mode={mode}; it takes effect in: max-autotune" in told


# What a step with gradients is.


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.weight, (x * self.weight).sum(), torch.arange(2)


def built(module: nn.Module) -> Built:
    return Built(module=module, inputs=lambda step: {"x": torch.tensor([1.0, 5.0])})


def test_a_model_without_a_loss_gets_the_mean_square_of_its_outputs() -> None:
    from npucompose.compose.calls import step, with_loss

    made = with_loss(built(Scaled()), 0)
    found = step(made.module, (made.module,), bind(made.module, made.inputs(0)), 0)
    # (2² + 15²) / 2 of the first output, 17² of the second; the third holds no numbers that have a gradient
    assert [float(loss) for loss in found["outputs"]] == [(4 + 225) / 2 + 17**2]
    assert found["gradients"]["model.weight"].tolist() == [2 * 1 + 2 * 17 * 1, 15 * 5 + 2 * 17 * 5]
    assert all(parameter.grad is None for parameter in made.module.parameters())


def test_a_model_s_own_loss_is_taken_as_it_is() -> None:
    from npucompose.compose.calls import step, with_loss

    made = with_loss(built(Scaled()), 1)
    assert isinstance(made.module, Scaled)
    found = step(made.module, (made.module,), bind(made.module, made.inputs(0)), 1)
    assert found["gradients"]["weight"].tolist() == [1.0, 5.0]


def test_a_model_that_has_nothing_to_train_is_refused() -> None:
    from npucompose.compose.calls import with_loss

    with pytest.raises(ConfigError, match="ReLU has no parameters to train"):
        with_loss(built(nn.ReLU()), 0)


def test_a_wrong_gradient_is_noticed() -> None:
    """The negative control: a compiled model whose weight is another one fails the comparison."""
    from npucompose.compose.calls import step, with_loss
    from npucompose.measure.numerics import compare

    right, wrong = with_loss(built(Scaled()), 0), with_loss(built(Scaled()), 0)
    with torch.no_grad():
        next(wrong.module.parameters()).add_(1e-2)
    inputs = bind(right.module, right.inputs(0))
    one, other = (step(m.module, (m.module,), inputs, 0) for m in (right, wrong))
    assert compare(one, step(right.module, (right.module,), inputs, 0)).bitwise
    assert not compare(one["gradients"], other["gradients"]).passed


@pytest.mark.slow
def test_training_on_a_laptop_is_inductor_s() -> None:
    """One session without a worker: forward and backward pass through our passes, gradients equal eager's."""
    from npucompose.compose.session import Session
    from npucompose.measure.numerics import compare

    session = Session(checked("mode=max-autotune", "compile.training=true", "model.layers=1", "model.hidden=8"))
    assert session.trains
    compiled = session.compiled
    expected = session.call(session.reference, session.inputs(1))
    got = session.call(compiled, session.inputs(1))
    assert set(got["gradients"]) == {"model.layers.0.weight", "model.layers.0.bias"}
    assert compare(expected, got).passed
    assert len(session.compilations) == 2
