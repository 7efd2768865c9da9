"""The parts of a CUDA graph's recording one by one, on the simulator: pools, buffers, results and who holds them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError, SignatureError
from npucompose.graphs import Aliases
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.device import SharedPool
from npucompose_replay.cuda.recording import Buffers, CudaCapture, CudaRecording, Uses
from npucompose_replay.cuda.results import InPiece, Piece, ResultMemory, Results, _flat
from npucompose_replay.gate import Refused
from npucompose_replay.operands import layout_of
from npucompose_replay.plan import Literally, SameAsInput, SameAsOutput, ViewOfInput
from replay_tests.capturing import request
from replay_tests.cuda.simulated_device import SimulatedDevice, cuda_recording
from tests.graph_helpers import traced

negated_view: Any = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]


def recorded(function: Any, *inputs: Any, **options: Any) -> CudaRecording:
    device = SimulatedDevice()
    return cuda_recording(traced(function, *inputs), list(inputs), device, **options)


def told(made: CudaRecording) -> list[str]:
    device: Any = made._device
    return device.told


# Memory that recordings share.


def test_a_stream_waits_for_the_one_that_used_a_pool_last_where_that_is_another() -> None:
    device = SimulatedDevice()
    pool = SharedPool(device)
    assert (pool.handle, pool.stream.name, pool.lanes) == ("pool1", "stream1", {})
    home, other = device.stream(), device.stream()
    for stream in (home, home, other, other, home):
        pool.enter(stream)
    assert device.told == ["stream3 waits for stream2", "stream2 waits for stream3"]


def test_memory_is_said_to_be_used_once_on_each_stream_but_the_one_it_came_from() -> None:
    device = SimulatedDevice()
    home, other = device.stream(), device.stream()
    uses = Uses(device, [torch.ones(2), torch.ones(4)], {home})
    for stream in (home, other, other, home):
        uses.on(stream)
    assert device.told == ["8 bytes are used on stream2", "16 bytes are used on stream2"]


def test_buffers_are_like_their_inputs_and_fixed_inputs_and_numbers_are_themselves() -> None:
    device = SimulatedDevice()
    home = device.stream()
    moved, fixed = torch.ones(2, 3).t(), torch.ones(2, requires_grad=True)
    buffers = Buffers.like([moved, 7, fixed, None], frozenset({2}), device, home)
    mine, seven, held, nothing = buffers.values
    assert (mine.shape, mine.stride(), mine.dtype) == (moved.shape, moved.stride(), moved.dtype)
    assert mine.data_ptr() != moved.data_ptr()
    assert (seven, nothing) == (7, None)
    assert held.data_ptr() == fixed.data_ptr()
    assert not held.requires_grad
    buffers.uses.on(home)
    assert device.told == []
    buffers.uses.on(device.stream())
    assert device.told == ["24 bytes are used on stream2"], "what is not ours is not ours to say"


def test_a_replay_waits_for_the_stream_its_results_went_out_on_if_that_is_another() -> None:
    device = SimulatedDevice()
    first, second = device.stream(), device.stream()
    graph = SimpleNamespace(replay=lambda: device.told.append("replay"))
    results: Any = None
    captured = CudaCapture(graph, results, Uses(device, [torch.ones(1)], {first}))
    assert not captured.lent
    for home in (first, first, second, first):
        captured.replay(home)
    assert device.told == [
        "replay", "replay", "stream2 waits for stream1", "4 bytes are used on stream2", "replay",
        "stream1 waits for stream2", "replay",
    ]  # fmt: skip


# Inputs.


def test_numbers_and_nothing_among_the_inputs_belong_to_the_signature() -> None:
    x = torch.ones(3)
    made = recorded(lambda x, n, flag: (x * n,), x, 2, None)
    for _ in range(4):
        assert made.replay(x, 2, None)[0].tolist() == [2.0] * 3
    for wrong in ((x, 3, None), (x, 2.0, None), (x, True, None), (x, 2, 0)):
        assert made.try_replay(wrong) is None
        with pytest.raises(SignatureError, match="captured for"):
            made.replay(*wrong)


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x.double(), lambda x: x.to("meta"), lambda x: x.reshape(3, 2), lambda x: x.t().contiguous().t(),
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)), lambda x: negated_view(x),
    ],
)  # fmt: skip
def test_an_input_of_another_form_does_not_fit(changed: Any) -> None:
    x = torch.ones(2, 3)
    made = recorded(lambda x: (x + 1,), x)
    for _ in range(2):  # before the first call, and after it
        assert made.try_replay([changed(x)]) is None
        assert made.try_replay([x.clone()]) is not None
    assert made.try_replay([x, x]) is None
    assert made.try_replay([]) is None


def test_an_input_without_memory_of_its_own_is_refused_with_its_place() -> None:
    x = torch.ones(3)
    device = SimulatedDevice()
    with pytest.raises(Refused, match=r"^input 1 ") as refused:
        cuda_recording(traced(lambda x, y: (x + 1,), x, x), [x, torch.ones(3).to_sparse()], device)
    assert (refused.value.index, refused.value.node) == (1, None)
    assert refused.value.reason.startswith("an input of it ")


def test_inputs_that_overlap_while_one_is_written_stay_where_they_lie() -> None:
    buffer = torch.zeros(6)
    made = recorded(lambda a, b: (a.add_(1), b * 2)[1:], buffer[:4], buffer[2:])
    for call in (1, 2, 3):
        (result,) = made.replay(buffer[:4], buffer[2:])
        assert result.tolist() == [2.0 * call, 2.0 * call, 0.0, 0.0]
    assert buffer.tolist() == [3.0] * 4 + [0.0] * 2
    other = torch.zeros(6)
    assert made.try_replay([other[:4], other[2:]]) is None, "their addresses belong to the signature"
    assert other.tolist() == [0.0] * 6


def test_inputs_that_only_are_read_may_lie_anywhere_and_share() -> None:
    made = recorded(lambda a, b: (a + b,), torch.ones(4), torch.ones(4))
    buffer = torch.arange(6.0)
    for _ in range(3):
        assert made.replay(buffer[:4], buffer[2:])[0].tolist() == [2.0, 4.0, 6.0, 8.0]


def test_what_is_written_and_brought_back_may_share_with_nobody() -> None:
    made = recorded(lambda a, b: (a.add_(1), a + b)[1:], torch.zeros(4), torch.zeros(4))
    buffer = torch.zeros(6)
    assert made.try_replay([buffer[:4], buffer[2:]]) is None
    assert buffer.tolist() == [0.0] * 6
    for _ in range(3):
        a = torch.zeros(4)
        assert made.replay(a, torch.ones(4))[0].tolist() == [2.0] * 4
        assert a.tolist() == [1.0] * 4


def test_an_input_that_as_strided_reads_stays_where_it_is_unless_it_is_all_of_its_storage() -> None:
    function = lambda x: (x.as_strided((2,), (1,), 1) + 0,)  # noqa: E731
    whole = recorded(function, torch.arange(4.0))
    for begin in (0.0, 5.0, 9.0):
        assert whole.replay(torch.arange(4.0) + begin)[0].tolist() == [begin + 1, begin + 2]
    buffer = torch.arange(8.0)
    assert whole.try_replay([buffer[4:]]) is None, "it counts from the begin of a storage"
    part = recorded(function, buffer[4:])
    for _ in range(3):
        assert part.replay(buffer[4:])[0].tolist() == [1.0, 2.0]
    assert part.try_replay([torch.arange(8.0)[4:]]) is None


def test_what_a_recording_tells_of_itself() -> None:
    x = torch.ones(3)
    made = recorded(lambda x: ((x + 1) * 2,), x)
    assert (made.facts()["kernels"], made.planned, made.seconds) == (2, False, 0.0)
    captures: list[int] = []
    for _ in range(3):
        made.replay(x)
        captures.append(made.facts()["captures"])
    kept = [made.replay(x) for _ in range(3)]
    assert [*captures, made.facts()["captures"]] == [0, 1, 1, 2]
    assert len(kept) == 3
    facts = made.facts()
    assert {name: facts[name] for name in ("executor", "executor_reason", "kernels", "signature")} == {
        "executor": "cuda graph", "executor_reason": "", "kernels": 2, "signature": made.signature,
    }  # fmt: skip
    assert 0 < facts["seconds"] == made.seconds
    before = made.seconds
    made.replay(x)
    assert made.seconds == before, "replays are not counted"


def test_an_input_that_a_replay_writes_where_it_lies_counts_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device writes without a word to autograd."""
    counted: list[torch.Tensor] = []
    monkeypatch.setattr(torch.autograd.graph, "increment_version", counted.extend)
    state, x = torch.zeros(3), torch.ones(3)
    made = recorded(lambda state, x: (state.add_(x), x * 2)[1:], state, x, static=frozenset({0}))
    for replays in range(4):
        made.replay(state, x.clone())
        assert len(counted) == replays, "in the first call operators do it themselves"
    assert all(one is state for one in counted)


def test_a_result_that_was_not_lent_is_not_overwritten_for_those_who_lend() -> None:
    x = torch.ones(3)
    made = recorded(lambda x: (x + 1,), x)
    made.replay(x)
    (kept,) = made.replay(x)
    (lent,) = made.replay(x * 2, reuse=True)
    assert (kept.tolist(), lent.tolist()) == ([2.0] * 3, [3.0] * 3)
    del kept, lent
    (lent,) = made.replay(x * 3, reuse=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (again,) = made.replay(x * 4, reuse=True)
        made.replay(x * 5, reuse=True)
    assert ["is still held, and this call overwrites it" in str(one.message) for one in said] == [True]
    assert lent.data_ptr() == again.data_ptr()
    assert lent.tolist() == [6.0] * 3
    (back,) = made.replay(again, reuse=True)
    assert (back.tolist(), again.tolist()) == ([7.0] * 3, [6.0] * 3), "what is read is not overwritten"
    assert made.facts()["captures"] == 2


def test_inputs_are_copied_where_they_do_not_lie_in_the_buffers_already() -> None:
    made = recorded(lambda x: (x + 1,), torch.ones(3))
    for _ in range(2):
        made.replay(torch.ones(3))
    assert made._buffers is not None
    (buffer,) = made._buffers.values
    home = made._device.current_stream()
    with torch.inference_mode():
        assert made._copy_in([torch.full((3,), 5.0)], home) == [0]
        assert buffer.tolist() == [5.0] * 3
        assert made._copy_in([buffer], home) == []


# Results.


def results_of(function: Any, *inputs: Any) -> tuple[Results, list[Any], list[Any]]:
    module, given = traced(function, *inputs), list(inputs)
    values = list(module(*given))
    return Results.from_run(module, Aliases.from_graph(module.graph), given, values), given, values


def test_a_graph_within_a_graph_is_no_memory_of_its_own() -> None:
    def function(x: torch.Tensor) -> Any:
        return (x + 1,)

    module = traced(function, torch.ones(3))
    (add,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    module.inner = traced(function, torch.ones(2))
    with module.graph.inserting_before(add):
        module.graph.get_attr("inner")
    given = [torch.ones(3)]
    results = Results.from_run(module, Aliases.from_graph(module.graph), given, list(module(*given)))
    assert [type(output) for output in results.outputs] == [InPiece]


def test_each_kind_of_output_goes_out_its_own_way() -> None:
    constant = torch.arange(3.0)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        return (x, y[1:], z, z, 5, None, constant, z[1:])

    results, _, values = results_of(function, torch.ones(3), torch.full((3,), 2.0))
    kinds = [type(output) for output in results.outputs]
    assert kinds == [
        SameAsInput, ViewOfInput, InPiece, SameAsOutput, Literally, Literally, Literally, InPiece
    ]  # fmt: skip
    x, y, z, again = results.outputs[:4]
    assert isinstance(x, SameAsInput)
    assert isinstance(y, ViewOfInput)
    assert isinstance(z, InPiece)
    assert isinstance(again, SameAsOutput)
    assert (x.index, y.index, z.piece, again.index) == (0, 1, 0, 2)
    assert len(results.pieces) == 1
    made = [values[2], values[7]]
    other = [torch.zeros(3), torch.arange(3.0)]
    handed = results.handed_out(other, made)
    assert handed[0] is other[0]
    assert handed[1].tolist() == [1.0, 2.0]
    assert handed[1].data_ptr() == other[1][1:].data_ptr()
    assert handed[2] is handed[3] is made[0]
    assert handed[4:6] == [5, None]
    assert handed[6].tolist() == [0.0, 1.0, 2.0]
    assert handed[7] is made[1]
    assert len(handed) == 8


def test_of_two_inputs_in_one_memory_an_output_is_that_which_the_graph_says() -> None:
    buffer = torch.arange(6.0)
    results, *_ = results_of(lambda a, b: (b[:2], a), buffer[:4], buffer[2:])
    view, same = results.outputs
    assert isinstance(view, ViewOfInput)
    assert isinstance(same, SameAsInput)
    assert (view.index, same.index) == (1, 0)


def test_an_empty_output_that_is_an_input_goes_out_as_that_input() -> None:
    results, *_ = results_of(lambda x, y: (y,), torch.ones(0), torch.ones(0))
    (only,) = results.outputs
    assert isinstance(only, SameAsInput)
    assert only.index == 1


def test_copies_share_memory_as_the_results_do() -> None:
    results, _, values = results_of(lambda x: ((y := x + 1), y[1:], x * 2), torch.ones(3))
    memory = ResultMemory(results)
    memory.fill(values)
    whole, part, other = memory.copies()
    assert part.data_ptr() == whole[1:].data_ptr()
    assert [one.tolist() for one in (whole, part, other)] == [[2.0] * 3, [2.0] * 2, [2.0] * 3]
    assert other.untyped_storage().nbytes() == 12
    assert other.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


def test_an_empty_result_is_in_a_piece_of_its_own_and_holds_nothing() -> None:
    results, _, values = results_of(lambda x: (x[:0] + 1, x[:0] * 2), torch.ones(3))
    assert [type(output) for output in results.outputs] == [InPiece, InPiece]
    assert [piece.nbytes for piece in results.pieces] == [0, 0]
    memory = ResultMemory(results)
    memory.fill(values)
    memory.count()
    held = memory.themselves()
    assert not memory.is_held()
    assert [tuple(one.shape) for one in held] == [(0,), (0,)]


def test_results_keep_their_offsets() -> None:
    results, *_ = results_of(lambda x: ((x + 1)[5:7], (x + 2)[20:]), torch.ones(24))
    near, far = results.outputs
    assert isinstance(near, InPiece)
    assert isinstance(far, InPiece)
    assert (near.layout.offset, far.layout.offset) == (5, 20)
    assert [piece.nbytes for piece in results.pieces] == [7 * 4, 24 * 4]
    assert near.piece != far.piece


def memory_of(*values: torch.Tensor) -> ResultMemory:
    """Memory for results as these, each alone."""
    outputs = tuple(InPiece(piece=k, layout=layout_of(value)) for k, value in enumerate(values))
    pieces = tuple(Piece(nbytes=o.layout.span()[1], device=torch.device("cpu")) for o in outputs)
    return ResultMemory(Results(outputs=outputs, pieces=pieces))


def test_memory_is_filled_given_out_and_copied() -> None:
    values = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0)[::2], torch.ones(3).expand(2, 3)]
    memory = memory_of(*values)
    memory.fill(values)
    memory.count()
    assert not memory.is_held()
    themselves, copies = memory.themselves(), memory.copies()
    assert all(map(same_bytes, themselves, values))
    assert all(map(same_bytes, copies, values))
    assert [one.stride() for one in copies] == [value.stride() for value in values]
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(themselves, copies, strict=True))
    assert [t.data_ptr() for t in themselves] == [t.data_ptr() for t in memory.themselves()]
    assert memory.is_held()
    del themselves
    assert not memory.is_held(), "copies hold nothing of it"
    assert len(memory.tensors) == 3
    assert not memory.themselves()[0].is_inference()
    with torch.inference_mode():
        assert memory.themselves()[0].is_inference()


@pytest.mark.parametrize("other", [torch.ones(3, 2), torch.ones(2, 3).double(), torch.ones(3, 2).t()])
def test_a_result_of_another_form_depends_on_data(other: torch.Tensor) -> None:
    memory = memory_of(torch.ones(4), torch.ones(2, 3))
    with pytest.raises(CaptureError, match=r"cannot capture output 1: it was .* in the first call .* depends on data"):
        memory.fill([torch.ones(4), other])


def test_results_are_read_by_inputs_that_lie_in_their_memory() -> None:
    memory = memory_of(torch.ones(8))
    (whole,) = memory.themselves()
    behind = torch.ones(8)
    assert memory.is_read([3, None, behind, whole[2:3]])
    assert not memory.is_read([3, None, behind, whole[:0]])
    assert not memory.is_read([])


def test_what_is_copied_has_each_element_once_or_the_whole_span() -> None:
    x = torch.arange(6.0)
    for tensor, flat in (
        (x.reshape(2, 3).t(), (3, 2)),
        (x[:3].expand(4, 3), (1, 3)),
        (x.unfold(0, 4, 1), (6,)),
    ):
        found = _flat(tensor, layout_of(tensor))
        assert tuple(found.shape) == flat
        assert found.data_ptr() == tensor.data_ptr()


# The cache.


def test_what_the_device_does_not_record_is_cut_out_or_refused_as_was_asked() -> None:
    with torch.library._scoped_library("npucompose_parts", "FRAGMENT") as library:
        library.define("asks(Tensor x) -> Tensor")
        library.impl("asks", lambda x: x * x.sum().item(), "CPU")
        library.impl("asks", torch.empty_like, "Meta")

        def function(x: torch.Tensor) -> Any:
            return (torch.ops.npucompose_parts.asks(x + 1) * 2,)

        x = torch.ones(3)
        for partial, cut in (("cut", True), ("refuse", False)):
            device = SimulatedDevice()
            cache = CudaCache(request(traced(function, x)), device=device, capture_limit=4, partial=partial)  # type: ignore[arg-type]
            assert cache([x])[0].tolist() == [24.0] * 3
            if not cut:
                with pytest.raises(Refused, match=r"the device does not record it: aten\.item"):
                    cache([x])
                continue
            for _ in range(4):
                assert cache([x])[0].tolist() == [24.0] * 3
            assert cache.segmented is not None
            assert [one.operator for one in cache.partition().outside] == ["npucompose_parts.asks"]
            assert {id(part.pool) for part in cache.segmented.caches} == {id(cache.pool)}  # type: ignore[attr-defined]
            assert cache.captured == cache.segmented.captured, "what was recorded of the whole graph is gone"
            cache([torch.ones(5)])
            assert cache.captured == cache.segmented.captured


def test_a_cache_has_a_pool_of_its_own_unless_it_is_given_one() -> None:
    device, asked = SimulatedDevice(), request(traced(lambda x: (x + 1,), torch.ones(3)))
    shared = SharedPool(device)
    given: Any = [CudaCache(evolve(asked, memory=m), device=device, capture_limit=5) for m in (shared, None, object())]
    assert given[0].pool is shared
    assert all(isinstance(one.pool, SharedPool) and one.pool is not shared for one in given[1:])
    cache = CudaCache(asked, device=device, capture_limit=5, clone_output=True, when_full="replace", partial="refuse")
    part = cache.alike(asked)
    assert (part.capture_limit, part.when_full, part.partial, part.clone_output) == (5, "replace", "refuse", False)
    assert (part.pool, part.device) == (cache.pool, device)
    plain = CudaCache(asked, device=device, capture_limit=1)
    assert (plain.clone_output, plain.when_full, plain.partial) == (False, "eager", "cut")
    assert cache.clone_output
    recording, outputs = cache.recorded([torch.ones(3)])
    assert outputs[0].tolist() == [2.0] * 3
    assert recording._clone
    assert not cache.is_within_a_replay()
    with cache.pool.turns:
        assert cache.is_within_a_replay()
