"""Products with weights that a library has packed: where a replay puts their results, and who computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from npucompose_replay.capture import calls
from npucompose_replay.captured_graph import CapturedGraph
from replay_tests.test_generated_code import Code, by_itself
from tests.graph_helpers import same

ROWS, INNER, COLUMNS = 3, 24, 16
HAS_MKL = torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")
mkl = pytest.mark.skipif(not HAS_MKL, reason="this torch has no MKL")
onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def by_mkl(bias: torch.Tensor | None, rows: int = ROWS) -> Code:
    """A product, and a sum of a view of it."""
    weight = torch.randn(COLUMNS, INNER)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    constants = {"weight": weight, "packed": packed} | ({} if bias is None else {"bias": bias})

    def body(inputs: list[Any], observer: Any) -> list[Any]:
        made = torch.ops.mkl._mkl_linear(inputs[0], packed, weight, bias, rows)
        row = observer.laid(torch.as_strided(made, (COLUMNS,), (1,), COLUMNS), made)
        return [torch.ops.aten.add.Tensor(row, 1)]

    return Code(body, constants)


def by_onednn(columns: int = COLUMNS) -> Code:
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(columns, INNER), ROWS)

    def body(inputs: list[Any], observer: Any) -> list[Any]:
        made = torch.ops.mkldnn._linear_pointwise(inputs[0], weight, None, "none", [], "")
        return [torch.ops.aten.neg.default(observer.laid(torch.as_strided(made, (columns,), (1,)), made))]

    return Code(body, {"weight": weight})


def recorded(code: Code, rows: int = ROWS, executor: Any = "native") -> CapturedGraph:
    return CapturedGraph.capture_code(code, [torch.randn(rows, INNER)], finish=True, executor=executor)[0]


def follows(captured: CapturedGraph, code: Code, rows: int = ROWS) -> bool:
    """Three times, with inputs that lie elsewhere each time."""
    given = [torch.randn(rows, INNER) for _ in range(3)]
    return all(same(captured.replay(x), by_itself(code, x)) for x in given)


@mkl
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_of_mkls_is_computed_in_the_pool(with_bias: bool) -> None:
    code = by_mkl(torch.randn(COLUMNS) if with_bias else None)
    captured = recorded(code)
    facts = captured.facts()
    assert facts["ways"]["packed"] == 1
    assert facts["fresh"] == 0
    assert facts["pool_bytes"] >= ROWS * COLUMNS * 4
    assert follows(captured, code)


@mkl
def test_another_number_of_threads_than_at_capture_is_right_too() -> None:
    code, before = by_mkl(None), torch.get_num_threads()
    captured = recorded(code)
    torch.set_num_threads(before + 1)
    try:
        assert follows(captured, code)
    finally:
        torch.set_num_threads(before)


@mkl
def test_a_weight_that_was_packed_for_other_rows_is_left_to_the_operator() -> None:
    """Negative control: MKL itself would read what is packed in another way."""
    code = by_mkl(None)
    captured = recorded(code, rows=ROWS + 2)
    assert "packed" not in captured.facts()["ways"]
    assert follows(captured, code, rows=ROWS + 2)


@mkl
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_product_whose_operator_gives_other_bits_is_left_to_the_operator() -> None:
    """Negative control: somebody computes the operator in another way. No other test has so many rows, because what was
    found of a form is kept."""
    rows = ROWS + 6
    library = torch.library.Library("mkl", "IMPL")
    try:
        library.impl("_mkl_linear", lambda x, packed, weight, bias, rows: x @ weight.t() + 1e-3, "MkldnnCPU")
        code = by_mkl(None, rows)
        captured = recorded(code, rows)
        assert "packed" not in captured.facts()["ways"]
        assert follows(captured, code, rows)
    finally:
        library._destroy()


@onednn
def test_a_small_result_of_onednn_is_copied_to_its_place() -> None:
    code = by_onednn()
    captured = recorded(code)
    assert captured.facts()["fresh"] == 0
    assert captured.facts()["kernels"] == 2, "its view is no kernel"
    assert follows(captured, code)


@onednn
def test_a_large_result_of_onednn_stays_where_it_was_made_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_COPIED", ROWS * COLUMNS * 4 - 1)
    code = by_onednn()
    captured = recorded(code, executor="python")
    assert captured.facts()["fresh"] > 0
    assert follows(captured, code)


@onednn
def test_replayers_without_a_compiler_copy_it_too() -> None:
    code = by_onednn()
    assert follows(recorded(code, executor="python"), code)
