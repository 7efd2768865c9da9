"""What operators do to memory, and whose memory a new value gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from npucompose.npu.capture.simulated.memory import CaptureMemory
from npucompose.races import Touch

aten = torch.ops.aten
Row = tuple[str, bool, bool, bool]
X, ROWS = torch.ones(4, 4), torch.tensor([0, 1])


def memory() -> CaptureMemory:
    return CaptureMemory(lambda tensor: False)


def touched(func: Any, *args: Any, **given: Any) -> list[Row]:
    """(value, read, written, certainly all of it) of each tensor."""
    made = func(*args, **given)
    return [(one.value, one.reads, one.writes, one.certain) for one in memory().touches(func, args, given, made, 1)]


WHOLE, NEW = ("float32[4, 4]", True, False, True), ("float32[4, 4]", False, True, True)
CHANGED, PART = ("float32[4, 4]", True, True, True), ("float32[4, 4]", True, False, False)
INDEX = ("int64[2]", True, False, True)


@pytest.mark.parametrize(
    ("call", "rows"),
    [
        (lambda: touched(aten.mul.Tensor, X, X), [WHOLE, WHOLE, NEW]),
        (lambda: touched(aten.add_.Tensor, X.clone(), X), [CHANGED, WHOLE]),
        (lambda: touched(aten.copy_.default, X.clone(), X), [NEW, WHOLE]),
        (lambda: touched(aten.add.out, X, X, out=torch.empty(4, 4)), [WHOLE, WHOLE, NEW]),
        (lambda: touched(aten.view.default, X, [16]), []),
        (lambda: touched(aten._unsafe_view.default, X, [16]), []),
        (lambda: touched(aten.empty.memory_format, [4]), [("float32[4]", False, True, True)]),
        (lambda: touched(aten._assert_async.default, torch.tensor(True)), [("bool[]", True, False, True)]),
        (lambda: touched(aten.mul.Tensor, X[:0], X[:0]), []),
        (lambda: touched(aten.index_select.default, X, 0, ROWS), [PART, INDEX, ("float32[2, 4]", False, True, True)]),
        (lambda: touched(aten.index_fill_.int_Scalar, X.clone(), 0, ROWS, 1.0), [(*CHANGED[:3], False), INDEX]),
        (lambda: touched(aten.index_fill.int_Scalar, X, 0, ROWS, 1.0), [WHOLE, INDEX, NEW]),
        (lambda: touched(aten.slice_scatter.default, X, X[:2], 0, 0, 2),
         [WHOLE, ("float32[2, 4]", True, False, True), NEW]),
    ],
)  # fmt: skip
def test_what_an_operator_reads_and_writes(call: Callable[[], list[Row]], rows: list[Row]) -> None:
    assert call() == rows


def test_what_lies_on_the_host_is_not_touched() -> None:
    found = CaptureMemory(lambda tensor: tensor is X)
    assert [one.value for one in found.touches(aten.mul.Tensor, (X, ROWS[:1]), {}, X * 2, 1)] == [
        "int64[1]", "float32[4, 4]",
    ]  # fmt: skip


def test_views_of_one_storage_are_one_memory_and_a_whole_one_needs_no_span() -> None:
    found = memory()
    whole, row, same = (found.touching(one, reads=True)[0] for one in (X, X[1:2], X.view(16)))
    assert whole.memory == row.memory == same.memory
    assert whole.span is None
    assert same.span is None
    assert row.span is not None
    assert (row.span.begin, row.span.end) == (16, 32)


def begun(found: CaptureMemory, tensor: torch.Tensor, stream: int = 1) -> Touch:
    (touch,) = found.reading_and_making((), tensor, stream)
    return touch


def test_a_dropped_value_gives_its_memory_to_the_next_one_of_its_stream() -> None:
    found = memory()
    first = torch.ones(8)
    dead = begun(found, first).memory
    view = first[2:]
    del first
    assert begun(found, a := torch.ones(8)).over == ()  # a view holds it
    del view
    assert begun(found, b := torch.ones(8), stream=2).over == ()
    assert begun(found, c := torch.ones(8)).over == (dead,)
    assert begun(found, d := torch.ones(8)).over == ()
    assert len({id(one) for one in (a, b, c, d)}) == 4


def test_a_recorded_value_gives_its_memory_to_none() -> None:
    found = memory()
    first = torch.ones(8)
    begun(found, first)
    found.keep(first)
    del first
    assert begun(found, torch.ones(8)).over == ()


def test_a_value_takes_memory_of_all_that_lay_there_and_of_untouched_ones_what_lay_below() -> None:
    found = memory()
    small = [torch.ones(128) for _ in range(2)]
    numbers = {begun(found, one).memory for one in small}
    small.clear()
    bare = torch.empty(256)
    found.touches(aten.view.default, (), {}, bare, 1)  # made, and touched by nothing
    del bare
    assert set(begun(found, torch.ones(256)).over) == numbers
