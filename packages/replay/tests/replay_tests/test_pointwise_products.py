"""Products and convolutions with packed weights that oneDNN computes where a replay wants them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.streams.execution import intra_op_threads
from npucompose_replay.capture import calls
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from replay_tests.test_generated_code import Code, by_itself, copied
from tests.graph_helpers import same

HEADER = Path(torch.__file__).parent / "include" / "oneapi" / "dnnl" / "dnnl.h"
"""torch 2.7 has none."""
pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
    pytest.mark.skipif(not HEADER.is_file(), reason="this torch has no headers of oneDNN"),
]
mkldnn = torch.ops.mkldnn
PLAIN: list[Any] = [[1, 1], [1, 1], [1, 1], 1]
"""Padding, stride, dilation, groups."""
SLIDES: list[Any] = [[2, 1], [2, 1], [2, 1], 2]
CHANNELS, OUT = 8, 16


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def image(channels: int = CHANNELS, size: int = 9) -> torch.Tensor:
    return torch.randn(2, channels, size, size).contiguous(memory_format=torch.channels_last)


Operator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Called with x, a packed weight and a bias."""


def convolution(form: list[Any], activation: str = "none", algorithm: str = "") -> Operator:
    return lambda x, weight, bias: mkldnn._convolution_pointwise(x, weight, bias, *form, activation, [], algorithm)


def filters(form: list[Any], x: torch.Tensor) -> torch.Tensor:
    plain = torch.randn(OUT, CHANNELS // form[3], 3, 3)
    return mkldnn._reorder_convolution_weight(plain, *form, list(x.shape))


DOUBLES: list[Any] = [[1, 1], [1, 0], [2, 2], [1, 1], 1]
"""Padding, output padding, stride, dilation, groups."""
DOUBLES_GROUPS: list[Any] = [[0, 1], [0, 1], [1, 2], [2, 1], 2]


def transposed(form: list[Any], activation: str = "none", algorithm: str = "") -> Operator:
    return lambda x, weight, bias: mkldnn._convolution_transpose_pointwise(
        x, weight, bias, *form, activation, [], algorithm
    )


def transposed_filters(form: list[Any], x: torch.Tensor) -> torch.Tensor:
    plain = torch.randn(CHANNELS, OUT // form[4], 3, 3)
    return mkldnn._reorder_convolution_transpose_weight(plain, *form, list(x.shape))


def linear(activation: str = "none", algorithm: str = "") -> Operator:
    return lambda x, weight, bias: mkldnn._linear_pointwise(x, weight, bias, activation, [], algorithm)


def matrix(rows: int) -> torch.Tensor:
    return mkldnn._reorder_linear_weight(torch.randn(OUT, CHANNELS), rows)


def code_of(operator: Operator, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Code:
    constants = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return Code(lambda inputs, observer: [operator(inputs[0], weight, bias)], constants)


def recorded(code: Code, *inputs: torch.Tensor, executor: Any = "native") -> CapturedGraph:
    return CapturedGraph.capture_code(code, list(inputs), finish=True, executor=executor)[0]


def follows(captured: CapturedGraph, code: Code, *inputs: torch.Tensor) -> bool:
    """Three times, with inputs that lie elsewhere each time and results that somebody holds."""
    given = [[torch.empty_like(x).copy_(torch.randn(x.shape)) for x in inputs] for _ in range(3)]
    got = [captured.replay(*some) for some in given]
    return all(same(one, by_itself(code, *some)) for one, some in zip(got, given, strict=True))


ACTIVATIONS = [
    ("none", ""), ("relu", ""), ("sigmoid", ""), ("tanh", ""), ("swish", ""), ("gelu", "none"), ("gelu", "tanh"),
]  # fmt: skip


@pytest.mark.parametrize(("activation", "algorithm"), ACTIVATIONS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_and_convolutions_are_computed_in_the_pool(activation: str, algorithm: str, with_bias: bool) -> None:
    bias = torch.randn(OUT) if with_bias else None
    x = image()
    for code, given in (
        (code_of(convolution(PLAIN, activation, algorithm), filters(PLAIN, x), bias), x),
        (code_of(transposed(DOUBLES, activation, algorithm), transposed_filters(DOUBLES, x), bias), x),
        (code_of(linear(activation, algorithm), matrix(15), bias), torch.randn(3, 5, CHANNELS)),
    ):
        captured = recorded(code, given)
        assert captured.facts()["ways"] == {"packed": 1}
        assert captured.facts()["fresh"] == 0
        assert follows(captured, code, given)


def test_a_filter_that_slides_in_strides_over_groups_and_gaps_does_too() -> None:
    x = image()
    code = code_of(convolution(SLIDES, "relu"), filters(SLIDES, x), torch.randn(OUT))
    captured = recorded(code, x)
    assert captured.facts()["ways"] == {"packed": 1}
    assert follows(captured, code, x)


@pytest.mark.parametrize("form", [DOUBLES, DOUBLES_GROUPS, [[1, 0], [0, 0], [1, 1], [1, 1], 1]])
def test_a_transposed_convolution_does_too(form: list[Any]) -> None:
    x = torch.randn(2, CHANNELS, 9, 7).contiguous(memory_format=torch.channels_last)
    code = code_of(transposed(form, "relu"), transposed_filters(form, x), torch.randn(OUT))
    captured = recorded(code, x)
    assert captured.facts()["ways"] == {"packed": 1}
    assert captured.facts()["fresh"] == 0
    assert follows(captured, code, x)


def test_a_convolution_is_added_to_what_is_there_and_to_another_value() -> None:
    x, other = image(), image(OUT)
    weight, bias = filters(PLAIN, x), torch.randn(OUT)

    def body(inputs: list[Any], observer: Any) -> list[Any]:
        first = mkldnn._convolution_pointwise(inputs[0], weight, bias, *PLAIN, "none", [], "")
        rest = (*PLAIN, "add", 1.0, "relu", [], None)
        second = mkldnn._convolution_pointwise.binary(inputs[0], inputs[1], weight, bias, *rest)
        there = copied(first, observer)
        added = mkldnn._convolution_pointwise_.binary(there, inputs[0], weight, bias, *rest)
        return [second, copied(added, observer)]

    code = Code(body, {"weight": weight, "bias": bias})
    captured = recorded(code, x, other)
    assert captured.facts()["ways"]["packed"] == 3
    assert follows(captured, code, x, other)


def test_a_large_result_is_computed_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_COPIED", 0)
    x = image()
    code = code_of(convolution(PLAIN), filters(PLAIN, x))
    captured = recorded(code, x)
    assert captured.facts()["fresh"] == 0
    assert follows(captured, code, x)
    assert recorded(code, x, executor="python").facts()["fresh"] > 0


def of_leaky_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return mkldnn._convolution_pointwise(x, weight, bias, *PLAIN, "leaky_relu", [0.1], "")


def test_what_is_in_another_form_is_left_to_the_operator() -> None:
    """Negative controls: a layout that torch turns first, an activation with a number, half precision."""
    x = image()
    weight = filters(PLAIN, x)
    half = torch.randn(15, CHANNELS).bfloat16()
    packed_half = mkldnn._reorder_linear_weight(torch.randn(OUT, CHANNELS).bfloat16(), 15)
    for code, given in (
        (code_of(convolution(PLAIN), weight), x.contiguous()),
        (code_of(of_leaky_relu, weight), x),
        (code_of(linear(), packed_half), half),
    ):
        captured = recorded(code, given)
        assert "packed" not in captured.facts()["ways"]
        assert follows(captured, code, given)


def test_what_is_subtracted_is_left_to_the_operator() -> None:
    x, other = image(), image(OUT)
    weight = filters(PLAIN, x)
    for binary in ("sub", "mul"):
        rest = (weight, None, *PLAIN, binary, None, None, [], None)
        code = Code(
            lambda inputs, _, rest=rest: [mkldnn._convolution_pointwise.binary(*inputs, *rest)], {"weight": weight}
        )
        captured = recorded(code, x, other)
        assert "packed" not in captured.facts()["ways"]
        assert follows(captured, code, x, other)


@contextlib.contextmanager
def by_somebody_else(name: str, size: int) -> Iterator[None]:
    """Convolutions, or products, that torch computes are all 7."""

    def seven(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        shape = (2, OUT, size, size) if name == "_convolution_pointwise" else (*x.shape[:-1], OUT)
        made = torch.full(shape, 7.0)
        return made.contiguous(memory_format=torch.channels_last) if made.dim() == 4 else made

    library = torch.library.Library("mkldnn", "IMPL")
    try:
        library.impl(name, seven, "MkldnnCPU")
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def precision(of: Any) -> Iterator[None]:
    before, of.fp32_precision = of.fp32_precision, "bf16"
    try:
        yield
    finally:
        of.fp32_precision = before


def deterministic() -> Any:
    return torch.backends.mkldnn.flags(enabled=True, deterministic=True, allow_tf32=None, fp32_precision=None)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_torch_computes_under_other_settings_than_at_capture() -> None:
    x, rows, backend = image(size=17), torch.randn(4, CHANNELS), torch.backends.mkldnn
    settings: list[tuple[Any, bool, bool]] = [
        (contextlib.nullcontext(), False, False),
        (intra_op_threads(torch.get_num_threads() + 1), True, True),
        (deterministic(), True, False),
    ]
    if hasattr(backend, "conv"):  # before torch 2.9 there was one precision for both
        settings += [(precision(backend.conv), True, False), (precision(backend.matmul), True, True)]
    convolved = recorded(code_of(convolution(PLAIN, "relu"), filters(PLAIN, x), torch.randn(OUT)), x)
    multiplied = recorded(code_of(linear(), matrix(4)), rows)
    for setting, convolves, multiplies in settings:
        with setting, by_somebody_else("_convolution_pointwise", 17), by_somebody_else("_linear_pointwise", 0):
            assert bool((convolved.replay(x)[0] == 7).all()) == convolves
            assert bool((multiplied.replay(rows)[0] == 7).all()) == multiplies


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_operator_that_gives_other_bits_computes_itself() -> None:
    """Negative control: somebody computes it in another way. No other test has operands of these sizes."""
    x, rows = image(size=13), torch.randn(11, CHANNELS)
    with by_somebody_else("_convolution_pointwise", 13), by_somebody_else("_linear_pointwise", 0):
        for code, given in ((code_of(convolution(PLAIN), filters(PLAIN, x)), x), (code_of(linear(), matrix(11)), rows)):
            captured = recorded(code, given)
            assert "packed" not in captured.facts()["ways"]
            assert follows(captured, code, given)


def test_values_that_no_number_is_go_through_as_the_operator_lets_them() -> None:
    x = image()
    code = code_of(convolution(PLAIN, "relu"), filters(PLAIN, x))
    captured = recorded(code, x)
    for value in (float("inf"), float("nan"), -0.0, 1e-42):
        given = image().fill_(value)
        assert same(captured.replay(given), by_itself(code, given))
