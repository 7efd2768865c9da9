"""The pass dual_batch_overlap: what it halves, what it leaves whole and why, equal results, one case that is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from npucompose.errors import ConfigError
from npucompose.graphs import Dependence, op_counts
from npucompose.graphs.effects import is_collective
from npucompose.passes import PASSES
from npucompose.passes.pipeline import PassPipeline
from npucompose.results.graphs import PassRecord
from npucompose.schema.streams import Streams
from npucompose.streams import apply, validate
from npucompose.vendor.devices import ATLAS_A2
from npucompose_extras.dual_batch import DualBatchOverlap
from npucompose_extras.dual_batch.rows import _EXACT, _RULES, Batch, MixesRows, keeps_bits
from tests.collectives.ranks import on_both, two_ranks
from tests.passes.test_rewrites import before_and_after
from tests.sample_graphs import CAN, names, node, programs, run, traced
from tests.searches import examples

ALWAYS = DualBatchOverlap(input="x_1", streams=Streams(min_gain=0, cost="none"))
X = torch.randn(7, 4, 6)
W = torch.randn(6, 6)


def weights() -> torch.Tensor:
    """Made in the graph: a constant of the test would be none of a model."""
    return torch.arange(36.0).view(6, 6).sin()


def halved(
    function: Callable[..., Any], *inputs: torch.Tensor, check: bool = True, **options: Any
) -> tuple[fx.GraphModule, PassRecord]:
    """The graph of `function(x, …)` after the pass, which was held to its promise on every kind of inputs."""
    module = traced(function, *inputs)
    a_pass = attrs.evolve(ALWAYS, input=names(module.graph)[0], **options)
    (record,) = PassPipeline(passes=(("dual_batch_overlap", a_pass),), can=CAN, check=check)(module)
    return module, record


def small_block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.relu(x.view(-1, 6) @ w).view(-1, 4, 6)
    return y.transpose(1, 2).sum(-1) + 1


def test_dual_batch_overlap_before_and_after(golden: Any) -> None:
    module = traced(small_block, X, W)
    golden(
        "passes/dual_batch_overlap.txt", before_and_after(attrs.evolve(ALWAYS, input=names(module.graph)[0]), module)
    )


# Which operators work row by row.

PER_ROW: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1).clamp(-1, 1),
    "broadcast over all": lambda x: x.relu() + torch.arange(6.0),
    "a mask of all rows": lambda x: x.relu() + torch.arange(7.0).view(7, 1, 1),
    "products": lambda x: (x @ weights()).relu() @ weights(),
    "a product with the rows on the right": lambda x: torch.mm(weights(), x.view(28, 6).t().relu()).relu(),
    "batched": lambda x: torch.bmm(x.relu(), x.transpose(1, 2)),
    "batched with all rows": lambda x: torch.bmm(x.relu(), torch.arange(210.0).view(7, 6, 5)),
    "baddbmm": lambda x: torch.baddbmm(torch.ones(4, 4), x.relu(), x.transpose(1, 2)),
    "addmm": lambda x: torch.addmm(torch.ones(6), x.reshape(28, 6).relu(), weights()),
    "addmm with a bias of all rows": lambda x: torch.addmm(torch.ones(28, 1), x.reshape(28, 6).relu(), weights()),
    "folded and unfolded": lambda x: x.relu().view(28, 6).relu().view(7, 2, 12) * 2,
    "moved": lambda x: x.relu().permute(2, 0, 1) * 2,
    "unsqueezed": lambda x: x.relu().unsqueeze(0).neg().squeeze(0).unsqueeze(2) + 1,
    "expanded": lambda x: x.relu().unsqueeze(1).expand(7, 3, 4, 6).neg(),
    "selected and sliced": lambda x: x.relu()[:, 1] + x.relu()[:, 2:3, :].sum(1),
    "split": lambda x: [part.neg() for part in x.relu().split(2, 2)],
    "put together": lambda x: torch.cat([x.relu(), x.neg(), torch.ones(7, 1, 6)], 1),
    "stacked": lambda x: torch.stack([x.relu(), x.neg()], 0).abs(),
    "softmax": lambda x: F.softmax(x.relu(), -1) + F.log_softmax(x, 1),
    "reduced": lambda x: (x.relu().sum(1), x.mean((1, 2)), x.amax(-1, keepdim=True), x.var(2)),
    "places": lambda x: (x.relu().topk(2, 1), x.argmax(-1), x.max(1)),
    "sorted": lambda x: x.relu().sort(1)[0].cumsum(2),
    "looked up": lambda x: x.relu().gather(1, x.abs().long().clamp(0, 3)) + 1,
    "scattered": lambda x: torch.zeros(7, 4, 6).scatter(2, x.abs().long().clamp(0, 5), x.relu()),
    "embedded": lambda x: F.embedding(x.abs().long().clamp(0, 5), weights()).neg(),
    "normed": lambda x: F.layer_norm(x.relu(), (6,), torch.ones(6)).neg(),
    "convolved": lambda x: F.max_pool2d(F.conv2d(x.relu().unsqueeze(1), torch.ones(2, 1, 2, 2)), 2).neg(),
    "batch norm in inference": lambda x: F.batch_norm(x.relu(), torch.ones(4), torch.ones(4)).neg(),
    "attention": lambda x: F.scaled_dot_product_attention(
        *[x.relu().unsqueeze(1)] * 3, attn_mask=torch.ones(4, 4)
    ).neg(),
}


@pytest.mark.parametrize("what", PER_ROW)
def test_what_works_row_by_row_is_done_for_each_half_by_itself(what: str) -> None:
    # torch chooses this attention only for strides that it can read, which the check does not know.
    module, record = halved(PER_ROW[what], X, check=what != "attention")
    assert record.matches >= 2, record.why
    assert "4 and 3 of 7 rows" in record.why
    assert "whole again" not in record.why, record.why
    assert all(kernel.target is torch.ops.aten.cat.default for kernel in whole_kernels(module))


def whole_kernels(module: fx.GraphModule) -> list[fx.Node]:
    """Kernels that compute on, or make, something with all rows."""
    kernels = Dependence.from_graph(module.graph).kernels
    values = {kernel: [source.meta["val"] for source in kernel.all_input_nodes] for kernel in kernels}
    return [kernel for kernel, read in values.items() if any(7 in getattr(value, "shape", ()) for value in read)]


MIXED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a sum over the batch": (lambda x: x.relu().neg().sum(0), "it reduces the batch"),
    "a sum of everything": (lambda x: x.relu().neg().sum(), "it reduces the batch"),
    "softmax over the batch": (lambda x: x.relu().neg().softmax(0), "it works along the batch"),
    "rows put behind each other": (lambda x: torch.cat([x.relu(), x.neg()]), "it works along the batch"),
    "one row": (lambda x: x.relu().neg()[1], "it works along the batch"),
    "a product over the batch": (lambda x: torch.ones(2, 7) @ x.relu().neg().view(7, 24), "it sums over the batch"),
    "a view that folds it": (lambda x: x.relu().neg().transpose(0, 1).reshape(28, 6), "folds the batch into another"),
    "random numbers": (lambda x: torch.bernoulli(x.relu().neg().abs().clamp(0, 1)), "would draw other random numbers"),
    "batch norm in training": (lambda x: F.batch_norm(x.relu().neg(), None, None, None, None, True), "of the whole"),
    "normalised over the batch": (lambda x: F.layer_norm(x.relu().neg(), (7, 4, 6)), "it normalises over the batch"),
    "an operator without a rule": (lambda x: torch.linalg.inv(x.relu().neg()[:, :, :4]), "nothing is known"),
    "rows of others": (lambda x: x.relu().neg().gather(0, torch.zeros(7, 4, 6, dtype=torch.long)), "other rows"),
}  # fmt: skip


@pytest.mark.parametrize("what", MIXED)
def test_what_mixes_rows_reads_both_halves_together(what: str) -> None:
    function, why = MIXED[what]
    _, record = halved(function, X)
    assert record.matches >= 2
    assert why in record.why


def test_memory_that_is_written_is_left_whole() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.relu().neg()
        z = y.abs().exp()
        z.add_(1)
        return z

    _, record = halved(function, X)
    assert record.matches == 3
    assert "its memory is written" in record.why


@pytest.mark.parametrize(
    ("x", "why"),
    [(torch.randn(1, 4), "is a batch of 1"), (torch.randn(()), "no input has rows along dimension 0")],
    ids=["one", "none"],
)
def test_what_is_no_batch_is_left_alone_with_the_reason(x: torch.Tensor, why: str) -> None:
    module, record = halved(lambda x: x.relu().neg(), x)
    assert record.matches == 0
    assert why in record.why
    assert op_counts(module.graph) == {"aten.relu.default": 1, "aten.neg.default": 1}


def test_symbolic_sizes_are_left_alone() -> None:
    module = traced(lambda x: x.relu().neg(), X, mode="symbolic")
    outcome = DualBatchOverlap(streams=ALWAYS.streams).rewrite(module.graph, CAN)
    assert (outcome.matches, "is a symbol" in outcome.why) == (0, True)


def test_the_input_is_found_or_named() -> None:
    def function(w: torch.Tensor, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() * mask

    module = traced(function, torch.randn(6, 6), torch.randn(8, 6), torch.randn(8, 1))
    found = DualBatchOverlap(streams=ALWAYS.streams).rewrite(module.graph, CAN)
    assert "4 and 4 of 8 rows" in found.why
    with pytest.raises(ConfigError, match=r"the graph has no 'y'. Its inputs: w_1, x_1, mask_1."):
        DualBatchOverlap(input="y").rewrite(module.graph, CAN)


def test_the_dimension_may_be_another_one() -> None:
    module, record = halved(lambda x: (x * 2).softmax(0).relu(), torch.randn(3, 8), dim=1)
    assert "4 and 4 of 8 rows" in record.why
    assert list(node(module.graph, "relu_default").meta["val"].shape) == [3, 4]


def test_what_lies_in_another_order_in_memory_is_put_together_in_that_order() -> None:
    images = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    _, record = halved(lambda x: F.relu(x * 2), images)
    assert record.matches == 2


# Bits, or a contract.


def test_a_region_that_only_moves_and_computes_exactly_promises_every_bit() -> None:
    assert halved(lambda x: (x + 1).relu() * x.transpose(1, 2).contiguous().transpose(1, 2), X)[1].exact
    assert not halved(lambda x: (x @ weights()).relu(), X)[1].exact
    assert not halved(lambda x: x.relu().neg().sum(0), X)[1].exact, "what reads the halves put together may round"
    assert not halved(lambda x: x.exp().neg(), X)[1].exact
    fused = traced(lambda x: torch.add(x, x.relu(), alpha=3), X)
    assert [keeps_bits(n) for n in fused.graph.nodes if n.op == "call_function"] == [True, False]
    assert "mm" not in _EXACT


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"])
def test_a_collective_along_its_first_dimension_has_no_rows_there(name: str) -> None:
    def call(batch: Batch) -> Any:
        return SimpleNamespace(needed=lambda argument: batch, done=lambda found: found)

    assert _RULES[name](call(Batch(1)), 0) == Batch(1)
    with pytest.raises(MixesRows, match="it communicates along the batch"):
        _RULES[name](call(Batch(0)), 0)


def test_every_rule_names_operators_that_torch_has() -> None:
    known = {**vars(torch.ops.aten), **vars(torch.ops._c10d_functional)}
    assert [name for name in _RULES if name not in known and not _exists(name)] == []


def _exists(name: str) -> bool:
    return any(hasattr(space, name) for space in (torch.ops.aten, torch.ops._c10d_functional))


@settings(max_examples=examples(30), deadline=None)
@given(module=programs(size=14), dim=st.integers(0, 1))
def test_random_graphs_that_write_and_draw_and_mix_keep_their_results(module: fx.GraphModule, dim: int) -> None:
    """Held to the promise by bits where the region says so; else `check=per_pass` compares within the dtype's table."""
    expected = run(module)
    a_pass = attrs.evolve(ALWAYS, input=None, dim=dim)
    (record,) = PassPipeline(passes=(("it", a_pass),), can=CAN, check=True)(module)
    if record.exact:
        assert run(module) == expected


def test_a_rule_that_is_wrong_is_caught_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: cumsum along the batch, said to work row by row."""
    from npucompose.errors import PassError
    from npucompose_extras.dual_batch import rows

    wrong = {**rows._RULES, "cumsum": lambda call, _: call.done(Batch(0))}
    monkeypatch.setattr(rows, "_RULES", wrong)
    with pytest.raises(PassError, match="does not keep what it promises"):
        halved(lambda x: x.relu().cumsum(0).neg(), X)


# What it is for.


def layer(group: str) -> Callable[..., torch.Tensor]:
    """One decoder layer of a tensor-parallel model: each rank has some heads and a part of the network."""
    ops: Any = torch.ops._c10d_functional

    def function(
        x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        normed = F.layer_norm(x, (hidden,))
        q, k, v = (normed.reshape(-1, hidden) @ qkv).view(batch, tokens, -1).split(out.shape[0], -1)
        heads = [part.reshape(batch, tokens, -1, 64).transpose(1, 2) for part in (q, k, v)]
        scores = torch.softmax(heads[0] @ heads[1].transpose(-1, -2), -1)
        attended = (scores @ heads[2]).transpose(1, 2).reshape(-1, out.shape[0])
        summed = ops.wait_tensor(ops.all_reduce(attended @ out, "sum", group)).view(batch, tokens, hidden)
        x = x + summed
        inner = F.silu(F.layer_norm(x, (hidden,)).reshape(-1, hidden) @ up) @ down
        return x + ops.wait_tensor(ops.all_reduce(inner, "sum", group)).view(batch, tokens, hidden)

    return function


def layer_graph(batch: int, tokens: int, hidden: int, ffn: int, group: str) -> fx.GraphModule:
    shapes = [
        (batch, tokens, hidden),
        (hidden, 3 * hidden // 2),
        (hidden // 2, hidden),
        (hidden, ffn // 2),
        (ffn // 2, hidden),
    ]
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, torch.no_grad():
        given = [torch.empty(shape, dtype=torch.bfloat16 if hidden > 256 else torch.float32) for shape in shapes]
        return make_fx(layer(group), tracing_mode="real")(
            *[mode.from_tensor(t) if not hasattr(t, "fake_mode") else t for t in given]
        )


def test_a_tensor_parallel_decoder_layer_is_predicted_to_be_faster_in_two_halves() -> None:
    can = attrs.evolve(CAN, device_model=ATLAS_A2)
    module = layer_graph(16, 128, 4096, 11008, "tp")
    a_pass = DualBatchOverlap(input=names(module.graph)[0], streams=Streams())
    (record,) = PassPipeline(passes=(("it", a_pass),), can=can)(module)
    assert record.matches > 10, record.why
    assert "whole again" not in record.why
    halves = [n for n in module.graph.nodes if is_collective(n) and "all_reduce" in n.name]
    assert len(halves) == 4
    apply(module.graph, Streams(), can)
    validate(module.graph, can=can)


def test_what_would_not_be_faster_is_left_as_it_was() -> None:
    module = layer_graph(2, 4, 256, 512, "tp")
    before = names(module.graph)
    a_pass = DualBatchOverlap(input=before[0], streams=Streams())
    (record,) = PassPipeline(passes=(("it", a_pass),), can=attrs.evolve(CAN, device_model=ATLAS_A2))(module)
    assert record.matches == 0
    assert "is below streams.min_gain" in record.why
    assert names(module.graph) == before


def test_both_ranks_compute_what_they_computed_before() -> None:
    with two_ranks() as groups:
        graphs = [[layer_graph(3, 5, 128, 256, group) for _ in range(2)] for group in groups]
        for _, halves in graphs:
            outcome = attrs.evolve(ALWAYS, input=names(halves.graph)[0]).rewrite(halves.graph, CAN)
            assert outcome.matches > 10

        def work(rank: int) -> list[torch.Tensor]:
            generator = torch.Generator().manual_seed(rank)
            shapes = [n.meta["val"].shape for n in graphs[rank][0].graph.find_nodes(op="placeholder")]
            inputs = [torch.randn(shape, generator=generator) * 0.1 for shape in shapes]
            return [fx.Interpreter(one).run(*inputs) for one in graphs[rank]]

        for whole, halves in on_both(work):
            torch.testing.assert_close(whole, halves)


def test_the_pass_is_found_by_name() -> None:
    assert PASSES.get("dual_batch_overlap") is DualBatchOverlap
    assert isinstance(DualBatchOverlap().streams, Streams)
    _: Sequence[str] = DualBatchOverlap.after
