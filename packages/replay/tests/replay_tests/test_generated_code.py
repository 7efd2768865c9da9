"""Code that a compiler generated, recorded and replayed: kernels by address, views, operators between; what is refused.

The kernels here are functions of the C library, so that nothing needs to be compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import CaptureError
from npucompose.recorder import LowerRequest
from npucompose.schema.experiment import Partial
from npucompose.vendor.compiler import CompilerOptions
from npucompose_replay.capture.generated import Observer
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.detached import DetachError, detach_call
from npucompose_replay.front.generated_cache import GeneratedCache
from npucompose_replay.gate import Refused
from npucompose_replay.generated import GeneratedKernel, known
from tests.graph_helpers import same

LIBRARY = ctypes.CDLL(None)
EXECUTORS = ("native", "python")


def address(name: str) -> int:
    found = ctypes.cast(getattr(LIBRARY, name), ctypes.c_void_p).value
    assert found is not None
    return found


def _copy(out: torch.Tensor, x: torch.Tensor, nbytes: int) -> None:
    ctypes.memmove(out.data_ptr(), x.data_ptr(), nbytes)


COPY = known(GeneratedKernel(name="copy", order="wrn", address=address("memcpy"), binding=_copy))
"""`memcpy(out, x, nbytes)`."""


@attrs.frozen(eq=False)
class Code:
    """What a compiler could have written: `body(inputs, observer)`."""

    body: Callable[[list[Any], Observer], Sequence[Any]]
    constants: Mapping[str, torch.Tensor] = attrs.field(factory=dict)

    def run(self, inputs: list[Any], observer: Observer) -> Sequence[Any]:
        return self.body(inputs, observer)


class Bystander:
    """An observer who looks at nothing: what the code does by itself."""

    def made(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer

    def laid(self, view: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
        return view

    def launch(self, kernel: GeneratedKernel, given: Sequence[Any]) -> None:
        kernel.binding(*given)


def by_itself(code: Code, *inputs: Any) -> list[Any]:
    return list(code.run(list(inputs), Bystander()))


def captured(code: Code, *inputs: Any, executor: Any = "native") -> tuple[CapturedGraph, list[Any]]:
    return CapturedGraph.capture_code(code, inputs, finish=True, executor=executor)


def request() -> LowerRequest:
    return LowerRequest(
        mode="max-autotune",
        graph_module=fx.GraphModule({}, fx.Graph()),
        example_inputs=(),
        static_inputs=frozenset(),
        options=CompilerOptions(),
    )


def cached(code: Code | str, compiled: Callable[[list[Any]], Any], partial: Partial = "cut") -> GeneratedCache:
    return GeneratedCache(request(), compiled, code, capture_limit=8, when_new="at_once", partial=partial)


def copied(x: torch.Tensor, observer: Observer) -> torch.Tensor:
    out = observer.made(torch.empty_like(x))
    observer.launch(COPY, (out, x, x.numel() * x.element_size()))
    return out


def _chain(inputs: list[Any], observer: Observer) -> Sequence[Any]:
    (x,) = inputs
    first = copied(x, observer)
    product = observer.made(torch.empty(4, 4))
    torch.mm(first, WEIGHT, out=product)
    row = observer.laid(torch.as_strided(product, (16,), (1,)), product)
    return [copied(row, observer), torch.ops.aten.cumsum.default(product, 0)]


WEIGHT = torch.randn(4, 4)
CHAIN = Code(_chain, {"weight": WEIGHT})


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_replay_gives_what_the_code_gives(executor: str):
    recording, results = captured(CHAIN, torch.ones(4, 4), executor=executor)
    assert same(results, by_itself(CHAIN, torch.ones(4, 4)))
    for _ in range(3):
        x = torch.randn(4, 4)
        assert same(recording.replay(x), by_itself(CHAIN, x))


def test_kernels_are_called_by_their_address_and_products_are_held():
    recording, _ = captured(CHAIN, torch.ones(4, 4))
    ways = recording.facts()["ways"]
    assert ways["generated"] == 2
    assert ways.get("blas", 0) + ways.get("held", 0) >= 1


def test_a_constant_that_is_changed_in_place_is_read_where_it_lies():
    """Negative control: the recording reads the constant itself and no copy."""
    weight = torch.eye(4)
    code = Code(lambda given, observer: [torch.ops.aten.mm.default(given[0], weight)], {"weight": weight})
    x = torch.randn(4, 4)
    recording, _ = captured(code, x)
    weight.mul_(2)
    assert same(recording.replay(x), [x @ weight])


def _in_place(inputs: list[Any], observer: Observer) -> Sequence[Any]:
    """What torch makes anew is written in place by a kernel, through a view; an input is written too."""
    x, cache = inputs
    fresh = torch.ops.aten.cumsum.default(x, 0)
    view = observer.laid(torch.as_strided(fresh, (2, 4), (4, 1), 8), fresh)
    observer.launch(COPY, (view, x, 32))
    observer.launch(COPY, (cache, view, 32))
    return [observer.laid(torch.as_strided(fresh, (16,), (1,)), fresh), cache]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_views_of_what_is_made_anew_and_inputs_are_written(executor: str):
    code, cache = Code(_in_place), torch.zeros(2, 4)
    recording, results = captured(code, torch.ones(4, 4), cache, executor=executor)
    assert results[1] is cache
    assert bool(cache.eq(1).all())
    for _ in range(2):
        x, mine, theirs = torch.randn(4, 4), torch.zeros(2, 4), torch.zeros(2, 4)
        got = recording.replay(x, mine)
        assert got[1] is mine
        assert same(got, by_itself(code, x, theirs))


def test_sizes_are_numbers_of_the_signature():
    code = Code(lambda given, observer: [copied(given[1], observer)[: given[0]]])
    cache = cached(code, lambda given: by_itself(code, *given))
    for rows in (2, 3, 2, 3):
        x = torch.randn(4, 4)
        assert same(cache([rows, x]), [x[:rows]])
    assert [recording.facts()["kernels"] for recording in cache.captured] == [1, 1]
    assert cache.statistics.captures == 2


def test_a_result_that_is_held_is_left_alone():
    cache = cached(CHAIN, lambda given: by_itself(CHAIN, *given))
    held = [cache([torch.full((4, 4), float(n))]) for n in range(4)]
    for n, got in enumerate(held):
        assert same(got, by_itself(CHAIN, torch.full((4, 4), float(n))))


def _reads_a_number(inputs: list[Any], observer: Observer) -> Sequence[Any]:
    (x,) = inputs
    return [copied(x, observer) * x.sum().item()]


def test_what_depends_on_data_is_called_as_it_was_made_and_named():
    code, calls = Code(_reads_a_number), []

    def compiled(given: list[Any]) -> list[Any]:
        calls.append(len(given))
        return by_itself(code, *given)

    cache = cached(code, compiled)
    for n in range(3):
        x = torch.full((4,), float(n))
        assert same(cache([x]), [x * x.sum().item()])
    assert len(calls) == 2  # the run that was to be recorded counts
    (outside,) = cache.partition().outside
    assert outside.operator == "aten._local_scalar_dense.default"
    assert cache.statistics.eager == 2
    with pytest.raises(DetachError, match="Inductor's wrapper calls its kernels, because"):
        detach_call(lambda: cache([torch.ones(4)]), (torch.ones(4),), {})


def test_a_refused_run_changes_nothing_unless_it_is_finished():
    def body(inputs: list[Any], observer: Observer) -> Sequence[Any]:
        inputs[0].add_(1)
        return [inputs[0].sum().item()]

    x = torch.ones(4)
    with pytest.raises(Refused):
        CapturedGraph.capture_code(Code(body), [x])
    assert bool(x.eq(1).all())
    with pytest.raises(Refused) as refused:
        CapturedGraph.capture_code(Code(body), [x], finish=True)
    assert bool(x.eq(2).all())
    assert refused.value.outputs == [8.0]


def test_memory_that_nobody_told_of_is_refused():
    """Negative control: were it guessed, a replay would read what the first run left there."""
    hidden = torch.ones(4)
    code = Code(lambda given, observer: [torch.ops.aten.add.Tensor(given[0], hidden)])
    with pytest.raises(Refused, match="nobody told where"):
        captured(code, torch.ones(4))


def test_code_that_cannot_be_read_is_never_recorded():
    cache = cached("its code is in another language", lambda given: [given[0] + 1])
    assert same(cache([torch.ones(2)]), [torch.full((2,), 2.0)])
    assert cache.partition().outside[0].reason == "its code is in another language"


def test_with_refuse_what_cannot_be_recorded_is_an_error():
    def body(inputs: list[Any], observer: Observer) -> Sequence[Any]:
        inputs[0].add_(1)
        return [inputs[0].sum().item()]

    def never(given: list[Any]) -> list[Any]:
        raise AssertionError("called as it was made")

    with pytest.raises(CaptureError, match=r"in another language\. compile\.partial=cut calls it as it is"):
        cached("its code is in another language", never, "refuse")
    cache, x = cached(Code(body), never, "refuse"), torch.ones(4)
    for _ in range(2):
        with pytest.raises(Refused, match=r"cannot capture aten\._local_scalar_dense"):
            cache([x])
    assert bool(x.eq(1).all())
    recorded = cached(CHAIN, never, "refuse")
    assert same(recorded([torch.ones(4, 4)]), by_itself(CHAIN, torch.ones(4, 4)))
    assert recorded.statistics.captures == 1


def test_an_error_of_the_code_is_the_callers():
    def body(inputs: list[Any], observer: Observer) -> Sequence[Any]:
        return [torch.ops.aten.mm.default(inputs[0], inputs[0])]

    with pytest.raises(RuntimeError, match="mat1"):
        captured(Code(body), torch.ones(2, 3))


def test_memory_of_values_that_are_gone_is_used_again():
    def body(inputs: list[Any], observer: Observer) -> Sequence[Any]:
        x = inputs[0]
        for _ in range(20):
            x = copied(x, observer)
        return [x]

    recording, _ = captured(Code(body), torch.ones(1024))
    assert recording.facts()["pool_bytes"] <= 2 * 4096


def test_a_kernel_of_many_parameters_is_called_too():
    """More than the native replayer has callers for: it is called by its binding."""
    count = 140

    def add_up(*given: torch.Tensor) -> None:
        given[-1].copy_(torch.stack(given[:-1]).sum(0))

    kernel = known(GeneratedKernel(name="sum", order="r" * count + "w", address=1, binding=add_up))

    def body(inputs: list[Any], observer: Observer) -> Sequence[Any]:
        out = observer.made(torch.empty(4))
        observer.launch(kernel, (*[inputs[0]] * count, out))
        return [out]

    recording, _ = captured(Code(body), torch.ones(4))
    assert recording.facts()["ways"] == {"boxed": 1}
    assert same(recording.replay(torch.full((4,), 2.0)), [torch.full((4,), 280.0)])
