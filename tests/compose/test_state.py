"""What a call changes in a model is found by name, and rewound in place where the objects are still there."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.compose.state import ModelState, Spot, _equal, words_of


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


def changed(module: nn.Module, state: ModelState) -> list[str]:
    return [words_of(spot.path) for spot in state.changed(module) if spot.known]


def test_a_copy_of_a_model_differs_in_nothing_from_its_start() -> None:
    module: Any = Holder()
    state = ModelState(module)
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
    state = ModelState(module)
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
    state = ModelState(module)
    module.pair = (torch.ones(3), 7)
    state.rewind_all(module)
    assert (module.pair[0].tolist(), module.pair[1]) == ([0.0, 0.0], 0)


def test_what_is_one_object_in_two_places_stays_one() -> None:
    module: Any = Holder()
    module.again = module.seen
    state = ModelState(module)
    module.again = None
    module.seen[0].add_(1)
    state.rewind_all(module)
    assert module.again is module.seen
    assert module.seen[0].tolist() == [0.0, 0.0]


def test_buffers_are_rewound_by_themselves_also_where_a_call_replaced_them() -> None:
    module: Any = Holder()
    state, held = ModelState(module), module.total
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
        ModelState(Refuses())


def test_state_that_decides_is_rewound_with_the_buffers_and_nothing_else_is_looked_at() -> None:
    module: Any = Holder()
    state = ModelState(module)
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


class Plain:
    """Two of them are told apart by nothing but their identity."""

    __slots__ = ()


class Refusing(Plain):
    __slots__ = ()

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not this one")


def test_objects_that_nobody_can_tell_apart_may_have_changed_and_are_put_back_as_copies() -> None:
    module: Any = Holder()
    module.plain = Plain()
    state = ModelState(module)
    (spot,) = state.changed(module)
    assert (spot.path, spot.known, spot.in_place, spot.is_buffer) == ("plain", False, False, False)
    held = module.plain
    state.rewind_all(module)
    assert type(module.plain) is Plain
    assert module.plain is not held, "nobody knows what is in it: it is made anew"
    state.outside = ("plain", "count")
    module.count = 3
    assert state.outside_of(module) == {"plain": "as it was built", "count": 3}


def test_a_spot_that_is_not_known_and_cannot_be_copied_stays() -> None:
    module: Any = Holder()
    module.odd = Refusing()
    state, held = ModelState(module), module.odd
    module.odd = other = Refusing()
    assert [(spot.path, spot.known) for spot in state.changed(module)] == [("odd", False)]
    state.rewind_all(module)
    assert module.odd is other
    assert state.copy().odd is held


def test_what_lies_outside_is_rewound_in_place_or_with_all_that_refers_to_it() -> None:
    module: Any = Holder()
    state = ModelState(module)
    state.outside = ("seen[0]", "count")
    held = module.seen[0]
    held.add_(1)
    state.rewind(module)
    assert (module.seen[0] is held, held.tolist()) == (True, [0.0, 0.0])
    module.count, module.pair = 4, "other"
    state.rewind(module)
    assert (module.count, module.pair[1]) == (0, 0), "where something was replaced all is rewound"
    assert state.outside_of(module) == {"seen[0]": "as it was built", "count": "as it was built"}
    assert ModelState(module).outside_of(module) == {}


def test_a_buffer_is_one_then_and_now() -> None:
    module: Any = Holder()
    module.register_buffer("maybe", None)
    state = ModelState(module)
    module.maybe = torch.ones(1)
    module.total.add_(1)
    assert changed(module, state) == ["maybe"], "no tensor at first: `rewind` knows nothing of it"
    state.rewind_all(module)
    assert module.maybe is None
    assert module.total.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("now", "start", "same"),
    [
        (torch.zeros(2), torch.ones(2), True),
        (torch.zeros(2), torch.ones(3), False),
        (torch.zeros(2), torch.ones(2, dtype=torch.float64), False),
        (torch.zeros(2), torch.ones(2).to_sparse(), False),
        (torch.zeros(2), torch.zeros(2, device="meta"), False),
        (torch.zeros(2), 0, False),
        (0, 0, False),
        (torch.Generator(), torch.Generator(), True),
        (torch.Generator(), torch.zeros(2), False),
    ],
)
def test_a_tensor_is_written_in_place_where_it_has_the_same_form(now: Any, start: Any, same: bool) -> None:
    spot = Spot("x", now, start, lambda _: None)
    assert spot.in_place is same
    assert not spot.is_buffer


def test_a_copy_shares_parameters_and_nothing_else() -> None:
    module: Any = Holder()
    module.tied = module.weight
    copy = ModelState(module).copy()
    assert copy.weight is copy.tied is module.weight
    assert copy.total is not module.total
    assert copy.inner.weight is module.inner.weight
    assert copy.seen[0] is not module.seen[0]
    assert copy.functions["own"].__self__ is copy


class Raising:
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")


class Rows:
    """Compared element by element, as arrays are."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows

    def __eq__(self, other: Any) -> Any:
        return torch.tensor([a == b for a, b in zip(self.rows, other.rows, strict=True)])

    __hash__ = None  # type: ignore[assignment]


def test_what_cannot_be_compared_counts_as_equal() -> None:
    module: Any = Holder()
    module.odd = Raising()
    state = ModelState(module)
    assert state.changed(module) == []
    module.odd = Raising()
    assert state.changed(module) == []


@pytest.mark.parametrize(
    ("now", "start", "equal"),
    [
        (1, 1, True), (1, 2, False), (math.nan, math.nan, True), (math.nan, 1.0, False), ("a", "a", True),
        (Rows(1, 2), Rows(1, 2), True), (Rows(1, 2), Rows(1, 3), False), (Raising(), Raising(), True),
        (torch.zeros(1), -torch.zeros(1), False), (torch.zeros(1), torch.zeros(1), True),
        (torch.zeros(1), torch.zeros(2), False), (torch.zeros(2).to_sparse(), torch.ones(2).to_sparse(), True),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1), True),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), False),
    ],
)  # fmt: skip
def test_two_values_are_equal_bit_for_bit(now: Any, start: Any, equal: bool) -> None:
    assert _equal(now, start) is equal
