"""Which operators a permute moves through, exactly or with relaxed numbers, and how their arguments turn."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.passes.cancel_transposes import moves
from npucompose.passes.cancel_transposes.moves import absorbs, drops_rank, reduced_dims, turned
from tests.sample_graphs import aten

SHAPES: dict[str, Any] = {
    "x": torch.empty(2, 3, 4),
    "y": torch.empty(2, 3, 4),
    "n": torch.empty(2, 3, 4, dtype=torch.int64),
    "c": torch.empty(2, 3, 4, dtype=torch.complex64),
    "s": torch.empty(()),
    "v": torch.empty(4),
    "line": torch.empty(4),
    "matrix": torch.empty(3, 4),
    "sparse": torch.zeros(2, 3, 4).to_sparse(),
    "size": 3,
}


def call(target: Any, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
    graph = fx.Graph()

    def given(value: Any) -> Any:
        if isinstance(value, list):
            return [given(item) for item in value]
        if not isinstance(value, str) or value not in SHAPES:
            return value
        made = graph.placeholder(value)
        made.meta["val"] = SHAPES[value]
        return made

    made = graph.call_function(target, tuple(given(arg) for arg in args), {k: given(v) for k, v in kwargs.items()})
    made.meta["val"] = SHAPES["x"] if val is None else SHAPES.get(val, val)
    return made


CONTIGUOUS, LAST = torch.contiguous_format, torch.channels_last
ALWAYS, RELAXED, NEVER = (True, True), (False, True), (False, False)
CASES: list[tuple[fx.Node, tuple[bool, bool]]] = [
    (call(aten.relu.default, "x"), ALWAYS),
    (call(aten.add.Tensor, "x", "y"), ALWAYS),
    (call(aten.add.Tensor, "x", 1), ALWAYS),
    (call(aten.add.Tensor, "x", "s"), ALWAYS),
    (call(aten.add.Tensor, "x", "y", alpha=1), ALWAYS),
    (call(aten.add.Tensor, "x", "y", alpha=2), RELAXED),
    (call(aten.add.Tensor, "x", "v"), NEVER),
    (call(aten.add.Tensor, "x", "size"), NEVER),
    (call(aten.div.Tensor_mode, "x", "y", rounding_mode="floor"), RELAXED),
    (call(aten.exp.default, "x"), RELAXED),
    (call(aten.relu.default, "matrix", val="matrix"), ALWAYS),
    (call(aten.relu.default, "line", val="line"), NEVER),
    (call(aten.relu.default, "sparse", val="sparse"), NEVER),
    (call(aten.add_.Tensor, "x", "y"), NEVER),
    (call(aten.rand_like.default, "x"), NEVER),
    (call(aten.bernoulli.default, "x"), NEVER),
    (call(aten.view.default, "x", [2, 3, 4]), NEVER),
    (call(aten._assert_async.default, "x"), NEVER),
    (call(aten.mm.default, "x", "y"), NEVER),
    (call(aten.cumsum.default, "x", 0), NEVER),
    (call(operator.add, "x", "y"), NEVER),
    (call(aten.max.dim, "x", 0, val=(SHAPES["x"], SHAPES["n"])), NEVER),
    (call(aten.clone.default, "x"), ALWAYS),
    (call(aten.clone.default, "x", memory_format=CONTIGUOUS), ALWAYS),
    (call(aten.clone.default, "x", memory_format=torch.preserve_format), ALWAYS),
    (call(aten.clone.default, "x", memory_format=LAST), NEVER),
    (call(aten._to_copy.default, "x", dtype=torch.float64), ALWAYS),
    (call(aten._to_copy.default, "x", device=torch.device("cpu")), NEVER),
    (call(aten.cat.default, ["x", "y"], 1), ALWAYS),
    (call(aten._softmax.default, "x", 1, False), RELAXED),
    (call(aten._log_softmax.default, "x", 1, False), RELAXED),
    (call(aten.amax.default, "x", [1], True), ALWAYS),
    (call(aten.amax.default, "x", [1], keepdim=True), ALWAYS),
    (call(aten.amin.default, "x", [1], True), ALWAYS),
    (call(aten.amax.default, "x", [1], False), NEVER),
    (call(aten.amax.default, "x", [1]), NEVER),
    (call(aten.sum.dim_IntList, "x", [1], True), RELAXED),
    (call(aten.sum.dim_IntList, "n", [1], True, val="n"), ALWAYS),
    (call(aten.sum.dim_IntList, "c", [1], True, val="c"), RELAXED),
    (call(aten.mean.dim, "x", [1], True), RELAXED),
    (call(aten.mean.dim, "n", [1], True, val="n"), RELAXED),
]


@pytest.mark.parametrize(("node", "wanted"), CASES, ids=[f"{i}-{c[0].target}" for i, c in enumerate(CASES)])
def test_a_permute_moves_through(node: fx.Node, wanted: tuple[bool, bool]) -> None:
    assert (absorbs(node, relaxed=False), absorbs(node, relaxed=True)) == wanted
    assert not absorbs(fx.Graph().placeholder("x"), relaxed=True)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (call(aten.amax.default, "x", [1]), ALWAYS),
        (call(aten.amax.default, "x", [1], True), NEVER),
        (call(aten.amax.default, "x", [1], keepdim=True), NEVER),
        (call(aten.sum.dim_IntList, "x", [1]), RELAXED),
        (call(aten.sum.dim_IntList, "n", [1], val="n"), ALWAYS),
        (call(aten.mean.dim, "x", [1], False), RELAXED),
        (call(aten.exp.default, "x"), NEVER),
    ],
)
def test_a_reduction_may_see_its_dimensions_in_another_order(node: fx.Node, wanted: tuple[bool, bool]) -> None:
    assert (drops_rank(node, relaxed=False), drops_rank(node, relaxed=True)) == wanted


@pytest.mark.parametrize(
    ("node", "dims"),
    [
        (call(aten.amax.default, "x", [0, -1]), (0, 2)),
        (call(aten.amax.default, "x", dim=[-2]), (1,)),
        (call(aten.amax.default, "x"), (0, 1, 2)),
        (call(aten.sum.dim_IntList, "x", None), (0, 1, 2)),
    ],
)
def test_dimensions_count_from_the_front(node: fx.Node, dims: tuple[int, ...]) -> None:
    assert reduced_dims(node, 3) == dims


PERM = (2, 0, 1)
TURNED: list[tuple[fx.Node, tuple[Any, ...], dict[str, Any]]] = [
    (call(aten.cat.default, ["x", "y"], -1), (1,), {}),
    (call(aten.cat.default, ["x", "y"]), (), {}),
    (call(aten.cat.default, ["x", "y"], dim=-3), (), {"dim": 2}),
    (call(aten._softmax.default, "x", 0, False), (2, False), {}),
    (call(aten._log_softmax.default, "x", -2, False), (0, False), {}),
    (call(aten.amax.default, "x", [0, -1], True), ([2, 1], True), {}),
    (call(aten.amax.default, "x"), (), {}),
    (call(aten.sum.dim_IntList, "x", dim=[1], keepdim=True), (), {"dim": [0], "keepdim": True}),
    (call(aten.add.Tensor, "x", 1, alpha=2), (1,), {"alpha": 2}),
    (call(aten.relu.default, "x"), (), {}),
]


@pytest.mark.parametrize(("node", "args", "kwargs"), TURNED)
def test_arguments_name_dimensions_in_the_new_order(node: fx.Node, args: tuple[Any, ...], kwargs: Any) -> None:
    before = dict(node.kwargs)
    assert turned(node, PERM, node.args, node.kwargs) == ((node.args[0], *args), kwargs)
    assert dict(node.kwargs) == before


MOVED: list[tuple[fx.Node, Any, bool, bool, int]] = [
    (call(aten.permute.default, "x", [1, -1, 0]), (1, 2, 0), False, False, 192),
    (call(aten.transpose.int, "x", 0, -1), (2, 1, 0), False, False, 192),
    (call(aten.t.default, "x", val=torch.empty(3, 2)), (1, 0), False, False, 48),
    (call(aten.t.default, "v", val="v"), (0,), False, False, 32),
    (call(aten.clone.default, "x"), None, True, False, 192),
    (call(aten._to_copy.default, "x", dtype=torch.float64, val=torch.empty(2, 3, 4).double()), None, False, True, 288),
    (call(aten._to_copy.default, "x", dtype=torch.float64, device=None, non_blocking=False), None, False, True, 192),
    (call(aten._to_copy.default, "x", dtype=torch.float64, non_blocking=True), None, False, False, 0),
    (call(aten._to_copy.default, "x", device=torch.device("cpu")), None, False, False, 0),
    (call(aten.relu.default, "x"), None, False, False, 0),
]


@pytest.mark.parametrize(("node", "perm", "copy", "cast", "count"), MOVED)
def test_what_moves_data_is_counted_in_bytes(node: fx.Node, perm: Any, copy: bool, cast: bool, count: int) -> None:
    assert (moves.perm_of(node), moves.is_copy(node), moves.is_cast(node)) == (perm, copy, cast)
    assert moves.moved(node) == count
    is_move = perm is not None or copy or cast
    assert moves.is_move(node) is is_move
    assert moves.moves_of(node.graph) == [node] * is_move
    assert moves.counted(node.graph) == (perm is not None, cast, count * is_move)


def test_a_copy_behind_a_permute_is_one_movement_with_it() -> None:
    node = call(aten.permute.default, "x", [1, 2, 0])
    copy = node.graph.call_function(aten.clone.default, (node,), {"memory_format": CONTIGUOUS})
    copy.meta["val"] = SHAPES["x"]
    assert (moves.moved(copy), moves.lays_down(copy), moves.lays_down(call(aten.clone.default, "x"))) == (
        0,
        True,
        False,
    )
    unknown = node.graph.call_function(aten.transpose.int, (node, 0, 1))
    assert moves.perm_of(unknown) is None
    assert moves.bytes_of(None) == 0
