"""Every odd tensor given to every front with every executor: the answer is eager's or a refusal, nothing is spoilt, and
under sanitizers (`make test-sanitized`) no memory is touched that is not the tensor's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from replay_tests.semantics.rows import Row
from replay_tests.semantics.ways import WAYS, Way
from tests.odd_tensors import MAKERS, PLAIN, SHAPE

KINDS = {**MAKERS, **PLAIN}
WITHOUT_MEMORY = ("over nothing", "freed")
"""These have to be refused. Of memory that was cut short, eager itself reads what is not there."""
AS_EAGER = ("zeros", "sparse", "for mkldnn", "of a class of its own", *PLAIN)
"""Those of which eager makes numbers that can be compared."""


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu() + 1


def came_to(call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> tuple[Any, str]:
    """(the result, why there is none)."""
    try:
        return call(x, w), ""
    except Exception as error:  # noqa: BLE001  whatever an odd tensor does: eager says whether it is right
        return None, type(error).__name__


def differs(call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether there is a result that is not eager's."""
    (got, refused), (wanted, _) = came_to(call, x, w), came_to(step, x, w)
    return not refused and (wanted is None or not torch.allclose(got.to_dense(), wanted.to_dense()))


def problems(way: Way) -> dict[str, str]:
    """{kind: what was wrong}, of one compiled function that is called with all of them, a plain tensor after each."""
    call = way(Row(theme="odd", name="tensors", make=lambda compiled: compiled(step)))(step)
    wrong: dict[str, str] = {}
    w = torch.randn(SHAPE)
    for _ in range(2):
        call(torch.randn(SHAPE), w)
    for kind, make in KINDS.items():
        if kind in AS_EAGER:
            if differs(call, make(), w):
                wrong[kind] = "is not eager's"
        elif not came_to(call, make(), w)[1] and kind in WITHOUT_MEMORY:
            wrong[kind] = "was not refused"
        x = torch.randn(SHAPE)
        if not torch.allclose(call(x, w), step(x, w)):
            wrong[kind] = "spoilt a later call"
    return wrong


@pytest.fixture(autouse=True)
def quiet():
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def test_the_kinds_are_many() -> None:
    assert len(KINDS) >= 25
    assert {*WITHOUT_MEMORY, *AS_EAGER} <= set(KINDS)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=way.id, marks=[] if way.executor == "native" else [pytest.mark.slow])
        for way in WAYS
        if way.executor
    ],
)
def test_every_odd_tensor_is_eager_s_or_refused(way: Way) -> None:
    assert problems(way) == {}
