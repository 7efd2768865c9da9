"""Random programs, captured once, replayed on other values and from other addresses, by every executor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from npucompose.bits import same_bytes
from npucompose_replay.captured_graph import CapturedGraph
from replay_tests.random_programs import Program, programs
from tests.graph_helpers import traced
from tests.searches import examples


def _check(program: Program, graph: Any, executor: Any) -> None:
    first = program.inputs(0)
    before = [t.clone() for t in first]
    captured = CapturedGraph.capture(graph, first, executor=executor)
    assert all(same_bytes(a, b) for a, b in zip(first, before, strict=True))
    for seed in (0, 1, 2):
        mine, theirs = program.inputs(seed), program.inputs(seed)
        if seed == 0:
            mine = first
        got, expected = captured.replay(*mine), program(*theirs)
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert same_bytes(a, b)
        for a, b in zip(mine, theirs, strict=True):
            assert same_bytes(a, b)


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(program=programs())
def test_a_random_program_replays_bit_for_bit(program: Program, executor: Any):
    _check(program, traced(program, *program.inputs(0)), executor)


@pytest.mark.parametrize("executor", ["native", "torchscript"])
@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(program=programs())
def test_a_random_functionalized_program_replays_bit_for_bit(program: Program, executor: Any):
    functional = torch.func.functionalize(program, remove="mutations")
    _check(program, traced(functional, *program.inputs(0)), executor)
