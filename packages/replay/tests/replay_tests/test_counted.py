"""Numbers that a graph only counts belong to no signature: a position that goes in and comes out one higher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose_replay.counted import CountedNumbers
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.interface import watching
from replay_tests.capturing import request

TRACED = 5


def graph_of(function: Callable[..., Any], *numbers: int) -> fx.GraphModule:
    with torch.no_grad():
        return make_fx(function, tracing_mode="symbolic")(torch.ones(3), *(numbers or (TRACED,)))


def test_a_position_is_counted_beside_the_recording() -> None:
    found = CountedNumbers.from_graph(graph_of(lambda x, n: (x * 2, n + 1, 2 * (n + 1))).graph)
    assert found is not None
    assert (found.inputs, found.traced, found.outputs) == ((1,), (TRACED,), (1, 2))
    assert tuple(found.count(40)) == (41, 82)


def test_a_number_that_is_not_read_is_one() -> None:
    found = CountedNumbers.from_graph(graph_of(lambda x, n: (x * 2,)).graph)
    assert found is not None
    assert (found.inputs, found.outputs, tuple(found.count(40))) == ((1,), (), ())


def test_of_several_numbers_those_alone_that_no_kernel_reads() -> None:
    found = CountedNumbers.from_graph(graph_of(lambda x, m, n, k: (x + m, n + 1, m + 1, n + k), 4, 5, 6).graph)
    assert found is not None
    assert (found.inputs, found.outputs) == ((2, 3), (1, 3))
    assert tuple(found.count(10, 20)) == (11, 30)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: (x + n, n + 1),
        lambda x, n: (x.repeat(n), n + 1),
        lambda x, n: (x.new_zeros(n + 1), n + 1),
        lambda x, n: (x * 2, n + x.shape[0]),
        lambda x, n: (x.sum() + torch.arange(n).sum(), n + 1),
        lambda x, n: (x * 2, torch.full((), n)),
    ],
)
def test_a_number_that_a_kernel_or_a_size_has_is_none(function: Callable[..., Any]) -> None:
    """A negative control too: with any of these left out of the signature, results would be those of another call."""
    module = graph_of(function)
    assert CountedNumbers.from_graph(module.graph) is None
    cache = cache_of(module)
    for n in (TRACED, TRACED + 1, TRACED, TRACED + 1):
        got, wanted = cache([torch.ones(3), n]), function(torch.ones(3), n)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(got, wanted, strict=True))


def cache_of(module: fx.GraphModule) -> GraphCache:
    return GraphCache(request(module), capture_limit=8, when_new="at_once")


def test_one_recording_serves_every_position() -> None:
    cache = cache_of(graph_of(lambda x, n: (x * 2, n + 1)))
    for n in (9, 5, 10, 11, 5):
        outputs = cache([torch.full((3,), float(n)), n])
        assert outputs[0].tolist() == [2.0 * n] * 3
        assert outputs[1] == n + 1
    assert (cache.statistics.captures, cache.statistics.hits) == (1, 4)


def test_a_call_that_is_watched_has_a_recording_for_its_very_number() -> None:
    """What is made of it, a detached handle, is called with that number and no other."""
    cache = cache_of(graph_of(lambda x, n: (x * 2, n + 1)))
    cache([torch.ones(3), 9])
    with watching() as seen:
        assert cache([torch.ones(3), 9])[1] == 10
    assert seen[0].inputs[1] == 9
    assert seen[0].outputs[1] == 10
    assert seen[0].recording is cache.captured[-1]
    with watching(numbers=False):
        cache([torch.ones(3), 12])
    assert cache.statistics.captures == 2
