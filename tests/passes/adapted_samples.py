"""PyTorch's own samples of the operators that adaptation rules name, before and after a rule."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import yaml
from attrs import frozen
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten

from npucompose.passes.adapt import Adapt
from npucompose.passes.base import Outcome
from npucompose.passes.proof import DOES_NOT_FIT
from npucompose.schema.adapt import Rewriting, RuleSet
from npucompose.table.structure import structure
from replay_tests.op_samples import BY_NAME, call_of
from tests.sample_graphs import CAN
from tools.layout import choices

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8)
EDGES = (float("inf"), float("-inf"), float("nan"), -0.0, 3e38, 1e-40, 1e300)
SAMPLES = 40
OTHER_NAMES = {"nll_loss_forward": "nn.functional.nll_loss", "_unsafe_index": "index_select"}


def rules_of(name: str) -> RuleSet:
    """A packaged rule set."""
    return structure(RuleSet, yaml.safe_load(choices("adapt")[f"adapt={name}"].read_text()), "adapt")


@frozen
class Verdict:
    """What came of all samples of one rule's operator."""

    applied: int
    problems: tuple[str, ...]


def verdict(rule: Rewriting) -> Verdict:
    """Apply `rule` alone to every sample, its values and edge values, and hold the results to its contract."""
    rules = RuleSet(name="one", rules=(rule,))
    applied = 0
    problems: list[str] = []
    for tensors, function in laid_apart(_calls(rule)):
        before = traced(function, tensors)
        after = traced(function, tensors)
        outcome = Adapt(rules=rules).rewrite(after.graph, CAN)
        after.graph.lint()
        after.recompile()
        if not outcome.matches:
            continue
        applied += 1
        for given in (tensors, *edged(tensors)):
            problems += _differences(before, after, given, outcome)
    return Verdict(applied, tuple(problems))


def laid_apart(calls: Iterator[tuple[list[torch.Tensor], Any]]) -> Iterator[tuple[list[torch.Tensor], Any]]:
    """Every call as it is, and once more with every tensor spread over twice its memory."""
    for tensors, function in calls:
        yield tensors, function
        if any(t.dim() and t.numel() for t in tensors):
            yield [_apart(t) for t in tensors], function


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.repeat_interleave(2, -1)[..., ::2] if tensor.dim() and tensor.numel() else tensor


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """With the strides of the tensor, but for elements that are one in memory."""
    if 0 in tensor.stride():
        return tensor.detach().clone()
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


def _calls(rule: Rewriting) -> Iterator[tuple[list[torch.Tensor], Any]]:
    base = rule.op.split(".")[1]
    found = [op for name, op in BY_NAME.items() if _means(op, base)]
    for op, dtype in itertools.product(found, DTYPES):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES))
        for sample in samples:
            flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            yield call_of(op, flat, spec)
    yield from _own(base)


def _means(op: Any, base: str) -> bool:
    return base in (op.name.rpartition(".")[2], op.aten_name) or op.name == OTHER_NAMES.get(base)


def _own(base: str) -> Iterator[tuple[list[torch.Tensor], Any]]:
    """Operators that only a gradient or a lowering calls have no samples."""
    aten = torch.ops.aten
    if base == "silu_backward":
        for shape in ((3,), (2, 5), (2, 3, 4)):
            yield [torch.randn(shape), torch.randn(shape)], aten.silu_backward.default
    if base == "nll_loss_backward":
        x, target = torch.randn(6, 4, dtype=torch.float64).log_softmax(1), torch.tensor([0, 3, 1, 1, 2, 0])
        for weights, (reduction, like) in itertools.product((False, True), enumerate((x[:, 0], x[0, 0], x[0, 0]))):
            weight = [torch.linspace(0.5, 2, 4, dtype=torch.float64)] if weights else []
            total = aten.nll_loss_forward.default(x, target, weight[0] if weight else None, reduction, -100)[1]
            yield (
                [torch.randn_like(like), x, target, total, *weight],
                lambda grad, x, target, total, *w, reduction=reduction: aten.nll_loss_backward.default(
                    grad, x, target, w[0] if w else None, reduction, -100, total
                ),
            )
    if base == "clamp_max":
        yield [torch.randn(3, 4)], lambda x: aten.clamp_max.default(x, 0.5)
    if base == "_unsafe_index":
        image, index = torch.randint(255, (5, 6), dtype=torch.uint8), torch.tensor([4, 0, 2])
        yield [image, index], lambda x, i: aten._unsafe_index.Tensor(x, [i])
    if base == "index_put":
        for rank, accumulate in itertools.product((1, 2, 3, 4), (False, True)):
            x = torch.randn((5, 3, 4, 2)[:rank])
            index, values = torch.tensor([4, -5, 2]), torch.randn((3, 3, 4, 2)[:rank])
            yield (
                [x, index, values],
                lambda x, i, v, accumulate=accumulate: aten.index_put.default(x, [i], v, accumulate),
            )
    if base == "index_copy":
        for rank in (1, 2, 3, 4):
            for dim in range(-rank, rank):
                shape = [5, 3, 4, 2][:rank]
                source = list(shape)
                source[dim] = 2
                index = torch.tensor([1, 0])
                yield (
                    [torch.randn(shape), index, torch.randn(source)],
                    lambda x, i, s, dim=dim: aten.index_copy.default(x, dim, i, s),
                )


def traced(function: Any, tensors: list[torch.Tensor]) -> fx.GraphModule:
    """The graph of a call with fake values, in place only on its inputs, as AOTAutograd gives it."""

    def flat(*given: torch.Tensor) -> tuple[Any, ...]:
        return tuple(leaf for leaf in tree_flatten(function(*given))[0] if isinstance(leaf, torch.Tensor))

    copies = [copied(t) for t in tensors]
    with torch.no_grad():
        return make_fx(torch.func.functionalize(flat, remove="mutations"), tracing_mode="fake")(*copies)


def edged(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The same with edge values at the front of every floating tensor."""
    if any(t.is_floating_point() and t.numel() for t in tensors):
        yield [_with_edges(t) for t in tensors]


def beyond_float32(tensors: list[torch.Tensor]) -> bool:
    return any(bool((t.isfinite() & t.float().isinf()).any()) for t in tensors if t.dtype == torch.float64)


def _with_edges(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    flat = tensor.detach().reshape(-1).clone()
    count = min(len(EDGES), flat.numel())
    flat[:count] = torch.tensor(EDGES[:count], dtype=torch.float64).to(tensor.dtype)
    return copied(tensor).copy_(flat.view(tensor.shape))


def _differences(
    before: fx.GraphModule, after: fx.GraphModule, tensors: list[torch.Tensor], outcome: Outcome
) -> Iterator[str]:
    olds = before(*[copied(t) for t in tensors])
    try:
        news = after(*[copied(t) for t in tensors])
    except RuntimeError as error:
        if not (outcome.checks_ranges and DOES_NOT_FIT in str(error) and beyond_float32(tensors)):
            yield f"raises {error}"
        return
    for old, new in zip(olds, news, strict=True):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            yield f"{old.dtype}{list(old.shape)} became {new.dtype}{list(new.shape)}"
        elif not within(old, new, outcome):
            yield f"{old.flatten()[:6]} became {new.flatten()[:6]}"


def within(old: torch.Tensor, new: torch.Tensor, outcome: Outcome) -> bool:
    """Bits where the outcome is exact (NaN is NaN), else its tolerance."""
    if outcome.exact or not old.is_floating_point():
        same = (old == new) & (torch.signbit(old) == torch.signbit(new))
        return bool((same | (old.isnan() & new.isnan())).all())
    return torch.allclose(new, old, rtol=outcome.rtol, atol=outcome.atol, equal_nan=True)
