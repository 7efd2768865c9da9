"""Attention in max-autotune: by oneDNN where it is faster, pinned or asked for; replayed in place."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import npucompose
from npucompose.bits import same_bytes
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.products import onednn
from npucompose_replay.products.attention import FLASH, attentions, choose_attention
from npucompose_replay.products.winners import Winners
from replay_tests.targets.by_onednn import FUSED, computed_alike_by_the_wrapper, keeps_bits_in_other_modes
from tests.graph_helpers import traced
from tests.searches import examples

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("one_quiet_thread"),
]
SCALE = 32**-0.5
Operands = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))


def heads(batch: int = 2, count: int = 4, rows: int = 64, size: int = 32, columns: int | None = None) -> Operands:
    """Query, key and value of as many heads, each as a model splits its rows."""
    sizes = (rows, columns or rows, columns or rows)
    return tuple(torch.randn(batch, n, count, size).transpose(1, 2) for n in sizes)


def graph_of(*operands: torch.Tensor, read: int = 0, **more: Any) -> fx.GraphModule:
    """A graph that calls torch's kernel and reads one of its results; a fourth operand is the mask."""
    graph = fx.Graph()
    nodes: list[Any] = []
    for at, value in enumerate(operands):
        nodes.append(graph.placeholder(f"x{at}"))
        nodes[-1].meta["val"] = value
    if nodes[3:]:
        more["attn_mask"] = nodes[3]
    args = (*nodes[:3], more.pop("dropout", 0.0), more.pop("causal", False))
    result = graph.call_function(operator.getitem, (graph.call_function(FLASH, args, more), read))
    result.meta["val"] = operands[0]
    graph.output((graph.call_function(torch.ops.aten.neg.default, (result,)),))
    return fx.GraphModule(nn.Module(), graph)


def called(graph: fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def by_torch(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> torch.Tensor:
    return FLASH(query, key, value, 0.0, causal, attn_mask=mask, scale=SCALE)[0]


def by_onednn(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> torch.Tensor:
    return torch.ops.air.onednn_attention(query, key, value, mask, causal, SCALE)


# -- which calls


def test_attention_is_named_by_its_sizes_and_by_what_hides_columns() -> None:
    operands = heads(columns=48)
    mask = torch.zeros(64, 48)
    names = [
        attentions(graph)[0].form
        for graph in (graph_of(*operands), graph_of(*operands, causal=True), graph_of(*operands, mask))
    ]
    assert names == [f"attention_2x4x64x48x32{how}" for how in ("", "_causal", "_masked")]
    assert attentions(graph_of(*operands))[0].work == 2 * (2 * 2 * 4 * 64 * 48 * 32)


def test_without_a_scale_it_is_torchs_own() -> None:
    assert [attentions(graph_of(*heads(), **given))[0].scale for given in ({}, {"scale": 0.0}, {"scale": 0.25})] == [
        SCALE, 0.0, 0.25,
    ]  # fmt: skip
    short = graph_of(*heads())
    call = next(node for node in short.graph.nodes if node.target is FLASH)
    call.args = call.args[:3]
    assert not attentions(short)[0].causal


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: graph_of(*(t.double() for t in heads())), id="in double"),
        pytest.param(lambda: graph_of(*(t.to("meta") for t in heads())), id="on another device"),
        pytest.param(lambda: graph_of(*heads(rows=1, columns=64)), id="a row each"),
        pytest.param(lambda: graph_of(*heads(), dropout=0.5), id="with dropout"),
        pytest.param(lambda: graph_of(*heads(), read=1), id="whose logsumexp is read"),
        pytest.param(lambda: graph_of(heads()[0], *heads(count=2)[1:]), id="with fewer heads of the key"),
        pytest.param(lambda: graph_of(*heads(), torch.zeros(64, 64).double()), id="with a mask in double"),
    ],
)
def test_of_others_none_is_a_candidate(make: Callable[[], fx.GraphModule]) -> None:
    assert attentions(make()) == []


def test_a_size_that_is_a_symbol_names_nothing() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    operands = heads()
    graph = graph_of(*operands)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        symbolic = mode.from_tensor(operands[0], static_shapes=False)
    next(iter(graph.graph.nodes)).meta["val"] = symbolic
    assert attentions(graph) == []


@pytest.mark.parametrize(
    ("ratio", "library", "moved"),
    [(0.5, "auto", 1), (1.0, "auto", 0), (0.5, "mkl", 0), (2.0, "onednn", 1)],
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_call_goes_to_the_faster_library_or_to_the_one_that_is_asked_for(
    masked: bool, ratio: float, library: Literal["auto", "mkl", "onednn"], moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turns(calls: Any, limit_ms: float) -> Any:
        for some in calls.values():
            assert [tuple(operand.shape) for operand in some[0].args[:3]] == [(2, 4, 64, 32)] * 3
            assert [operand.stride() for operand in some[0].args[:3]] == [(8192, 32, 128, 1)] * 3
            assert torch.isfinite(some[0]()).all()
        return {"aten": [10.0] * 8, "onednn": [10.0 * ratio] * 8}, 1.0

    monkeypatch.setattr(onednn, "in_turns", in_turns)
    operands = (*heads(), *([torch.randn(64, 64)] if masked else []))
    graph, winners = graph_of(*operands, causal=not masked), Winners()
    expected = graph(*operands)[0]
    with FakeTensorMode():
        assert choose_attention(graph, library=library, winners=winners) == moved
    by = torch.ops.air.onednn_attention.default
    assert called(graph) == ([by] if moved else [FLASH, operator.getitem]) + [torch.ops.aten.neg.default]
    if library == "auto":
        form = f"attention_2x4x64x64x32_{'masked' if masked else 'causal'}"
        assert winners.found[form].winner == ("onednn" if moved else "aten")
    assert torch.allclose(graph(*operands)[0], expected, atol=1e-5)


# -- what it computes

MASKS: dict[str, Callable[[int, int], torch.Tensor | None]] = {
    "none": lambda rows, columns: None,
    "of each row": lambda rows, columns: torch.randn(rows, columns),
    "of a batch": lambda rows, columns: torch.randn(2, 1, rows, columns),
    "of a head": lambda rows, columns: torch.randn(1, 4, 1, columns),
    "that hides": lambda rows, columns: torch.where(torch.rand(rows, columns) > 0.7, -torch.inf, 0.0),
    "that hides rows": lambda rows, columns: torch.where(torch.arange(rows) % 3 == 0, -torch.inf, 0.0)
    .view(rows, 1).expand(rows, columns),
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (33, 80), (80, 33)])
def test_the_operator_gives_what_torchs_kernel_gives(rows: int, columns: int, causal: bool, mask: str) -> None:
    added = MASKS[mask](rows, columns)
    if causal and added is not None:
        return  # torch takes one or the other
    operands = heads(rows=rows, columns=columns)
    got, expected = by_onednn(*operands, added, causal), by_torch(*operands, added, causal)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(got).all()


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 1500), st.integers(1, 1500), st.sampled_from([1, 8, 20]),
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_however_many_blocks_there_are(
    batch: int, count: int, rows: int, columns: int, size: int, causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    operands = heads(batch, count, rows, size, columns)
    assert torch.allclose(by_onednn(*operands, None, causal), by_torch(*operands, None, causal), rtol=1e-4, atol=1e-5)


def test_one_head_of_more_columns_than_a_block_has_scores() -> None:
    operands = heads(1, 1, 40, 8, columns=70_000)
    mask = torch.randn(40, 70_000)
    assert torch.allclose(by_onednn(*operands, mask), by_torch(*operands, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["contiguous", "split", "one tensor's"])
def test_the_result_lies_as_torch_says_that_it_does(layout: str) -> None:
    operands = heads()
    if layout == "contiguous":
        operands = tuple(one.contiguous() for one in operands)
    elif layout == "one tensor's":
        operands = torch.randn(2, 64, 3, 4, 32).permute(2, 0, 3, 1, 4).unbind()
    on_meta = [one.to("meta") for one in operands]
    got, said = by_onednn(*operands), by_onednn(*on_meta)
    assert got.stride() == said.stride() == by_torch(*on_meta).stride()
    assert torch.allclose(got, by_torch(*operands), atol=1e-5)


def test_a_row_that_sees_nothing_is_zero_and_one_with_a_score_that_is_no_number_is_none() -> None:
    query, key, value = heads()
    query[0, 1, 5] = torch.nan
    query[1, 2, 7] = torch.inf  # its scores: inf and -inf
    mask = torch.zeros(64, 64)
    mask[3] = -torch.inf
    got = by_onednn(query, key, value, mask)
    assert not got[:, :, 3].any()
    assert torch.isnan(got[0, 1, 5]).all()
    assert torch.isnan(got[1, 2, 7]).all()
    assert torch.isnan(got).sum() == 2 * 32
    far = key.abs() * -torch.inf
    assert not by_onednn(torch.ones_like(query), far, value).any()


def test_of_no_keys_the_sum_is_zero_and_of_no_rows_there_is_none() -> None:
    query, key, value = heads()
    assert not by_onednn(query, key[:, :, :0], value[:, :, :0]).any()
    assert by_onednn(query[:, :, :0], key, value).shape == (2, 4, 0, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, k, v: (q[0], k, v), r"float32 of \[batch, heads, rows, size\]"),
        (lambda q, k, v: (q, k.double(), v), r"float32 of \[batch, heads, rows, size\]"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), "does not fit a key"),
        (lambda q, k, v: (q, k, v[:, :, :5]), "does not fit a key"),
        (lambda q, k, v: (q[..., :8], k, v), "does not fit a key"),
        (lambda q, k, v: (q, k, v, torch.zeros(64, 64, dtype=torch.bool)), "a mask is added, and float32"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_no_attention_of_float32_heads_is_refused(change: Any, words: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        by_onednn(*(one.to(device) for one in change(*heads())))


def test_threads_do_not_compute_in_one_another_s_scores() -> None:
    given = [heads(1, 4, 200) for _ in range(4)]
    expected, wrong = [by_onednn(*one) for one in given], list[int]()

    def computes(at: int) -> None:
        wrong.extend(at for _ in range(20) if not same_bytes(by_onednn(*given[at]), expected[at]))

    threads = [threading.Thread(target=computes, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- replayed


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
@pytest.mark.parametrize("how", ["plain", "causal", "masked"])
def test_a_replay_computes_into_the_planned_pool(how: str, executor: Any) -> None:
    mask = torch.randn(64, 64) if how == "masked" else None

    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
        once = torch.ops.air.onednn_attention(q, k, v, mask, how == "causal", SCALE)
        return (torch.ops.air.onednn_attention(once.relu(), k, v, mask, how == "causal", SCALE),)

    operands = heads()
    captured = CapturedGraph.capture(traced(twice, *operands), list(operands), executor=executor)
    for _ in range(2):
        given = heads()
        once = by_torch(*given, mask, how == "causal")
        expected = by_torch(once.relu(), *given[1:], mask, how == "causal")
        assert torch.allclose(captured.replay(*given)[0], expected, rtol=1e-4, atol=1e-5)
    if isinstance(captured.executor, Native):
        assert captured.facts()["fresh"] == 0
        assert captured.executor.facts() == {"packed": 2, "held": 1}


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = nn.Linear(128, 3 * 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x).view(2, 64, 3, 4, 32).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return seen.transpose(1, 2).reshape(2, 64, 128)


@pytest.fixture
def attends() -> Iterator[nn.Module]:
    torch._dynamo.reset()
    yield Attends().eval().requires_grad_(False)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["target.linear=onednn"], 1),
        (["target.kernels.attention_2x4x64x64x32_causal=onednn"], 1),
        (["target.kernels.attention_2x4x64x64x32_causal=aten"], 0),
        ([], 0),
    ],
)
def test_a_model_is_recorded_with_what_is_asked_for_or_pinned(
    attends: nn.Module, overrides: list[str], expected: int
) -> None:
    handle = npucompose.compile(attends, *FUSED, *overrides).detach(torch.randn(2, 64, 128))
    captured: Any = handle.captured
    names = [step.op.name() for step in captured.plan.steps]
    assert names.count("air::onednn_attention") == expected
    for _ in range(2):
        x = torch.randn(2, 64, 128)
        assert torch.allclose(handle(x), attends(x), rtol=1e-4, atol=1e-5)


def test_by_inductors_wrapper_it_is_computed_alike(attends: nn.Module) -> None:
    assert computed_alike_by_the_wrapper(attends, torch.randn(2, 64, 128))


def test_in_other_modes_attention_keeps_its_bits(attends: nn.Module) -> None:
    assert keeps_bits_in_other_modes(attends, torch.randn(2, 64, 128))
