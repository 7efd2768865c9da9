"""The roofline of one kernel: arithmetic, memory, launch; which cores it fills; what a size counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from npucompose.streams import cost
from npucompose.streams.cost import ResultSizes, hint, roofline
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import ATLAS_A2, DeviceModel, cpu
from tests.sample_graphs import node, traced

aten = torch.ops.aten
MODEL = attrs.evolve(
    ATLAS_A2,
    launch_us=0.5,
    cube=4,
    vector=8,
    cube_gflops=2.0,
    vector_gflops=1.0,
    gbytes_s=4.0,
    l2_gbytes_s=0.0,
    word_bytes=None,
    fork_us=None,
)
X = torch.randn(64, 64)
COUNT, BYTES = 64 * 64, 64 * 64 * 4


def work_of(function: Callable[..., Any], name: str, *inputs: torch.Tensor, model: DeviceModel = MODEL) -> Work:
    (found,) = roofline([node(traced(function, *inputs).graph, name)], model, ResultSizes())
    return found


def test_sizes_are_elements_and_bytes_of_all_tensors_of_a_result() -> None:
    sizes = ResultSizes()
    graph = traced(lambda x: x.max(0), X).graph
    both = node(graph, "max_1")
    assert sizes[both] == (64 + 64, 64 * 4 + 64 * 8)
    assert sizes[next(one for one in graph.nodes if one.op == "output")] == (0.0, 0.0)
    assert sizes[node(graph, "x_1")] == (COUNT, BYTES)
    both.meta["val"] = None
    assert sizes[both] == (64 + 64, 64 * 4 + 64 * 8)  # worked out once


def test_a_kernel_reads_all_its_inputs_and_writes_its_result() -> None:
    found = work_of(lambda x, y: x + y, "add", X, X.clone())
    memory_us = 3 * BYTES / 4e3
    assert found == Work(
        us=0.5 + memory_us,
        vector=2,
        bandwidth=memory_us / (0.5 + memory_us),
        fixed_us=0.5,
        divided_us=2 * COUNT / (2 * 1e3),
    )


def test_an_input_that_is_read_twice_is_read_once() -> None:
    assert work_of(lambda x: x + x, "add", X).us == 0.5 + 2 * BYTES / 4e3


FAST = attrs.evolve(MODEL, gbytes_s=1e9)


@pytest.mark.parametrize(
    ("function", "name", "inputs", "flops"),
    [
        (lambda x: x.exp(), "exp", [X], COUNT),
        (lambda x: x.sum(), "sum_1", [X], COUNT),  # what it reads, where that is more
        (lambda x: x.expand(2, 64, 64).clone(), "clone", [X], 2 * COUNT),
    ],
)
def test_arithmetic_on_vector_cores_is_an_operation_for_each_element(
    function: Any, name: str, inputs: list[torch.Tensor], flops: int
) -> None:
    used = min(8, math.ceil(flops / 4096))
    found = work_of(function, name, *inputs, model=FAST)
    assert (found.cube, found.vector, found.gang) == (0, used, False)
    assert found.us == pytest.approx(0.5 + flops / (used * 1e3))


M, V = torch.randn(8, 5), torch.randn(5)


@pytest.mark.parametrize(
    ("function", "name", "inputs", "flops", "tiles"),
    [
        (lambda a, b: a.mm(b), "mm", [M, torch.randn(5, 3)], 2 * 8 * 3 * 5, 1),
        (lambda a, b: a.bmm(b), "bmm", [torch.randn(2, 8, 5), torch.randn(2, 5, 3)], 2 * 2 * 8 * 3 * 5, 2),
        (lambda a, b: aten.mv(a, b), "mv", [M, V], 2 * 8 * 5, 1),
        (lambda c, a, b: torch.addmm(c, a, b), "addmm", [torch.randn(8, 3), M, torch.randn(5, 3)], 2 * 8 * 3 * 5, 1),
        (
            lambda c, a, b: torch.baddbmm(c, a, b),
            "baddbmm",
            [torch.randn(2, 8, 3), torch.randn(2, 8, 5), torch.randn(2, 5, 3)],
            2 * 2 * 8 * 3 * 5,
            2,
        ),
        (lambda c, a, b: aten.addmv(c, a, b), "addmv", [torch.randn(8), M, V], 2 * 8 * 5, 1),
    ],
)
def test_a_product_is_two_operations_for_each_element_and_each_of_what_is_summed(
    function: Any, name: str, inputs: list[torch.Tensor], flops: int, tiles: int
) -> None:
    found = work_of(function, name, *inputs, model=FAST)
    assert (found.cube, found.vector, found.tiles) == (tiles, 0, tiles)
    assert found.us == pytest.approx(0.5 + flops / (tiles * 2e3))
    assert (found.fixed_us, found.divided_us) == (0.5, pytest.approx(flops / (tiles * 2e3)))


@pytest.mark.parametrize(("rows", "cores"), [(1, 1), (128, 1), (129, 2), (4 * 128, 4), (8 * 128, 4)])
def test_a_product_fills_a_core_for_each_tile_of_its_result(rows: int, cores: int) -> None:
    found = work_of(lambda a, b: a.mm(b), "mm", torch.randn(rows, 2), torch.randn(2, 128), model=FAST)
    assert (found.cube, found.vector) == (cores, 0)
    assert found.us == pytest.approx(0.5 + 2 * rows * 128 * 2 / (cores * 2e3))


@pytest.mark.parametrize(("elements", "cores"), [(1, 1), (4096, 1), (4097, 2), (8 * 4096, 8), (9 * 4096, 8)])
def test_everything_else_fills_a_core_for_each_tile_of_what_it_reads_or_makes(elements: int, cores: int) -> None:
    assert work_of(lambda x: x.exp(), "exp", torch.randn(elements), model=FAST).vector == cores
    assert work_of(lambda x: x.sum(), "sum_1", torch.randn(elements), model=FAST).vector == cores
    assert work_of(lambda x: aten.expand_copy(x, [elements]), "expand_copy", torch.randn(1), model=FAST).vector == cores


def test_a_product_of_one_row_has_tiles_along_its_columns() -> None:
    """A decode step: no core takes 16,384 columns of one row while others have nothing to do."""
    found = work_of(lambda a, b: a.mm(b), "mm", torch.randn(1, 8), torch.randn(8, 1024), model=FAST)
    assert (found.cube, found.tiles) == (4, 8)


def test_tiles_that_do_not_fill_a_round_take_it_all_the_same() -> None:
    """Five tiles on four cores are two rounds, as on three: a core less costs nothing."""
    found = work_of(lambda a, b: a.mm(b), "mm", torch.randn(5 * 128, 8), torch.randn(8, 128), model=FAST)
    tile_us = 2 * 128 * 128 * 8 / 2e3
    assert (found.cube, found.tiles, found.us) == (4, 5, pytest.approx(0.5 + 2 * tile_us))
    assert found.on(3, 8).us == found.us
    assert found.on(2, 8).us == pytest.approx(0.5 + 3 * tile_us)


def test_a_kernel_that_waits_for_memory_loses_little_with_fewer_cores() -> None:
    found = work_of(lambda x: x.exp(), "exp", torch.randn(8 * 4096), model=attrs.evolve(MODEL, vector_gflops=10.0))
    memory_us, busy_us = 2 * 8 * 4096 * 4 / 4e3, 8 * 4096 / 1e4
    assert memory_us > busy_us
    assert found.us == found.on(4, 1).us == pytest.approx(0.5 + memory_us)
    assert found.on(4, 1).bandwidth == found.bandwidth


def test_a_product_s_operands_take_no_tile() -> None:
    assert work_of(lambda a, b: a.mm(b), "mm", torch.randn(2, 99999), torch.randn(99999, 2), model=FAST).cube == 1


def test_without_cube_cores_everything_takes_one_core() -> None:
    model = attrs.evolve(FAST, cube=0)
    product = work_of(lambda a, b: a.mm(b), "mm", torch.randn(300, 2), torch.randn(2, 300), model=model)
    assert (product.cube, product.vector, product.gang) == (0, 1, False)
    assert product.us == pytest.approx(0.5 + 2 * 300 * 300 * 2 / 2e3)
    assert work_of(lambda x: x.exp(), "exp", torch.randn(99999), model=model).vector == 1


NARROW = attrs.evolve(FAST, word_bytes=2)


@pytest.mark.parametrize(
    ("dtype", "product", "other"),
    [(torch.float32, 4.0, 2.0), (torch.float16, 1.0, 1.0), (torch.bfloat16, 1.0, 1.0), (torch.int8, 0.5, 1.0)],
)
def test_the_width_of_elements_decides_how_fast_cores_go(dtype: torch.dtype, product: float, other: float) -> None:
    x = torch.ones(64, 64, dtype=dtype)
    multiply = torch._int_mm if dtype is torch.int8 else torch.mm
    found = work_of(lambda a: multiply(a, a), "_int_mm" if dtype is torch.int8 else "mm", x, model=NARROW)
    assert found.us == pytest.approx(0.5 + product * 2 * 64**3 / 2e3)
    assert work_of(lambda a: -a, "neg", x, model=NARROW).us == pytest.approx(0.5 + other * COUNT / 1e3)


CACHED = attrs.evolve(MODEL, vector_gflops=1e9, l2_gbytes_s=40.0, l2_bytes=3.0 * BYTES)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x.exp().view(-1).sin() * y.view(-1)).view(64, 64) * x).sqrt()


def test_what_was_just_read_or_written_comes_from_l2() -> None:
    """exp moves x and its result, sin those two, mul those of sin and y: x lies further back than L2 holds."""
    graph = traced(chain, X, X.clone()).graph
    kernels = [node(graph, name) for name in ("exp", "sin", "mul", "mul_1", "sqrt")]
    far, near = BYTES / 4e3, BYTES / 40e3
    found = [work.us for work in roofline(kernels, CACHED, ResultSizes())]
    expected = [2 * far, far + near, 2 * far + near, 2 * far + near, far + near]
    assert found == pytest.approx([0.5 + us for us in expected])
    without = roofline(kernels, attrs.evolve(CACHED, l2_gbytes_s=0.0), ResultSizes())
    assert [work.us for work in without] == pytest.approx([0.5 + far * n for n in (2, 2, 3, 3, 2)])


def test_l2_takes_no_bandwidth_of_memory() -> None:
    graph = traced(lambda x: x.exp().sin(), X).graph
    _, found = roofline([node(graph, "exp"), node(graph, "sin")], CACHED, ResultSizes())
    assert found.bandwidth == pytest.approx(BYTES / 4e3 / found.us)


def test_a_tensor_that_l2_cannot_hold_is_read_from_memory() -> None:
    graph = traced(lambda x: x.exp().sin(), X).graph
    small = attrs.evolve(CACHED, l2_bytes=BYTES - 1.0)
    _, found = roofline([node(graph, "exp"), node(graph, "sin")], small, ResultSizes())
    assert found.us == pytest.approx(0.5 + 2 * BYTES / 4e3)


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)[0]


def test_attention_and_products_of_quantised_matrices_fill_both_kinds_of_cores() -> None:
    """Keys and values are what attention is divided by: one query over 4,096 keys fills the device."""
    q, k = torch.randn(1, 2, 1, 64), torch.randn(1, 2, 4096, 64)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    found = work_of(attention, name, q, k, model=FAST)
    assert (found.cube, found.vector) == (4, 8)
    assert found.us == pytest.approx(0.5 + 4 * 2 * 4096 * 64 / (4 * 2e3), rel=0.05)
    small = work_of(attention, name, q, torch.randn(1, 2, 8, 64), model=FAST)
    assert (small.cube, small.vector) == (1, 2)
    alike = work_of(attention, name, q, k, model=attrs.evolve(FAST, cube=0))
    assert (alike.cube, alike.vector) == (0, 1)


def quantised(kind: str) -> torch.fx.Node:
    """A node of that name, of 256 x 8 and 8 x 128 eight-bit matrices; the operator need not be there."""
    graph = torch.fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    left.meta["val"], right.meta["val"] = torch.ones(256, 8, dtype=torch.int8), torch.ones(8, 128, dtype=torch.int8)
    made = graph.call_function(aten.mm.default, (left, right))
    made.target = type("Overload", (), {"overloadpacket": type(kind, (), {})})  # type: ignore[assignment]
    made.meta["val"] = torch.ones(256, 128, dtype=torch.float16)
    return made


@pytest.mark.parametrize(
    ("kind", "cores"),
    [
        ("npu_quant_matmul", (2, 4)),
        ("npu_weight_quant_batchmatmul", (2, 4)),
        ("npu_fused_infer_attention_score", (4, 8)),
    ],
)
def test_an_npu_s_mixed_kernels_are_known_by_their_names(kind: str, cores: tuple[int, int]) -> None:
    (found,) = roofline([quantised(kind)], NARROW, ResultSizes())
    assert (found.cube, found.vector) == cores
    if kind != "npu_fused_infer_attention_score":
        assert found.us == pytest.approx(0.5 + 0.5 * 2 * 256 * 128 * 8 / (2 * 2e3))


def test_a_kernel_that_takes_no_time_takes_no_bandwidth() -> None:
    graph = torch.fx.Graph()
    made = graph.call_function(aten.rand.default, ([0],))
    made.meta["val"] = torch.empty(0)
    (found,) = roofline([made], attrs.evolve(MODEL, launch_us=0.0), ResultSizes())
    assert (found.us, found.bandwidth) == (0.0, 0.0)


def test_in_a_row_a_kernel_may_take_threads_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attrs.evolve(cpu(8), launch_us=0.5, vector_gflops=1.0, gbytes_s=1e9, fork_us=2.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    large = work_of(lambda x: x.exp(), "exp", torch.randn(8192), model=model)
    assert large.us == pytest.approx(0.5 + 8.192)
    assert large.in_a_row_us == pytest.approx(2.0 + 0.5 + 8.192 / 4)
    small = work_of(lambda x: x.exp(), "exp", torch.randn(1024), model=model)
    assert small.in_a_row_us == small.us == pytest.approx(0.5 + 1.024)
    assert work_of(lambda x: x.exp(), "exp", X, model=attrs.evolve(model, fork_us=None)).in_a_row_us is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert work_of(lambda x: x.exp(), "exp", torch.randn(8192), model=model).in_a_row_us == pytest.approx(
        2.0 + 0.5 + 8.192 / 8
    )


def test_a_size_is_a_number_its_hint_or_one() -> None:
    symbol = node(traced(lambda x: x.exp(), torch.randn(5, 3), mode="symbolic").graph, "exp").meta["val"].shape[0]
    assert (hint(7), hint(symbol), hint(2.5)) == (7.0, 5.0, 2.5)
    assert type(hint(symbol)) is type(hint(7)) is float


def test_a_size_that_nobody_knows_counts_as_one() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    assert hint(ShapeEnv().create_unbacked_symint()) == 1.0


def test_an_operand_whose_size_is_unknown_has_no_formula() -> None:
    graph = traced(lambda x: x.mm(x), X).graph
    product = node(graph, "mm")
    del node(graph, "x_1").meta["val"]
    assert cost.flops_of(product, 1.0) is None
    assert cost.flops_of(node(graph, "x_1"), 1.0) is None
