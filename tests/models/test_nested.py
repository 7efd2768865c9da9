"""Values that hold tensors somewhere inside; a user's inputs in another order."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.models import MODELS, Built
from npucompose.models.inputs import Bound, bind, mapped, opened, signature_of, tensors_of
from npucompose.models.python import Python, _described, _permuted, _reordered, takes_seed

ONE, TWO, THREE = torch.ones(1), torch.ones(2), torch.ones(3)


class Row(NamedTuple):
    a: Any
    b: Any


@dataclass
class Data:
    a: Any


class Held:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Same(Held):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    __hash__ = None  # type: ignore[assignment]


class Table(dict):  # type: ignore[type-arg]
    pass


def sizes(value: Any) -> list[int]:
    return [tensor.numel() for tensor in tensors_of(value)]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (ONE, [1]), ([TWO, ONE], [2, 1]), ((ONE, [TWO]), [1, 2]), ({"b": TWO, "a": ONE}, [2, 1]),
        (Row(THREE, ONE), [3, 1]),
        (Data([TWO]), [2]), (Held(x=ONE, y=Held(z=TWO)), [1, 2]), ([ONE, ONE, [ONE]], [1]), ({1: {2: {3: THREE}}}, [3]),
        (SimpleNamespace(a=ONE), [1]), (frozenset({ONE}), [1]), (Table(a=TWO), [2]), (None, []), ("abc", []),
        (b"x", []),
        (3, []), (2.5, []), (Held, []), (lambda: ONE, []), (torch.return_types.max((ONE, TWO)), [1, 2]), (range(3), []),
    ],
)  # fmt: skip
def test_every_tensor_is_found_once_in_the_order_of_what_holds_it(value: Any, found: list[int]) -> None:
    assert sizes(value) == found


def test_what_holds_itself_is_walked_once() -> None:
    held = Held(x=ONE)
    held.again, held.rest = held, [held, TWO]
    assert sizes(held) == [1, 2]


def test_a_changed_copy_leaves_the_value_alone() -> None:
    value = {"a": [ONE, Held(x=TWO)], "n": 3}
    other: Any = mapped(value, lambda t: t * 2)
    assert (other["a"][0].item(), other["a"][1].x.tolist(), other["n"]) == (2.0, [2.0, 2.0], 3)
    assert (ONE.item(), TWO.tolist(), value["a"][1] is other["a"][1]) == (1.0, [1.0, 1.0], False)


def test_objects_are_opened_to_any_depth_and_what_can_be_compared_stays() -> None:
    same = Same(x=1)
    value = [Held(keys=ONE, inner=Data(a=Held(n=2))), {"b": Row(1, TWO)}, same, "text", Held]
    assert opened(value) == [
        {"Held": {"keys": ONE, "inner": {"Data": {"a": {"Held": {"n": 2}}}}}}, {"b": Row(1, TWO)}, same, "text", Held,
    ]  # fmt: skip
    assert opened(Table(a=Held(x=1))) == {"Table": {"a": {"Held": {"x": 1}}}}
    round_ = Held(n=1)
    round_.self = [round_]
    assert opened(round_) == {"Held": {"n": 1, "self": ["the Held around it"]}}
    twice = Held(n=1)
    assert opened([twice, twice]) == [{"Held": {"n": 1}}, {"Held": {"n": 1}}], "beside itself is not around itself"
    assert opened(ONE) is ONE


# Binding.


class Open:
    def forward(self, x: Any, /, y: Any = 1, *rest: Any, z: Any = 2, **more: Any) -> Any:
        return x, y, rest, z, more


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        ({"x": 1}, (1,), {}), ({"x": 1, "y": 2}, (1, 2), {}), ({"x": 1, "rest": (5,)}, (1, 1, 5), {"z": 2}),
        ({"z": 3, "x": 1}, (1,), {"z": 3}), ({"x": 1, "a": 4}, (1,), {"a": 4}),
        ({"x": 1, "more": {"b": 5}, "a": 4}, (1,), {"b": 5, "a": 4}), ({"x": 1, "more": 6}, (1,), {"more": 6}),
    ],
)  # fmt: skip
def test_what_may_go_by_position_does_up_to_the_first_that_is_left_out(inputs: Any, args: Any, kwargs: Any) -> None:
    assert bind(Open(), inputs) == Bound(args, kwargs)


def test_a_call_whose_signature_nobody_knows_takes_names() -> None:
    assert signature_of(SimpleNamespace(forward=3)) is None
    assert bind(SimpleNamespace(forward=3), {"a": 1}) == Bound((), {"a": 1})


def test_a_refusal_shows_the_signature_without_annotations_and_long_defaults() -> None:
    def many(x: int, y: str = "short", z: Any = tuple(range(30)), w: str = "x" * 27, v: str = "x" * 28) -> None: ...

    with pytest.raises(ConfigError) as refused:
        bind(many, {"q": 1}, "here")
    text = str(refused.value)
    assert text.endswith(f"Its signature is (x, y='short', z=Ellipsis, w='{'x' * 27}', v=Ellipsis).")
    assert "it has no parameter 'q'; 'x' has no default and is missing." in text
    with pytest.raises(ConfigError, match=r"^forward of Open cannot be called with the inputs y: 'x' has no default"):
        bind(Open(), {"y": 1})
    assert bind(lambda **more: more, {"a": 1}) == Bound((), {"a": 1})


# A user's inputs.


def test_floating_point_tensors_are_reordered_by_seed_and_step_and_others_stay() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()
    given = {"x": x, "n": torch.arange(5), "flag": torch.tensor([True, False]), "s": "text"}
    first, again, second = (_reordered(given, 1, step) for step in (0, 1, 1))
    assert torch.equal(first["x"], x)
    assert first["x"] is not x
    assert torch.equal(again["x"], second["x"])
    assert not torch.equal(again["x"], x)
    assert sorted(again["x"].flatten().tolist()) == list(range(12))
    assert again["x"].stride() == x.stride()
    assert all(torch.equal(again[name], given[name]) for name in ("n", "flag"))
    assert not torch.equal(_reordered(given, 2, 1)["x"], again["x"])
    other = _reordered(dict(reversed(given.items())), 1, 1)
    assert torch.equal(other["x"], again["x"]), "the order in which they are written says nothing"
    two = _reordered({"b": x, "a": x.clone()}, 1, 1)
    assert not torch.equal(two["a"], two["b"])


def test_a_reordered_tensor_has_its_elements_where_the_order_says() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    found = _permuted(x, torch.Generator().manual_seed(3))
    assert found.flatten().tolist() == x.flatten()[order].tolist()
    assert x.flatten().tolist() == list(range(6))


def test_a_factory_gets_the_seed_where_it_can_be_named() -> None:
    def named(seed: int) -> None: ...
    def keyword(*, seed: int = 0) -> None: ...
    def nameless(seed: int, /) -> None: ...
    def none(sed: int = 0) -> None: ...

    assert [takes_seed(inspect.signature(one)) for one in (named, keyword, nameless, none)] == [
        True,
        True,
        False,
        False,
    ]
    assert [_described(value) for value in (3, (1, 2), "a")] == ["an int", "a tuple of 2", "a str"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Built(module=3, inputs=dict), "returned a Built whose module is an int; it must return"),  # type: ignore[arg-type]
        ((torch.nn.Identity(), [1]), "returned a tuple of a Identity and a list"),
        ((3, {"x": 1}), "returned a tuple of an int and a dict"),
        ([torch.nn.Identity(), {}], "returned a list"),
    ],
)
def test_what_a_factory_makes_is_a_module_with_its_inputs(made: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Python(factory="json:loads")._built(made, 0)


def test_only_a_users_own_code_needs_trust() -> None:
    assert [name for name in MODELS.names() if MODELS.get(name).needs_trust] == ["python"]
