"""A handle looks after the tensors that modules keep anywhere, not only after parameters and buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npucompose
from npucompose.errors import SignatureError
from npucompose_replay.front.detached import DetachedHandle, detach_call
from npucompose_replay.front.owners import kept_by


def scaled_by(kept: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * kept.scale


class Keeps(nn.Module):
    """Takes one tensor from wherever `where` puts it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
        self.where = where
        self.put(torch.full((3,), 3.0))

    def put(self, scale: Tensor) -> None:
        kept = SimpleNamespace(scale=scale)
        self.__dict__["kept"] = {
            "attribute": scale,
            "object": kept,
            "dict": {"scale": scale},
            "tuple": (scale, 1),
            "partial": functools.partial(torch.mul, scale),
            "keyword": functools.partial(torch.mul, other=scale),
            "closure": scaled_by(kept),
        }[self.where]

    def forward(self, x: Tensor) -> Tensor:
        kept: Any = self.kept
        x = x + self.weight
        match self.where:
            case "attribute":
                return x * kept
            case "object":
                return x * kept.scale
            case "dict":
                return x * kept["scale"]
            case "tuple":
                return x * kept[0]
            case _:
                return kept(x)


PLACES = ("attribute", "object", "dict", "tuple", "partial", "keyword", "closure")


def handle_of(model: nn.Module, x: Tensor) -> DetachedHandle:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=npucompose.backend("mode=reduce-overhead"), dynamic=False)
    with torch.no_grad():
        return detach_call(lambda: compiled(x), (x,), {}, modules=model.modules())


@pytest.mark.parametrize("where", PLACES)
def test_a_tensor_that_took_the_place_of_another_is_noticed(where: str) -> None:
    model, x = Keeps(where), torch.randn(2, 3)
    handle = handle_of(model, x)
    assert handle.unwatched == 0
    with torch.no_grad():
        assert torch.equal(handle(x), model(x))
        model.put(torch.full((3,), 5.0))
        with pytest.raises(SignatureError, match=r"captured with .* that is another .*now .*detach again"):
            handle(x)


@pytest.mark.parametrize("where", PLACES)
def test_a_compiled_module_follows_it(where: str) -> None:
    torch._dynamo.reset()
    model, x = Keeps(where), torch.randn(2, 3)
    fast = npucompose.compile(model, "mode=reduce-overhead")
    with torch.no_grad():
        for value in (3.0, 3.0, 5.0, 5.0, 7.0):
            model.put(torch.full((3,), value))
            assert torch.equal(fast(x), model(x)), value


def test_another_tensor_deep_in_an_object_that_stays_is_noticed() -> None:
    model, x = Keeps("closure"), torch.randn(2, 3)
    kept = SimpleNamespace(scale=torch.full((3,), 3.0))
    model.__dict__["kept"] = scaled_by(kept)
    handle = handle_of(model, x)
    kept.scale = torch.full((3,), 4.0)
    with torch.no_grad(), pytest.raises(SignatureError, match="'scale'"):
        handle(x)


def rebinding(scale: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], None], Callable[[], None]]:
    """A function that closes over a tensor, what puts another there, and what leaves nothing there."""

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    def put(another: Tensor) -> None:
        nonlocal scale
        scale = another

    def remove() -> None:
        nonlocal scale
        del scale

    return scaled, put, remove


def test_a_variable_that_a_function_closes_over_and_that_is_bound_anew_is_noticed() -> None:
    model, x = Keeps("closure"), torch.randn(2, 3)
    first = torch.full((3,), 3.0)
    model.__dict__["kept"], put, remove = rebinding(first)
    handle = handle_of(model, x)
    assert handle.unwatched == 0
    with torch.no_grad():
        for _ in range(2):
            put(torch.full((3,), 4.0))
            with pytest.raises(SignatureError, match=r"a tensor 'scale' .* that is another tensor now .*detach again"):
                handle(x)
            put(first)
            assert torch.equal(handle(x), model(x))
        remove()
        with pytest.raises(SignatureError, match=r"a tensor 'scale' .* that is gone"):
            handle(x)


def test_a_compiled_module_follows_a_variable_that_is_bound_anew() -> None:
    torch._dynamo.reset()
    model, x = Keeps("closure"), torch.randn(2, 3)
    model.__dict__["kept"], put, _ = rebinding(torch.full((3,), 3.0))
    fast = npucompose.compile(model, "mode=reduce-overhead")
    with torch.no_grad():
        for value in (3.0, 3.0, 5.0, 5.0, 7.0):
            put(torch.full((3,), value))
            assert torch.equal(fast(x), model(x)), value


def test_an_attribute_that_leads_to_no_tensor_of_the_call_may_change() -> None:
    model, x = Keeps("object"), torch.randn(2, 3)
    model.__dict__["beside"] = SimpleNamespace(of=torch.ones(1))
    handle = handle_of(model, x)
    model.__dict__["beside"] = None
    with torch.no_grad():
        assert torch.equal(handle(x), model(x))


def test_a_tensor_that_stands_where_nobody_looks_is_counted() -> None:
    model, scale = nn.Linear(3, 3), torch.ones(3)
    model.__dict__["items"] = [scale]
    kept = kept_by(model.modules(), [model.weight, scale, 4])
    assert (kept.unwatched, [name for _, name, _ in kept.entries]) == (1, ["weight"])
    model.__dict__["far"] = {"a": {"b": {"c": {"d": scale}}}}
    assert kept_by(model.modules(), [scale]).unwatched == 1
    model.__dict__["near"] = {"a": {"b": {"c": scale}}}
    found = kept_by(model.modules(), [scale])
    assert (found.unwatched, [name for _, name, _ in found.entries]) == (0, ["near", "a", "b", "c"])


def test_tuples_are_steps_as_names_are() -> None:
    model, scale = nn.Linear(3, 3), torch.ones(3)
    model.__dict__["far"] = ((((scale,),),),)
    assert kept_by(model.modules(), [scale]).unwatched == 1
    model.__dict__["near"] = (((scale,),),)
    assert kept_by(model.modules(), [scale]).unwatched == 0


def test_a_module_that_is_not_among_them_and_a_class_are_not_looked_into() -> None:
    model, inner, scale = nn.Linear(3, 3), nn.Linear(3, 3), torch.ones(3)
    inner.__dict__["scale"] = scale
    model.__dict__["beside"] = inner
    model.__dict__["kind"] = type("Kind", (), {"scale": scale})
    assert kept_by([model], [scale]).unwatched == 1
    assert kept_by([model, inner], [scale]).unwatched == 0


def test_what_refers_to_itself_ends() -> None:
    model, scale = nn.Linear(3, 3), torch.ones(3)
    around: dict[str, Any] = {}
    around["again"] = around
    model.__dict__["around"] = around
    assert kept_by(model.modules(), [scale]).unwatched == 1


def test_a_function_that_closes_over_what_is_not_there_yet_leads_nowhere() -> None:
    model, scale = nn.Linear(3, 3), torch.ones(3)

    def made() -> Callable[[], Any]:
        def function() -> Any:
            return later

        if scale is None:
            later = scale
        return function

    model.__dict__["function"] = made()
    assert kept_by(model.modules(), [scale]).unwatched == 1
