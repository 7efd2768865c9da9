"""What a signature says, what is refused and in which words, and where inputs may lie."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npucompose.errors import CaptureError, SignatureError
from npucompose_replay import gate
from npucompose_replay.capture.recorder import record
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.front.segments import nodes_of
from npucompose_replay.gate import Refused
from npucompose_replay.memory.inputs import Inputs, Slots, _overlap, is_there, refusal, signature
from npucompose_replay.operands import laid_over, layout_of, relative, span_of
from npucompose_replay.plan import PlanSlot, Root
from replay_tests.capturing import request
from tests.graph_helpers import built, same, traced
from tests.odd_tensors import MAKERS

aten = torch.ops.aten
LIBRARY = torch.library.Library("npucompose_signatures", "FRAGMENT")
LIBRARY.define("halves(Tensor(a!) x) -> Tensor[]")
LIBRARY.impl("halves", lambda x: [x + 1, x + 2], "CPU")
mine = torch.ops.npucompose_signatures
COMPLEX = torch.randn(2, dtype=torch.complex64)
MEMORY = torch.arange(64.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2), "torch.float32[2]@cpu"),
        (torch.ones(2, 3).t(), "torch.float32[3,2]{1,3}@cpu"),
        (COMPLEX.conj(), "conj torch.complex64[2]@cpu"),
        (COMPLEX._neg_view(), "neg torch.complex64[2]@cpu"),
        (COMPLEX.conj()._neg_view(), "conj neg torch.complex64[2]@cpu"),
        (3, "int 3"),
        (True, "bool True"),
        (None, "NoneType None"),
        (torch.ones(2, device="meta"), "a tensor that has no memory"),
        (torch.ones(2, 2).to_sparse(), "a tensor that has layout torch.sparse_coo, dtype torch.float32; only dense"),
    ],
)
def test_a_signature_says_all_that_kernels_see(value: Any, words: str) -> None:
    (said,) = signature([value])
    assert said.startswith(words)
    if "that" not in words:
        assert said == words


def test_the_address_of_a_fixed_input_is_part_of_the_signature() -> None:
    a, b = torch.ones(2), torch.ones(2)
    assert signature([a, b], frozenset({1})) == (
        "torch.float32[2]@cpu",
        f"torch.float32[2]@cpu at {b.data_ptr():#x}",
    )


def test_a_refusal_names_the_input_the_mode_or_both_signatures() -> None:
    x, sparse = torch.ones(2), torch.ones(2, 2).to_sparse()
    told = refusal([x, sparse], ("a", "b"), frozenset())
    assert isinstance(told, SignatureError)
    assert str(told).startswith("input 1 has layout torch.sparse_coo")
    assert str(told).endswith("; captured for b")
    assert (told.index, told.why) == (1, str(told).removeprefix("input 1 "))
    assert str(refusal([x, sparse], ("a",), frozenset())).endswith("only dense tensors are taken")
    assert str(refusal([x], ("a",), frozenset())) == "captured for ('a',), got ('torch.float32[2]@cpu',)"
    same_words = str(refusal([x], signature([x]), frozenset()))
    assert same_words.endswith("does not lie at the begin of its storage")
    assert ": the same, but an input that the graph writes overlaps another input" in same_words


def test_memory_is_there_up_to_the_last_element() -> None:
    """No tensor stands in an assert: a failing one would be printed, and with it memory that is not there."""
    x, y, gone = torch.ones(4), torch.ones(8)[2:6], MAKERS["over nothing"]()
    told = [gate.why_no_memory(x), gate.why_no_memory(x[4:]), gate.why_no_memory(torch.ones(4)[:3])]
    x.untyped_storage().resize_(12)
    told += [gate.why_no_memory(x), gate.why_no_memory(gone), gate.why_not_anywhere(gone), gate.why_not(gone)]
    cut = "has 12 bytes of memory where it needs 16: it was freed or cut short"
    assert told == ["", "", "", cut, *["has no memory"] * 3]
    there = [is_there(y, nbytes) for nbytes in (16, 24, 25)]
    assert there == [True, True, False]


def test_spans_meet_where_they_have_a_byte_in_common() -> None:
    assert _overlap((0, 4), (3, 5))
    assert _overlap((3, 5), (0, 4))
    assert not _overlap((0, 4), (4, 8))
    assert not _overlap((4, 8), (0, 4))
    x = torch.ones(4)
    assert span_of(x[1:3]) == (x.data_ptr() + 4, x.data_ptr() + 12)
    assert span_of(x[:0]) == (0, 0)


def test_a_view_is_laid_over_another_tensor_as_it_lay_over_its_own() -> None:
    first, other = MEMORY[8:16].view(2, 4), torch.randn(20)[3:11].view(2, 4)
    for view in (lambda t: t.t(), lambda t: t[1:, 2], lambda t: t.view(torch.int32)[1]):
        assert same([laid_over(other, relative(view(first), first))], [view(other)])
        assert laid_over(other, relative(view(first), first)).data_ptr() == view(other).data_ptr()
    a, b = torch.randn(6, dtype=torch.complex64)[2:4].conj(), torch.randn(6, dtype=torch.complex64)[1:3].conj()
    assert same([laid_over(b, relative(a[1:], a))], [b[1:]])


class Places:
    """Where a made-up executor is told that inputs lie."""

    def __init__(self, copies: Sequence[int] = ()) -> None:
        self.copies, self.moved = set(copies), list[int]()

    def copies_rather(self, index: int, nbytes: int) -> bool:
        return index in self.copies

    def move(self, index: int, tensor: torch.Tensor) -> None:
        self.moved.append(index)


def inputs_of(*given: Any, places: Any = None, fixed: Any = (), written: Any = (), from_zero: Any = ()) -> Inputs:
    return Inputs(
        list(given), fixed=frozenset(fixed), written=frozenset(written), from_zero=frozenset(from_zero),
        lent=frozenset({0}), places=places or Places(),
    )  # fmt: skip


def test_inputs_are_admitted_where_form_number_and_fixed_addresses_agree() -> None:
    places = Places()
    x, w = torch.ones(2), torch.ones(2)
    inputs = inputs_of(x, w, 3, places=places, fixed={1})
    assert inputs.admit([x, w, 3])
    assert places.moved == []
    y = torch.zeros(2)
    assert inputs.admit([y, w, 3])
    assert places.moved == [0]
    assert inputs.admit([y, w, 3])
    assert places.moved == [0]
    for wrong in ([x, w], [x, w, 3, 4], [x, w, True], [x, w, 4], [x, y, 3], [torch.ones(3), w, 3], [x.double(), w, 3],
                  [1, w, 3], [x.to_sparse(), w, 3]):  # fmt: skip
        assert not inputs.admit(wrong)
    assert places.moved == [0]
    assert inputs.lent([x, w, 3]) == {0: x}
    assert inputs.described(1, w) == {"tensor": w, "fixed": True, "written": False, "from_zero": False, "lent": False}
    assert inputs.described(2, 3) == {"value": 3}


def test_an_input_that_as_strided_reads_lies_at_the_begin_of_its_storage() -> None:
    inputs = inputs_of(torch.ones(2), from_zero={0})
    assert inputs.admit([torch.ones(2)])
    assert not inputs.admit([torch.ones(3)[1:]])
    assert inputs_of(torch.ones(2)).admit([torch.ones(3)[1:]])


def test_a_written_input_may_not_come_to_lie_over_another_one() -> None:
    x, y = MEMORY[:4], MEMORY[8:12]
    inputs = inputs_of(x, y, written={0})
    assert not inputs.admit([MEMORY[6:10], y])
    assert inputs.admit([MEMORY[4:8], y])
    assert not inputs.admit([MEMORY[4:8], MEMORY[7:11]])
    assert inputs.admit([MEMORY[12:16], y])
    assert inputs.admit([MEMORY[12:16], MEMORY[8:12]])
    free = inputs_of(x, y)
    assert free.admit([MEMORY[6:10], y])


def test_an_input_that_is_copied_rather_than_followed_is_copied_each_time_and_given_back() -> None:
    x, other = torch.ones(2, 3), torch.full((2, 3), 5.0)
    inputs = inputs_of(x, places=(places := Places([0])), written={0})
    assert inputs.admit([other])
    (private,) = (copy.tensor for copy in inputs._private.values())
    assert private.data_ptr() != other.data_ptr()
    assert torch.equal(private, other)
    other.fill_(6.0)
    assert inputs.admit([other])
    assert torch.equal(private, other)
    private.fill_(7.0)
    inputs.give_back([other])
    assert other.eq(7.0).all()
    assert places.moved == [0]
    version = x._version
    inputs_of(x, written={0}).give_back([x])
    assert x._version == version + 1


def test_an_expanded_input_is_copied_once_for_each_of_its_elements() -> None:
    x, other = torch.ones(3, 1).expand(3, 4), torch.arange(3.0)[:, None].expand(3, 4)
    inputs = inputs_of(x, places=Places([0]))
    for given in (other, torch.arange(3.0, 6.0)[:, None].expand(3, 4)):
        assert inputs.admit([given])
        (private,) = (copy.tensor for copy in inputs._private.values())
        assert private.stride() == (1, 0)
        assert torch.equal(private, given)


def test_small_inputs_with_many_slots_are_copied_and_large_ones_followed() -> None:
    given, root = torch.ones(2, 2), Root(kind="input", nbytes=16, index=0)
    views = [PlanSlot(root, layout_of(t)) for t in (given, given.t(), given[0], given[1])]
    laid: list[tuple[int, torch.Tensor]] = []
    slots = Slots(
        [given, 3], [PlanSlot(Root(kind="pool", nbytes=4), layout_of(given)), *views], lambda *a: laid.append(a)
    )
    assert slots.copies_rather(0, 16)
    assert slots.copies_rather(0, 3 * 8192 - 1)
    assert not slots.copies_rather(0, 3 * 8192)
    assert not Slots([given], views[:1], lambda *_: None).copies_rather(0, 16)
    assert not Slots([given], views, lambda *_: None, copies=False).copies_rather(0, 16)
    other = torch.randn(4)[:4].view(2, 2)
    slots.move(0, other)
    assert [number for number, _ in laid] == [1, 2, 3, 4]
    assert laid[0][1] is other
    assert same([t for _, t in laid], [other, other.t(), other[0], other[1]])


def test_what_a_front_asks_is_answered_with_where_inputs_lie_now() -> None:
    x, y = torch.ones(2), torch.ones(2)
    inputs = inputs_of(x, 3, torch.ones(0), y, places=(places := Places()))
    z = torch.zeros(2)
    given = [z, 3, torch.ones(0), y]
    before = [x.data_ptr(), -1, 5, y.data_ptr()]
    assert inputs.admit_from(given, before) == ([z.data_ptr(), -1, 5, y.data_ptr()], False)
    assert inputs.admit_from([z, 4, torch.ones(0), y], before) is None
    assert places.moved == [0]
    copying = inputs_of(x, places=Places([0]))
    assert copying.admit_from([z], [x.data_ptr()]) == ([x.data_ptr()], True)


# -- graphs that are refused


def refused(make: Any, *inputs: Any) -> str:
    with pytest.raises(CaptureError) as error:
        record(built(make, len(inputs)), list(inputs))
    return str(error.value)


def test_results_in_forms_that_no_replay_can_give_are_refused() -> None:
    x = torch.ones(4)
    assert "an output that is a list" in refused(lambda g, xs: ([g.call_function(aten.neg.default, (xs[0],))],), x)
    halves = refused(lambda g, xs: (g.call_function(mine.halves.default, (xs[0],)),), x)
    assert "an operator that writes its arguments and returns a list" in halves
    assert x.eq(1).all()


def test_one_number_of_a_table_is_recorded_whatever_its_stride_says(executor: str) -> None:
    x = torch.randn(3, 4)[1:2, 2]
    assert x.stride() == (4,)
    captured = CapturedGraph.capture(traced(lambda x: (x.clone(), torch.sort(x)[0], x.neg()), x), [x])
    assert same(captured.replay(x), [x, x, -x])


def test_a_function_of_python_is_refused_on_tensors_and_where_it_is_no_arithmetic() -> None:
    on_tensor = refused(lambda g, xs: (g.call_function(max, (xs[0], xs[0])),), torch.ones(2))
    assert "a Python function on a tensor is not an operator" in on_tensor
    strange = refused(lambda g, xs: (g.call_function(torch.Size, ([xs[0]],)),), 3)
    assert "it is neither an operator nor arithmetic on numbers" in strange


def test_a_graph_without_an_output_is_refused() -> None:
    module = built(lambda g, xs: (xs[0],), 1)
    module.graph.erase_node(next(n for n in module.graph.nodes if n.op == "output"))
    with pytest.raises(CaptureError, match="a graph without an output node"):
        record(module, [torch.ones(2)])


def test_symbols_and_batch_norms_that_hide_what_they_write_are_refused() -> None:
    environment = ShapeEnv()
    symbol = environment.create_symintnode(
        environment.create_symbol(5, ConstantSource("n")), hint=5, source=ConstantSource("n")
    )
    with pytest.raises(CaptureError, match="input 1 is symbolic"):
        CapturedGraph.capture(built(lambda g, xs: (xs[0],), 2), [torch.ones(2), symbol])
    one = torch.ones(2)

    def norm(graph: Any, xs: list[Any]) -> Any:
        return graph.call_function(aten.native_batch_norm.default, (xs[0], None, None, xs[1], xs[1], True, 0.1, 1e-5))

    assert "writes its running statistics without saying so" in refused(norm, torch.ones(3, 2), one)


def test_an_input_that_was_refused_leaves_its_readers_outside() -> None:
    def make(graph: Any, xs: list[Any]) -> Any:
        split = graph.call_function(aten.split.Tensor, (xs[1], 1))
        part = graph.call_function(operator.getitem, (split, 0))
        return (graph.call_function(aten.neg.default, (xs[0],)), part)

    graph = built(make, 2).graph
    by_name = {node.name: node for node in graph.nodes}
    refusal_of_input = Refused("no", reason="why", index=1)
    assert nodes_of(refusal_of_input, graph) == {by_name["split_tensor"]: "why"}
    assert nodes_of(Refused("no", reason="why", node=by_name["neg_default"]), graph) == {by_name["neg_default"]: "why"}


# -- a cache


def plus(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x + 1,)


def test_a_cache_that_is_cleared_counts_on_and_records_anew() -> None:
    cache = GraphCache(request(traced(plus, torch.ones(2))), capture_limit=4)
    for n in (2, 2, 2, 2, 3):
        cache([torch.ones(n)])
    assert [len(cache.captured), len(cache.captured)] == [2, 2]
    cache.clear()
    assert (cache.captured, cache.last, len(cache.recordings.plans)) == ([], None, 0)
    assert (cache.statistics.hits, cache.statistics.captures) == (3, 2)
    assert cache([torch.ones(2)])[0].tolist() == [2.0, 2.0]
    assert (cache.statistics.hits, cache.statistics.captures) == (3, 3)
    assert cache.partition().segments == 1


def test_a_cache_for_a_part_is_like_the_one_of_the_whole_but_copies_nothing() -> None:
    cache = GraphCache(
        request(traced(plus, torch.ones(2))), capture_limit=4, clone_output=True, executor="python",
        when_full="replace", when_new="earned", partial="refuse",
    )  # fmt: skip
    part = cache.alike(request(other := traced(plus, torch.ones(3)), frozenset({0})))
    assert part.request.graph_module is other
    assert part.request.static_inputs == frozenset({0})
    assert part.arena is cache.arena
    assert (part.capture_limit, part.clone_output, part.executor) == (4, False, "python")
    assert (part.when_full, part.admission.when_new, part.partial) == ("replace", "earned", "refuse")
    assert part.workers is cache.workers
    assert part.trial is None


def test_a_call_that_would_be_recorded_had_better_come_by() -> None:
    cache = GraphCache(request(traced(plus, torch.ones(2))), capture_limit=3, when_new="earned")
    for n in (2, 3):
        assert cache.would_record(n, [torch.ones(n)])
        cache([torch.ones(n)])
    assert not cache.would_record(4, [torch.ones(4)])
    cache.ran_eagerly(4, 1e6)
    assert cache.would_record(4, [torch.ones(4)])
    assert cache.statistics.eager == 1
    cache([torch.ones(4)])
    with pytest.warns(RuntimeWarning, match="capture_limit=3"):
        assert not cache.would_record(5, [torch.ones(5)])


def test_calls_that_met_the_steady_recording_are_counted_before_another_is_judged() -> None:
    cache = GraphCache(request(traced(plus, torch.ones(2))), capture_limit=3, when_new="earned")
    for _ in range(5):
        cache([torch.ones(2)])
    before = cache.admission.calls_s
    assert cache._again > 0
    cache.would_record(3, [torch.ones(3)])
    assert cache._again == 0
    assert cache.admission.calls_s > before


def test_a_signature_that_differs_names_what_differs_and_no_address_of_what_does_not() -> None:
    from npucompose_replay.memory.inputs import _difference

    captured = ("torch.float32[2]@cpu", *(f"torch.float32[4]@cpu at {n}" for n in range(99)))
    given = ("torch.float32[3]@cpu", *captured[1:])
    assert _difference(captured, given) == "input 0 captured for torch.float32[2]@cpu, got torch.float32[3]@cpu"
    assert _difference(captured[:1], given[:1]) == (
        "captured for ('torch.float32[2]@cpu',), got ('torch.float32[3]@cpu',)"
    )
    moved = tuple(f"{one}, moved" for one in captured)
    assert _difference(captured, moved).endswith("; and 97 more")
    assert _difference(captured, captured[:9]) == "captured for 100 inputs, got 9"
