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
    ATLAS_A2, launch_us=0.5, cube=4, vector=8, cube_gflops=2.0, vector_gflops=1.0, gbytes_s=4.0, fork_us=None
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
    assert found == Work(us=0.5 + memory_us, vector=2, bandwidth=memory_us / (0.5 + memory_us))


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
    ("function", "name", "inputs", "flops"),
    [
        (lambda a, b: a.mm(b), "mm", [M, torch.randn(5, 3)], 2 * 8 * 3 * 5),
        (lambda a, b: a.bmm(b), "bmm", [torch.randn(2, 8, 5), torch.randn(2, 5, 3)], 2 * 2 * 8 * 3 * 5),
        (lambda a, b: aten.mv(a, b), "mv", [M, V], 2 * 8 * 5),
        (lambda c, a, b: torch.addmm(c, a, b), "addmm", [torch.randn(8, 3), M, torch.randn(5, 3)], 2 * 8 * 3 * 5),
        (
            lambda c, a, b: torch.baddbmm(c, a, b),
            "baddbmm",
            [torch.randn(2, 8, 3), torch.randn(2, 8, 5), torch.randn(2, 5, 3)],
            2 * 2 * 8 * 3 * 5,
        ),
        (lambda c, a, b: aten.addmv(c, a, b), "addmv", [torch.randn(8), M, V], 2 * 8 * 5),
    ],
)
def test_a_product_is_two_operations_for_each_element_and_each_of_what_is_summed(
    function: Any, name: str, inputs: list[torch.Tensor], flops: int
) -> None:
    found = work_of(function, name, *inputs, model=FAST)
    assert (found.cube, found.vector) == (1, 0)
    assert found.us == pytest.approx(0.5 + flops / 2e3)


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


def test_a_product_s_operands_take_no_tile() -> None:
    assert work_of(lambda a, b: a.mm(b), "mm", torch.randn(2, 99999), torch.randn(99999, 2), model=FAST).cube == 1


def test_without_cube_cores_everything_takes_one_core() -> None:
    model = attrs.evolve(FAST, cube=0)
    product = work_of(lambda a, b: a.mm(b), "mm", torch.randn(300, 2), torch.randn(2, 300), model=model)
    assert (product.cube, product.vector, product.gang) == (0, 1, False)
    assert product.us == pytest.approx(0.5 + 2 * 300 * 300 * 2 / 2e3)
    assert work_of(lambda x: x.exp(), "exp", torch.randn(99999), model=model).vector == 1


def all_reduce() -> torch.fx.Node:
    from torch.distributed import _functional_collectives

    assert _functional_collectives  # defines the operators
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.randn(2, device="meta")
    made = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
    made.meta["val"] = torch.randn(2, device="meta")
    return made


def test_a_collective_takes_all_vector_cores_at_once() -> None:
    kernel = all_reduce()
    (found,) = roofline([kernel], FAST, ResultSizes())
    assert (found.cube, found.vector, found.gang) == (0, 8, True)
    (found,) = roofline([kernel], attrs.evolve(FAST, cube=0), ResultSizes())
    assert (found.cube, found.vector, found.gang) == (0, 1, False)


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
    assert cost._flops(product, 1.0) is None
    assert cost._flops(node(graph, "x_1"), 1.0) is None
