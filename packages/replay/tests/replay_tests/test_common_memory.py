"""The graphs of one model compute in the same memory: nobody reads what another left there or waits for ever."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import npucompose
from npucompose.bits import same_bytes
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.memory import results
from npucompose_replay.memory.arena import Arena
from npucompose_replay.operands import over
from npucompose_replay.plan import Workers
from replay_tests.capturing import request
from replay_tests.executor.streams_by_hand import needs_two_cores, planned
from replay_tests.random_programs import programs
from replay_tests.test_arena import EXECUTORS, block, block_of, nbytes, poison
from tests.graph_helpers import in_threads, one_thread, traced
from tests.searches import examples

OVERRIDES = ("mode=reduce-overhead", "target=cpu")


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("npucompose_common", "FRAGMENT") as made:
        yield made


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def cache_of(function: Any, *inputs: Any, arena: Arena, **options: Any) -> GraphCache:
    made = evolve(request(traced(function, *inputs)), memory=arena)
    return GraphCache(made, **{"capture_limit": 8, **options})


def caches(backend: Any) -> list[GraphCache]:
    return [compilation.lowered for compilation in backend.compilations]


def broken(x: torch.Tensor) -> torch.Tensor:
    """Three graphs: what one returns is read by the next."""
    first, second = block(x)
    torch._dynamo.graph_break()
    third, _ = block(first @ second)
    torch._dynamo.graph_break()
    return block(third + first)[0]


# -- who shares


def test_graphs_of_one_backend_lie_in_one_place_and_give_eagers_bits_over_poisoned_memory() -> None:
    backend = npucompose.backend(*OVERRIDES)
    compiled = torch.compile(broken, backend=backend, dynamic=False)
    with torch.no_grad():
        for turn, n in enumerate((24, 16, 24, 40, 16, 40)):
            x = block_of(n, turn)
            assert same_bytes(compiled(x), broken(x))
            poison(backend.common_memory)
    made = [recording for cache in caches(backend) for recording in cache.captured]
    assert len(caches(backend)) == len(made) == 9  # three graphs, compiled for each of three shapes
    assert {id(cache.arena) for cache in caches(backend)} == {id(backend.common_memory)}
    apart = sum(recording.facts()["pool_bytes"] for recording in made)
    together = dict(pair for recording in made for pair in recording.facts()["slabs"])
    assert sum(together.values()) == nbytes(backend.common_memory.slabs()) < 0.25 * apart


def test_graphs_of_two_backends_share_nothing() -> None:
    made = [npucompose.backend(*OVERRIDES) for _ in range(2)]
    with torch.no_grad():
        for backend in made:
            torch._dynamo.reset()
            torch.compile(broken, backend=backend)(block_of(8))
    first, second = ({slab.number for slab in backend.common_memory.slabs()} for backend in made)
    assert first
    assert second
    assert not first & second


def test_each_graph_has_memory_of_its_own_where_that_is_asked_for() -> None:
    backend = npucompose.backend(*OVERRIDES, "target.pool=graph")
    x = block_of(8)
    with torch.no_grad():
        assert same_bytes(torch.compile(broken, backend=backend)(x), broken(x))
    numbers = [slab.number for cache in caches(backend) for slab in cache.arena.slabs()]
    assert len(numbers) == len(set(numbers)) == 3
    assert CpuTarget(pool="graph").common_memory() is None


def test_those_that_take_turns_in_another_way_lie_together_beside() -> None:
    x, arena = block_of(8), Arena()
    made = [
        CapturedGraph.capture(traced(block, x), [x], executor=executor, arena=arena)
        for executor in ("python", "native", "native", "torchscript")
    ]
    python, native, again, torchscript = ({slab.number for slab in one.memory.slabs} for one in made)
    assert python == torchscript != native == again


# -- whatever the graphs are


def chain(made: Sequence[Any], values: Sequence[torch.Tensor], run: Any) -> list[torch.Tensor]:
    """Each graph is given what the one before it returned, as parts of a broken graph are."""
    outputs: list[torch.Tensor] = []
    for position, program in enumerate(made):
        outputs += run(position, program, [*outputs, *values][-3:])
    return outputs


@settings(deadline=None, max_examples=examples(12))
@given(st.lists(programs(), min_size=2, max_size=4), st.sampled_from(["native", "torchscript", "python"]))
def test_random_sets_of_graphs_that_feed_each_other_have_eagers_bits(made: list[Any], executor: Any) -> None:
    arena = Arena()
    together = [cache_of(p, *p.inputs(0), arena=arena, executor=executor, capture_limit=64) for p in made]

    def compiled(position: int, program: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        poison(arena)
        outputs = together[position](inputs)
        poison(arena)
        return outputs

    for seed in range(3):
        mine, theirs = made[0].inputs(seed), made[0].inputs(seed)
        got = chain(made, mine, compiled)
        expected = chain(made, theirs, lambda _, program, inputs: list(program(*inputs)))
        assert all(map(same_bytes, got, expected))
        assert all(map(same_bytes, mine, theirs))


@pytest.fixture
def outputs_in_the_arena(monkeypatch: pytest.MonkeyPatch) -> Arena:
    """A fault: outputs lie where only what lives within one replay may (Note [What may lie in an arena])."""
    arena = Arena()

    def zeros(nbytes: int) -> torch.Tensor:
        (address,), slabs = arena.lay([(0, nbytes)])
        kept.extend(slabs)
        return torch.empty(0, dtype=torch.uint8).set_(over(address, nbytes))  # type: ignore[call-overload]

    kept: list[Any] = []
    monkeypatch.setattr(results, "zeros", zeros)
    return arena


@pytest.mark.parametrize("executor", ["torchscript", "python"])
def test_an_output_in_shared_memory_would_be_seen(outputs_in_the_arena: Arena, executor: Any) -> None:
    """The control of the tests above and below."""
    arena, x = outputs_in_the_arena, block_of(8)
    first, second = (cache_of(block, x, arena=arena, executor=executor) for _ in range(2))
    for cache in (first, second):
        cache([x])  # the results of a call that records lie nowhere else
    kept = first([x])
    assert not all(map(same_bytes, [*second([x + 1]), *kept], [*block(x + 1), *block(x)]))


# -- training: what forward keeps for backward


def gradients(arena: Arena | None, executor: Any = "native") -> list[torch.Tensor]:
    """Of a small network; with `arena` its forward and its backward graph are recordings that lie there."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    x, compiled, lowered = torch.randn(5, 8), network, list[GraphCache]()
    if arena is not None:

        def lower(graph: Any, _inputs: Any) -> Any:
            cache = GraphCache(evolve(request(graph), memory=arena), capture_limit=4, executor=executor)
            lowered.append(cache)
            return make_boxed_func(lambda *inputs: cache(list(inputs)))

        compiled = torch.compile(network, backend=aot_autograd(fw_compiler=lower, bw_compiler=lower))
    for _ in range(3):
        loss = compiled(x).square().sum()
        if arena is not None:
            poison(arena)
        loss.backward()
    assert arena is None or (arena.slabs() and [len(cache.captured) for cache in lowered] == [1, 1])
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


def test_what_a_forward_graph_keeps_for_its_backward_graph_is_its_own() -> None:
    arena = Arena()
    assert all(map(same_bytes, gradients(arena), gradients(None)))


def test_activations_in_shared_memory_would_be_seen(outputs_in_the_arena: Arena) -> None:
    assert not all(map(same_bytes, gradients(outputs_in_the_arena, "python"), gradients(None)))


# -- turns


@EXECUTORS
def test_threads_that_call_different_graphs_take_turns(executor: Any) -> None:
    arena, made = Arena(), [block, lambda x: (block(x)[1] @ x,)]
    together = [cache_of(function, block_of(8), arena=arena, executor=executor, clone_output=True) for function in made]
    wrong: list[int] = []

    def work(seed: int) -> None:
        which, x = seed % 2, block_of(8, seed)
        with torch.no_grad():
            expected = made[which](x)
            for _ in range(100):
                if not all(map(same_bytes, together[which]([x]), expected)):
                    wrong.append(seed)

    in_threads(work)
    assert not wrong
    assert len(arena.slabs()) == 1


@EXECUTORS
@pytest.mark.parametrize("together", [True, False])
def test_two_graphs_of_one_memory_are_never_inside_at_once_and_others_are(
    library: Any, executor: Any, together: bool
) -> None:
    both, met = threading.Barrier(2), list[bool]()
    meeting = threading.Event()

    def meet(x: torch.Tensor) -> torch.Tensor:
        if meeting.is_set():
            try:
                both.wait(timeout=0.2 if together else 30)
                met.append(True)
            except threading.BrokenBarrierError:
                met.append(False)
        return x + 1

    library.define("meet(Tensor x) -> Tensor")
    library.impl("meet", meet, "CPU")
    x = block_of(4)
    arenas = [Arena()] * 2 if together else [Arena(), Arena()]
    made = [
        cache_of(lambda x: (torch.ops.npucompose_common.meet(x @ x),), x, arena=arena, executor=executor)
        for arena in arenas
    ]
    for cache in made:
        cache([x])
    meeting.set()
    threads = [threading.Thread(target=cache, args=([x],)) for cache in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [not together] * 2


def test_graphs_that_are_captured_at_once_agree_on_whose_turn_it_is() -> None:
    for _ in range(5):
        arena = Arena()
        together = [cache_of(block, block_of(8), arena=arena, clone_output=True) for _ in range(4)]
        in_threads(lambda seed, made=together: made[seed]([block_of(8, seed)]))
        held = {slab.number for cache in together for one in cache.captured for slab in one.memory.slabs}  # type: ignore[attr-defined]
        assert held == {slab.number for slab in arena.slabs()}
        assert len(held) == 1


# -- a graph that calls a graph


def calling(library: Any, inner: Any, name: str) -> Any:
    """An operator written in Python that calls `inner`, as a model's custom operator may."""
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: inner(x).clone(), "CPU")
    library.impl(name, torch.empty_like, "Meta")
    return getattr(torch.ops.npucompose_common, name)


@pytest.mark.parametrize("pool", ["model", "graph"])
def test_a_graph_that_a_replay_calls_runs_as_it_is_and_says_so(library: Any, pool: str) -> None:
    backend = npucompose.backend(*OVERRIDES, f"target.pool={pool}")
    inner = torch.compile(lambda x: block(x)[0] * 2, backend=backend)
    call = calling(library, inner, f"inner_{pool}")

    def outer(x: torch.Tensor) -> torch.Tensor:
        kept = x @ x
        return call(x) @ kept

    compiled = torch.compile(outer, backend=backend)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for turn in range(3):
            x = block_of(8, turn)
            assert same_bytes(compiled(x), (block(x)[0] * 2) @ (x @ x))
    words = [str(one.message) for one in told if "lie in the same memory" in str(one.message)]
    assert len(words) == (pool == "model")
    assert all("target.pool=graph" in one for one in words)


@needs_two_cores
def test_a_graph_that_a_stream_of_a_replay_calls_runs_as_it_is(library: Any) -> None:
    """There the operator runs on another thread than the one whose turn it is."""
    arena, x, where = Arena(), block_of(8), set[bool]()
    inner = cache_of(block, x, arena=arena)
    inner([x])

    def called(x: torch.Tensor) -> torch.Tensor:
        where.add(threading.current_thread() is threading.main_thread())
        return inner([x])[0]

    call = calling(library, called, "aside")
    module = planned(lambda x: (x.neg() @ call(x),), x, aside=("aside",))
    with one_thread():  # otherwise a stranger's operator keeps the streams together
        outer = CapturedGraph.capture(module, [x], workers=Workers(count=2), arena=arena)
    assert outer.threads is not None
    where.clear()
    with pytest.warns(RuntimeWarning, match="lie in the same memory"):
        outer.replay(x)
    for turn in range(20):
        x = block_of(8, turn)
        assert same_bytes(outer.replay(x)[0], x.neg() @ block(x)[0])
    assert False in where


def test_a_replay_by_hand_on_a_stream_of_a_replay_is_refused_and_does_not_wait(library: Any) -> None:
    arena, x = Arena(), block_of(8)
    inner = CapturedGraph.capture(traced(block, x), [x], arena=arena)
    call = calling(library, lambda x: inner.replay(x)[0], "by_hand")
    module = planned(lambda x: (x.neg() @ call(x),), x, aside=("by_hand",))
    outer = CapturedGraph.capture(module, [x], workers=Workers(count=2), arena=arena)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="or one that shares its memory"):
            outer.replay(x)
        assert all(map(same_bytes, inner.replay(x), block(x)))


# -- the end


def test_handles_outlive_the_model_its_backend_and_each_other() -> None:
    functions = [lambda x: block(x)[0], lambda x: block(x)[1] * 3]
    backend = npucompose.backend(*OVERRIDES)
    arena, inputs = backend.common_memory, [block_of(16), block_of(12)]
    from npucompose_replay.front.detached import detach_call

    handles = []
    with torch.no_grad():
        for function, x in zip(functions, inputs, strict=True):
            compiled = torch.compile(function, backend=backend)
            compiled(x)
            handles.append(detach_call(lambda f=compiled, x=x: f(x), (x,), {}))
    del backend, compiled
    torch._dynamo.reset()
    gc.collect()
    assert len(arena.slabs()) == 1
    with torch.no_grad():
        for turn in range(4):
            poison(arena)
            which = turn % 2
            x = block_of((16, 12)[which], turn)
            assert same_bytes(handles[which](x), functions[which](x))
    del handles[0]
    gc.collect()
    poison(arena)
    with torch.no_grad():
        assert same_bytes(handles[0](inputs[1]), functions[1](inputs[1]))
    handles.clear()
    gc.collect()
    assert arena.slabs() == []
