"""Calls without a recording run what Dynamo traced, until their recording is due."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import npucompose
from npucompose.bits import same_bytes
from npucompose.targets.backend import Backend
from npucompose.targets.compilation import Compilation
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.interface import Admission

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(autouse=True)
def first_signatures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the account calls without a recording take no time: how many have one does not depend on the machine."""
    booked = Admission.ran_eagerly
    monkeypatch.setattr(Admission, "ran_eagerly", lambda account, signature, _: booked(account, signature, 0.0))


class Counting(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        return self.linear(x).relu() * self.count, x[:1]


def cache_of(backend: Any) -> GraphCache:
    return backend.compilations[-1].lowered


def graphs_run(cache: GraphCache, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each time that AOTAutograd's graph itself is run."""
    run: list[int] = []
    as_it_is = cache._as_it_is
    monkeypatch.setattr(cache, "_as_it_is", lambda inputs: run.append(1) or as_it_is(inputs))
    return run


def test_state_views_and_results_are_those_of_eager_whoever_runs_a_call():
    mine, theirs = Counting().eval().requires_grad_(False), Counting().eval().requires_grad_(False)
    theirs.load_state_dict(mine.state_dict())
    backend = npucompose.backend("mode=reduce-overhead")
    fast = torch.compile(mine, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 6, 5, 3, 7, 2, 5, 4):
            x = torch.randn(rows, 4)
            (got, view), (expected, _) = fast(x), theirs(x)
            assert same_bytes(got, expected)
            assert view.data_ptr() == x.data_ptr()
            assert mine.count == theirs.count
    told = backend.statistics
    assert told.calls == 11
    assert told.eager > 0
    assert told.captures == 3  # one of the graph without symbols, two of the other


def test_after_the_first_call_without_a_recording_aotautograds_graph_is_not_run_any_more(
    monkeypatch: pytest.MonkeyPatch,
):
    model = nn.Linear(4, 4).requires_grad_(False)
    backend = npucompose.backend("mode=reduce-overhead")
    fast = torch.compile(model, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 4):
            fast(torch.randn(rows, 4))
        run = graphs_run(cache_of(backend), monkeypatch)
        fast(torch.randn(5, 4))
        assert len(run) == 1
        for rows in (6, 7, 5, 8):
            x = torch.randn(rows, 4)
            assert same_bytes(fast(x), model(x))
        assert len(run) == 1


def test_a_signature_that_has_earned_it_is_recorded_and_found():
    model = nn.Linear(4, 4).requires_grad_(False)
    backend = npucompose.backend("mode=reduce-overhead")
    fast = torch.compile(model, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 5):
            fast(torch.randn(rows, 4))
        cache = cache_of(backend)
        assert len(cache.captured) == 2
        cache.admission.calls_s = 1e6
        before = backend.statistics
        for _ in range(3):
            x = torch.randn(5, 4)
            assert same_bytes(fast(x), model(x))
    told = backend.statistics
    assert (told.captures - before.captures, told.hits - before.hits) == (1, 2)


def test_a_detached_handle_gets_its_recording_where_calls_ran_without():
    model = nn.Linear(4, 4).requires_grad_(False)
    fast = npucompose.compile(model, "mode=reduce-overhead")
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 5):
            fast(torch.randn(rows, 4))
        x = torch.randn(5, 4)
        assert same_bytes(fast.detach(x)(x), model(x))
        hits = fast.statistics.hits
        fast(x)
        assert fast.statistics.hits == hits + 1


def test_where_a_pass_may_change_bits_its_graph_is_run(monkeypatch: pytest.MonkeyPatch):
    rewrite = Backend.rewrite

    def inexact(self: Backend, *given: Any) -> Compilation:
        made = rewrite(self, *given)
        made.passes = tuple(evolve(record, exact=False) for record in made.passes)
        return made

    monkeypatch.setattr(Backend, "rewrite", inexact)
    model = nn.Linear(4, 4).requires_grad_(False)
    backend = npucompose.backend("mode=reduce-overhead", "passes=cse")
    fast = torch.compile(model, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 4):
            fast(torch.randn(rows, 4))
        run = graphs_run(cache_of(backend), monkeypatch)
        for rows in (5, 6, 5):
            fast(torch.randn(rows, 4))
    assert len(run) == 3
