"""check=per_pass: a pass that breaks its promise is named, with what it broke; one that keeps it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from torch import fx

from npucompose.errors import PassError
from npucompose.passes.base import Outcome, Pass
from npucompose.passes.cancel_transposes import CancelTransposes
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.proof import Promise, copied, prove
from npucompose.passes.scopes import StreamPlan
from npucompose.passes.simplify import Cse, DeadCode, RemoveNoop
from npucompose.schema.capabilities import Capabilities
from tests.passes.random_moves import RandomMoves
from tests.sample_graphs import CAN, aten, mm_abs_sub, programs, traced
from tests.searches import examples

X = torch.randn(4, 4)


@frozen(kw_only=True)
class Changes(Pass):
    """Replaces each relu, promising what it is told to promise."""

    name: ClassVar[str] = "changes"
    by: Callable[..., Any] = aten.abs.default
    outcome: Outcome = Outcome(matches=1)

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> Outcome:
        for node in [n for n in graph.nodes if n.target is aten.relu.default]:
            node.target = self.by
        return self.outcome


def checked(function: Callable[..., Any], a_pass: Pass, *inputs: torch.Tensor, mode: str = "fake") -> Any:
    module = traced(function, *inputs, mode=mode)
    return PassPipeline(passes=(("clean", Cse()), ("mine", a_pass)), can=CAN, check=True)(module)


def test_a_wrong_pass_is_caught_and_named() -> None:
    with pytest.raises(PassError) as caught:
        checked(lambda x: x.relu() + 1, Changes(), X)
    assert "Pass 'changes' @ passes.mine (stage pre) does not keep what it promises: on random inputs" in str(
        caught.value
    )
    assert "output 0 differs by up to" in str(caught.value)
    assert "every bit is promised" in str(caught.value)


def test_without_the_check_it_passes_unseen() -> None:
    module = traced(lambda x: x.relu() + 1, X)
    assert PassPipeline(passes=(("mine", Changes()),), can=CAN)(module)[0].max_abs_err is None


def _leaky(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x), torch.zeros_like(x), torch.relu(x))


def _spoiling(x: torch.Tensor) -> torch.Tensor:
    result = torch.relu(x)
    x.mul_(2)
    return result


BREAKS = [
    ("only an input afterwards", _spoiling, "input 0 afterwards differs"),
    ("only on a NaN", _leaky, "on edge values output 0 differs"),
    ("dtype", lambda x: torch.relu(x).double(), "has dtype torch.float64 instead of torch.float32"),
    ("shape", lambda x: torch.relu(x)[:2], "has shape (2, 4) instead of (4, 4)"),
    ("strides", lambda x: torch.relu(x).t().contiguous().t(), "has strides (1, 4) instead of (4, 1)"),
    ("sign of zero", lambda x: torch.relu(x) * torch.where(x == 0, -1.0, 1.0), "differs in the sign of a zero"),
    ("raises", lambda x: torch.relu(x) @ x[:3], "the graph raises, which it did not before"),
    ("writes an input", lambda x: torch.relu(x.add_(0.0001)).sub(0), ""),
    ("gives out an input", lambda x: x.copy_(torch.relu(x.clone())), ""),
]


@pytest.mark.parametrize(("by", "words"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
def test_whatever_it_breaks_is_said(by: Any, words: str) -> None:
    with pytest.raises(PassError) as caught:
        checked(lambda x: x.relu(), Changes(by=by), X)
    assert words in str(caught.value)


def test_two_outputs_that_become_one_memory_are_seen() -> None:
    with pytest.raises(PassError, match="share memory, which they did not"):
        checked(lambda x: (x.exp(), x.exp().relu()), Changes(by=lambda x: x), X)


def test_a_difference_within_the_promise_is_measured_and_let_through() -> None:
    def nearly(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * (1 + 1e-6)

    _, record = checked(lambda x: x.relu(), Changes(by=nearly, outcome=Outcome(matches=1, exact=False, rtol=1e-5)), X)
    assert 0 < record.max_abs_err < 1e-4
    with pytest.raises(PassError, match="every bit is promised"):
        checked(lambda x: x.relu(), Changes(by=nearly), X)


def test_sizes_that_are_symbols_are_tried_with_other_values() -> None:
    def bound(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) if x.shape[0] == 4 else torch.relu(x) + 1

    with pytest.raises(PassError, match="on other sizes output 0 differs"):
        checked(lambda x: x.relu(), Changes(by=bound), X, mode="symbolic")


def test_random_numbers_are_drawn_alike_before_and_after() -> None:
    records = checked(lambda x: torch.rand_like(x) + x, DeadCode(), X)
    assert [record.max_abs_err for record in records] == [0.0, 0.0]


@given(programs())
@settings(max_examples=examples(25), deadline=None)
def test_the_built_in_passes_keep_their_promises_on_random_graphs(module: fx.GraphModule) -> None:
    passes = (("dead_code", DeadCode()), ("cse", Cse()), ("remove_noop", RemoveNoop()), ("stream_plan", StreamPlan()))
    records = PassPipeline(passes=passes, can=CAN, check=True)(module)
    assert [record.max_abs_err for record in records] == [0.0] * 4


def test_cancelled_moves_keep_their_promise_on_random_graphs() -> None:
    for seed in range(2000, 2010):
        made = RandomMoves(seed)
        PassPipeline(passes=(("cancel_moves", CancelTransposes()),), can=CAN, check=True)(made.module)


def test_the_copy_is_not_changed_by_what_happens_to_the_graph() -> None:
    module = traced(mm_abs_sub, X)
    kept = copied(module.graph)
    for node in module.graph.nodes:
        if node.target is aten.abs.default:
            node.target = aten.neg.default
    assert torch.equal(kept(X), mm_abs_sub(X))
    assert prove(kept, copied(module.graph), Promise(exact=True)).broken is not None
