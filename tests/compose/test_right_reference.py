"""Whose difference is it: the model's own, tracing's, a pass's, or that of what replays the graph?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose.api import checked
from npucompose.compose.comparison import compared, every_step
from npucompose.compose.session import Session
from npucompose.results.measured import Numerics

FACTORIES = '''
import random

import numpy as np
import torch
from torch import nn
from torch.compiler import is_compiling

CALLS = [0]
X = {"x": torch.linspace(-1, 1, 6).reshape(2, 3)}


class Model(nn.Module):
    """Keeps a running sum in a buffer, and does `forward_of` with it."""

    def __init__(self, forward_of=None):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.forward_of = forward_of

    def forward(self, x):
        self.total.add_(x.sum(0))
        return self.forward_of(x, self.total).sin()


def other_bits():
    return Model(lambda x, total: (x + total) * (1 + 2e-7 if is_compiling() else 1)), X


def other_numbers():
    return Model(lambda x, total: (x + total) * (1.5 if is_compiling() else 1)), X


def rounding():
    def wobbling(x, total):
        CALLS[0] += not is_compiling()
        return x * total * (1 if is_compiling() else 1 + 2e-7 * (CALLS[0] % 2))

    return Model(wobbling), X


def same():
    return Model(lambda x, total: x * total), X


class Cached(nn.Module):
    """A cache of plain tensors in an attribute that is no buffer, written in place, as transformers' StaticCache."""

    def __init__(self):
        super().__init__()
        self.cache = {"keys": torch.zeros(8, 3), "position": torch.tensor(0)}

    def forward(self, x):
        at = self.cache["position"] + torch.arange(2)
        self.cache["keys"].index_copy_(0, at, x)
        self.cache["position"].add_(2)
        return self.cache["keys"].cumsum(0)


def cached():
    return Cached(), X


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def counted():
    return Counted(), X


class Logged(nn.Module):
    """Changes an attribute that decides nothing."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        self.last = tuple(x.shape)
        return x + 1


def logged():
    return Logged(), X


def drawing():
    return Model(lambda x, total: x + torch.rand_like(x)), X


def python_numbers():
    return Model(lambda x, total: x + random.random() + float(np.random.rand())), X


def unseeded():
    source = np.random.default_rng()
    return Model(lambda x, total: x + float(source.random())), X


def outside_of_it():
    def counting(x, total):
        CALLS[0] += 1
        return x * CALLS[0]

    return Model(counting), X


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.weight.add_(1)
        return x * self.weight


def writing():
    return Writing(), X


def other_inputs():
    from npucompose.models.base import Built

    return Built(module=nn.ReLU(), inputs=lambda step: {"input": torch.rand(3)})


def wrong_pass(gm, example_inputs, config):
    """sin becomes cos, and nobody says so."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default
    gm.recompile()


def slight_pass(gm, example_inputs, config):
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            with gm.graph.inserting_after(node):
                scaled = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1 + 1e-6))
            node.replace_all_uses_with(scaled, delete_user_cb=lambda user, scaled=scaled: user is not scaled)
            scaled.meta.update(node.meta)
    gm.recompile()
'''


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whose.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "whose", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def session(factory: str, *more: str) -> Session:
    chosen = ("mode=reduce-overhead", *more)
    return Session(checked(["model=python", "trust=true", f"model.factory=whose:{factory}", *chosen]))


def verdict(live: Session) -> Numerics:
    return every_step(live, lambda _: None).numerics


# Tracing, passes, replay.


def test_a_replay_of_a_graph_whose_tracing_changed_the_last_bits_is_right() -> None:
    found = verdict(session("other_bits"))
    assert (found.passed, found.bitwise, found.cause, found.problems) == (True, False, None, ())
    assert found.replay is not None
    assert found.replay.bitwise
    assert found.tracing is not None
    assert found.tracing.max_abs_err == found.max_abs_err
    assert 0 < (found.max_abs_err or 0) < 1e-5
    assert found.passes is None


@pytest.mark.parametrize("mode", ["reduce-overhead", pytest.param("max-autotune", marks=pytest.mark.slow)])
def test_tracing_that_changes_more_than_rounding_fails_in_its_own_name(mode: str) -> None:
    found = verdict(session("other_numbers", f"mode={mode}"))
    assert (found.passed, found.cause) == (False, "tracing")
    assert found.replay is not None
    assert found.replay.passed


@pytest.mark.parametrize("factory", ["same", "other_bits"])
def test_a_replay_that_changes_its_graph_by_a_bit_is_wrong(factory: str) -> None:
    """The negative control: within every tolerance, and not what was traced."""
    live = session(factory)
    live.compiled  # noqa: B018  compiles

    def off_by_a_bit(*args: Any, **kwargs: Any) -> Any:
        return torch.nextafter(live.compiled(*args, **kwargs), torch.tensor(torch.inf))

    found = compared(live, off_by_a_bit, 0, {}, name="step 0").numerics
    assert (found.passed, found.cause) == (False, "replay")
    assert found.replay is not None
    assert not found.replay.bitwise
    assert "tolerance 0" in found.problems[0]


def test_a_replay_that_leaves_another_state_is_wrong() -> None:
    live = session("same")
    live.compiled  # noqa: B018  compiles

    def forgets(*args: Any, **kwargs: Any) -> Any:
        result = live.compiled(*args, **kwargs).clone()
        live.built.module.total.zero_()  # type: ignore[operator]
        return result

    assert compared(live, forgets, 0, {}, name="step 0").numerics.cause == "replay"


@pytest.mark.parametrize("step", [0, 2])
def test_the_traced_graph_has_been_through_all_calls_before(step: int) -> None:
    live = session("other_bits")
    for at in range(step + 1):
        found = compared(live, live.compiled, at, {}, name=f"step {at}").numerics
        assert found.replay is not None
        assert found.replay.bitwise, at


def test_a_pass_that_changes_the_graph_is_told_from_the_replay_of_what_it_made() -> None:
    found = verdict(session("same", "passes=python", "passes.python.function=whose:slight_pass"))
    assert (found.passed, found.bitwise, found.cause) == (True, False, None)
    assert found.tracing is not None
    assert found.passes is not None
    assert found.replay is not None
    assert (found.tracing.bitwise, found.passes.bitwise, found.replay.bitwise) == (True, False, True)
    wrong = verdict(session("same", "passes=python", "passes.python.function=whose:wrong_pass"))
    assert (wrong.passed, wrong.cause) == (False, "passes")
    assert wrong.replay is not None
    assert wrong.replay.bitwise


def test_asking_the_traced_graph_leaves_no_trace_in_what_is_reported() -> None:
    live = session("other_bits", "model.sequence=[{x.0: 3}]")
    assert verdict(live).passed
    assert live.compiled_once
    found = compared(live, live.compiled, 1, {"x.0": 3}, name="call 1")
    assert [one.compile_id for one in found.recompiles] == ["0/1"]
    assert found.recompiles[0].argument == "x"


# A model that differs from itself.


def test_state_in_an_attribute_is_named_and_rewound_so_that_the_model_can_be_compared() -> None:
    """Observation 14, in small: called twice it differs from itself, and it is right all the same."""
    live = session("cached")
    found = verdict(live)
    assert (found.bitwise, found.passed, found.cause) == (True, True, None)
    assert found.model is not None
    assert "keeps state outside its buffers, in 'cache['keys']', 'cache['position']'" in found.model
    assert live.detached is not None, live.why_attached


def test_a_compiled_cache_that_lies_elsewhere_than_eager_s_is_wrong() -> None:
    """What lies outside the buffers is compared too."""
    live = session("cached")
    live.compiled  # noqa: B018  compiles

    def forgets(*args: Any, **kwargs: Any) -> Any:
        result = live.compiled(*args, **kwargs).clone()
        live.built.module.cache["position"].zero_()  # type: ignore[operator,index]
        return result

    found = compared(live, forgets, 0, {}, name="step 0").numerics
    assert not found.passed
    assert "position" in found.problems[0]


def test_a_counter_in_python_is_rewound_and_no_handle_leaves_it_out() -> None:
    live = session("counted")
    found = verdict(live)
    assert found.bitwise
    assert live.detached is None
    assert live.why_attached == "a call changes 'calls' in Python, which a replay would leave out"


@pytest.mark.parametrize("factory", ["logged", "drawing", "python_numbers"])
def test_what_decides_nothing_and_what_is_seeded_is_no_false_alarm(factory: str) -> None:
    live = session(factory, "mode=eager")
    found = verdict(live)
    assert (found.bitwise, found.model) == (True, None)
    assert live.steadiness.repeats


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("unseeded", "none of its attributes changed: it draws numbers from a source of its own"),
        ("outside_of_it", "none of its attributes changed"),
        ("writing", "it writes to its parameters ('weight'), which all sides share"),
        ("other_inputs", "the example inputs are others each time they are asked for"),
    ],
)
def test_a_model_that_differs_from_itself_fails_in_its_own_name_and_once(factory: str, words: str) -> None:
    found = verdict(session(factory, "mode=eager"))
    assert (found.passed, found.cause) == (False, "model")
    assert words in (found.model or "")
    assert found.problems == (found.model,)


def test_eager_that_repeats_within_rounding_only_is_compared_within_rounding() -> None:
    live = session("rounding")
    found = verdict(live)
    assert not live.steadiness.repeats
    assert (found.passed, found.cause) == (True, None)
    assert "the model differs from itself" in (found.model or "")
