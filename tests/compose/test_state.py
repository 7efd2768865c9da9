"""What a call changes in a model is found by name, and rewound in place where the objects are still there."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.compose.state import State, words_of


class Cache:
    __slots__ = ("keys", "length")

    def __init__(self) -> None:
        self.keys, self.length = torch.zeros(2), 0


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("total", torch.zeros(2))
        self.inner = nn.Linear(2, 2)
        self.cache = {"first": Cache()}
        self.seen = [torch.zeros(2)]
        self.recent = deque([torch.zeros(1)], maxlen=2)
        self.pair = (torch.zeros(2), 0)
        self.count = 0
        self.nan = math.nan
        self.generator = torch.Generator().manual_seed(5)
        self.lock = threading.Lock()
        self.functions = {"act": torch.relu, "own": self.forward}

    def forward(self, x: Any) -> Any:
        return x


def changed(module: nn.Module, state: State) -> list[str]:
    return [words_of(spot.path) for spot in state.changed(module) if spot.known]


def test_a_copy_of_a_model_differs_in_nothing_from_its_start() -> None:
    module: Any = Holder()
    state = State(module)
    assert changed(module, state) == changed(state.copy(), state) == []
    assert state.copy().weight is module.weight
    assert state.copy().lock is module.lock


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda m: m.cache["first"].keys.add_(1), "cache['first'].keys"),
        (lambda m: setattr(m.cache["first"], "length", 3), "cache['first'].length"),
        (lambda m: m.cache.update(second=Cache()), "cache['second']"),
        (lambda m: m.cache.clear(), "cache['first']"),
        (lambda m: m.seen[0].add_(1), "seen[0]"),
        (lambda m: m.seen.append(torch.ones(1)), "seen"),
        (lambda m: m.recent[0].add_(1), "recent[0]"),
        (lambda m: m.pair[0].add_(1), "pair[0]"),
        (lambda m: setattr(m, "pair", (m.pair[0], 4)), "pair[1]"),
        (lambda m: setattr(m, "count", 1), "count"),
        (lambda m: setattr(m.inner, "made", torch.ones(1)), "inner.made"),
        (lambda m: delattr(m, "nan"), "nan"),
        (lambda m: torch.rand(1, generator=m.generator), "generator"),
        (lambda m: setattr(m, "seen", "gone"), "seen"),
    ],
)
def test_every_change_is_named_and_rewound(change: Any, path: str) -> None:
    module: Any = Holder()
    state = State(module)
    held = module.cache["first"].keys, module.seen[0], module.pair[0], module.generator
    change(module)
    assert changed(module, state) == [path]
    state.rewind_all(module)
    assert changed(module, state) == []
    if path.endswith((".keys", "[0]", "generator")):
        now = module.cache["first"].keys, module.seen[0], module.pair[0], module.generator
        assert all(a is b for a, b in zip(held, now, strict=True))
    change(module)
    assert changed(module, state) == [path], "the start itself must not be what is written to"


def test_two_members_of_a_tuple_are_put_back_together() -> None:
    module: Any = Holder()
    state = State(module)
    module.pair = (torch.ones(3), 7)
    state.rewind_all(module)
    assert (module.pair[0].tolist(), module.pair[1]) == ([0.0, 0.0], 0)


def test_what_is_one_object_in_two_places_stays_one() -> None:
    module: Any = Holder()
    module.again = module.seen
    state = State(module)
    module.again = None
    module.seen[0].add_(1)
    state.rewind_all(module)
    assert module.again is module.seen
    assert module.seen[0].tolist() == [0.0, 0.0]


def test_buffers_are_rewound_by_themselves_also_where_a_call_replaced_them() -> None:
    module: Any = Holder()
    state, held = State(module), module.total
    module.total.add_(1)
    module.count = 9
    assert changed(module, state) == ["count"]
    state.rewind(module)
    assert (module.total.tolist(), module.total is held, module.count) == ([0.0, 0.0], True, 9)
    module.total = torch.ones(5)
    state.rewind(module)
    assert module.total.tolist() == [0.0, 0.0]


def test_an_attribute_that_nothing_can_copy_is_shared_and_a_module_of_only_those_is_an_error() -> None:
    class Refuses(nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("no copies")

    with pytest.raises(RuntimeError, match="no copies"):
        State(Refuses())


def test_state_that_decides_is_rewound_with_the_buffers_and_nothing_else_is_looked_at() -> None:
    module: Any = Holder()
    state = State(module)
    state.outside = ("cache['first'].keys",)
    keys = module.cache["first"].keys
    keys.add_(1)
    module.total.add_(1)
    module.count = 9
    assert state.outside_of(module) == {"cache['first'].keys": keys}
    state.rewind(module)
    assert module.cache["first"].keys is keys
    assert (keys.tolist(), module.total.tolist(), module.count) == ([0.0, 0.0], [0.0, 0.0], 9)
    assert state.outside_of(module) == {"cache['first'].keys": "as it was built"}
    module.cache = {}
    state.rewind(module)
    assert module.cache["first"].keys.tolist() == [0.0, 0.0]
