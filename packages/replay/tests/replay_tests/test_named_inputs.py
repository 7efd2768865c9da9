"""Inputs reach the parameters of their names however a session calls a model: eager, compiled, detached, trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose.api import checked
from npucompose.compose.comparison import every_step
from npucompose.compose.session import Session
from npucompose.errors import ConfigError, SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.native import Native

FACTORIES = """
from dataclasses import dataclass

import torch
from torch import nn


class Affine(nn.Module):
    def forward(self, x, scale=None, shift=None):
        if scale is not None:
            x = x * scale
        return x if shift is None else x + shift


class Keyword(nn.Module):
    def forward(self, x, *, shift, use_cache=True, name="plain"):
        y = x - shift
        return (y, x) if use_cache else y.neg() if name == "negative" else y


class Open(nn.Module):
    def forward(self, x, *rest, **more):
        return x + 2 * rest[0] + 3 * rest[1] + 4 * more["last"]


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x, scale=None, shift=None):
        return x * self.weight + shift


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Nested(nn.Module):
    def forward(self, parts, weights):
        return parts["left"] - parts["list"][1] * weights[0]


class Opaque(nn.Module):
    def forward(self, pair, shift):
        return pair.left + pair.right.relu() - 2 * shift


X, SHIFT, THIRD = torch.arange(3.0), torch.full((3,), 10.0), torch.full((3,), 100.0)


def left_out():
    return Affine(), {"x": X, "shift": SHIFT}


def other_order():
    return Affine(), {"shift": SHIFT, "scale": THIRD, "x": X}


def keyword_only():
    return Keyword(), {"shift": SHIFT, "x": X}


def constants():
    return Keyword(), {"use_cache": False, "name": "negative", "shift": SHIFT, "x": X}


def open_ended():
    return Open(), {"last": THIRD, "rest": (X, SHIFT), "x": X}


def nested():
    return Nested(), {"weights": (THIRD,), "parts": {"left": X, "list": [X, SHIFT]}}


def opaque():
    return Opaque(), {"shift": SHIFT, "pair": Pair(X, SHIFT)}


def trained():
    return Trained(), {"shift": SHIFT, "x": X}


def misspelt():
    return Affine(), {"x": X, "shfit": SHIFT}


def missing():
    from npucompose.models.base import Built

    return Built(module=Affine(), inputs=lambda step: {"scale": X, "shift": SHIFT})
"""


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "named", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def session(factory: str, *more: str) -> Session:
    return Session(checked(["model=python", "trust=true", f"model.factory=named:{factory}", *more]))


X, SHIFT, THIRD = torch.arange(3.0), torch.full((3,), 10.0), torch.full((3,), 100.0)
WANTED: dict[str, Any] = {
    "left_out": X + SHIFT,
    "other_order": X * THIRD + SHIFT,
    "keyword_only": (X - SHIFT, X),
    "constants": SHIFT - X,
    "open_ended": 3 * X + 3 * SHIFT + 4 * THIRD,
    "nested": X - SHIFT * THIRD,
}


@pytest.mark.parametrize("factory", WANTED)
def test_every_way_to_call_a_model_gives_each_input_to_its_parameter(factory: str) -> None:
    live = session(factory, "mode=reduce-overhead")
    assert live.detached is not None, live.why_attached
    for way in (live.reference, live.compiled, live.detached):
        torch.testing.assert_close(live.call(way, live.inputs(0)), WANTED[factory], rtol=0, atol=0)
    found = every_step(live, lambda _: None)
    assert found.numerics.bitwise
    assert found.ended is None


def test_tensors_inside_an_object_are_compared_and_no_handle_pretends_to_follow_them() -> None:
    live = session("opaque", "mode=reduce-overhead", "shapes.mark_static=[pair]")
    torch.testing.assert_close(live.call(live.compiled, live.inputs(0)), X - SHIFT, rtol=0, atol=0)
    assert live.detached is None
    assert live.why_attached.startswith("argument 0 is a Pair that holds tensors")
    assert every_step(live, lambda _: None).numerics.bitwise


@pytest.mark.parametrize("factory", ["other_order", "left_out", "constants", "nested"])
def test_inputs_by_name_are_replayed_by_the_native_caller(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = session(factory, "mode=reduce-overhead")
    handle = live.detached
    assert handle is not None
    assert isinstance(handle.captured, CapturedGraph)
    if not isinstance(handle.captured.executor, Native):
        pytest.skip("no native replayer on this machine")
    assert (handle._call is not None) is (factory == "other_order"), "by position, where position can say it"

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the handle came back to Python")

    monkeypatch.setattr(handle, "_replay", never)
    torch.testing.assert_close(live.call(handle, live.inputs(0)), WANTED[factory], rtol=0, atol=0)
    swapped = {**live.inputs(1), "x": torch.ones(4)} if factory != "nested" else {**live.inputs(1), "weights": (X, X)}
    with pytest.raises((SignatureError, AssertionError)):
        live.call(handle, swapped)


def test_training_gives_each_input_to_its_parameter() -> None:
    live = session("trained", "mode=max-autotune", "compile.training=true", "pipeline=check")
    with torch.enable_grad():
        loss = ((X * 2 + SHIFT) ** 2).mean()
    found = live.call(live.reference, live.inputs(0))
    torch.testing.assert_close(found["outputs"][0], loss)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("misspelt", ": forward of Affine cannot be called with the inputs shfit, x: it"),
        (
            "missing",
            "model named.missing: forward of Affine cannot be called with the inputs scale, shift: 'x' has no default",
        ),
    ],
)
def test_names_that_do_not_bind_are_refused_before_anything_is_compiled(factory: str, words: str) -> None:
    live = session(factory)
    with pytest.raises(ConfigError) as caught:
        live.compiled  # noqa: B018
    assert words in str(caught.value)
    assert "Its signature is (x, scale=None, shift=None)." in str(caught.value)


def test_a_number_by_name_is_a_constant_or_a_symbol_as_the_shape_policy_says(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(
        FACTORIES
        + """

class Repeated(nn.Module):
    def forward(self, x, *, times):
        return x.repeat(times)


def numbers():
    return Repeated(), {"times": 3, "x": X}
"""
    )
    for shapes, symbols in (("static", 0), ("dynamic", 1)):
        live = session("numbers", f"shapes={shapes}", "model.sequence=[{times: 4}]")
        assert live.call(live.compiled, live.inputs(1, {"times": 4})).shape == (12,)
        assert bool(live.compilations[0].before.symbols) is bool(symbols)
        assert len(live.compilations) == 2 - symbols
