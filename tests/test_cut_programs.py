"""What no recording can hold runs as it is between recordings, and the results are eager's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import npucompose
from npucompose.bits import same_bytes
from npucompose.errors import CaptureError
from npucompose.targets.backend import Backend
from npucompose_replay.front.segments import Segmented
from tests.cut_programs import PROGRAMS, Count, CutProgram, cond, count

FRONTS: Mapping[str, Callable[[Callable[..., Any], str], Callable[..., Any]]] = {
    "npucompose.compile": lambda function, executor: npucompose.compile(function, f"target.executor={executor}"),
    "torch.compile": lambda function, executor: torch.compile(
        function, backend="npucompose", options={"target.executor": executor}, fullgraph=True
    ),
}


DEAR = ("flex_attention", "associative_scan", "scan")
"""Programs that take seconds to trace; the slow tests have all."""
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def called(function: Callable[..., Any], program: CutProgram, seed: int) -> list[Any]:
    """Everything that a call leaves behind: results and inputs, with operators' own state rewound."""
    torch.default_generator.manual_seed(seed)
    inputs = program.inputs()
    Count.calls = 10 * seed
    result = function(*inputs)
    return [*tree_leaves(result), *inputs, torch.rand(1)]


def agrees(compiled: Callable[..., Any], program: CutProgram, calls: int = 5) -> None:
    with torch._dynamo.config.patch(**program.config), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        for seed in range(calls):
            got, expected = called(compiled, program, seed), called(program.function, program, seed)
            assert len(got) == len(expected)
            for a, b in zip(got, expected, strict=True):
                assert same_bytes(a, b) if isinstance(a, torch.Tensor) else a == b


def words_of(backend: Backend) -> str:
    lowered: Any = backend.compilations[0].lowered
    return re.sub(r" at [\w.]+:\d+", "", lowered.partition().words)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in DEAR else name for name in PROGRAMS]
)
def test_a_program_that_must_be_cut_equals_eager_and_says_how_it_was_cut(name: str) -> None:
    program = PROGRAMS[name]
    fast = npucompose.compile(program.function)
    agrees(fast, program, calls=3)
    assert words_of(fast.materialised.backend) == program.words


@pytest.mark.slow
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("executor", ["native", "portable"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_by_every_front_and_every_executor(name: str, executor: str, front: Any) -> None:
    agrees(FRONTS[front](PROGRAMS[name].function, executor), PROGRAMS[name])


def test_without_a_cut_the_same_programs_are_refused_with_the_models_line() -> None:
    for name in ("cond", "nonzero", "random numbers on both sides"):
        program = PROGRAMS[name]
        torch._dynamo.reset()
        fast = npucompose.compile(program.function, "compile.partial=refuse")
        with (
            torch._dynamo.config.patch(**program.config),
            torch.no_grad(),
            pytest.raises(CaptureError, match=r"^cannot capture .*cut_programs\.py:\d+: "),
        ):
            fast(*program.inputs())


def test_an_operator_whose_author_says_so_runs_each_time_and_once() -> None:
    fast = npucompose.compile(lambda x: count(x + 1) * 2)
    Count.calls = 0
    with torch.no_grad():
        for call in range(1, 4):
            assert torch.equal(fast(torch.ones(2)), torch.full((2,), 4.0 * call))
    assert Count.calls == 3


def test_parts_of_a_graph_replay_and_do_not_record_again() -> None:
    fast = npucompose.compile(cond)
    with torch.no_grad():
        fast(torch.randn(4, 4))
        lowered: Any = fast.materialised.backend.compilations[0].lowered
        assert isinstance(lowered, Segmented)
        for _ in range(4):
            fast(torch.randn(4, 4))
    assert [len(cache.captured) for cache in lowered.caches] == [1, 1]


def test_an_error_of_the_models_own_operator_is_the_users_and_cuts_nothing() -> None:
    fast = npucompose.compile(lambda x: raises_on_negative(x * 2) + 1)
    with torch.no_grad():
        with pytest.raises(ValueError, match="negative"):
            fast(-torch.ones(2))
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 3.0))
    assert words_of(fast.materialised.backend) == "1 segment"


@torch.library.custom_op("npucompose_cut::raises_on_negative", mutates_args=())
def raises_on_negative(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise ValueError("negative")
    return x.clone()


@raises_on_negative.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_call_of_several_recordings_cannot_be_detached_and_the_error_says_why() -> None:
    fast = npucompose.compile(cond)
    with torch.no_grad(), pytest.raises(CaptureError, match=r"2 segments, 1 operator outside recordings: cond at"):
        fast.detach(torch.randn(4, 4))
