"""A step of an engine by one handle: which models it is for, which steps take it, what it follows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("npucompose_replay", reason="steps are recorded by it: pip install 'npucompose[replay]'")

import torch
from torch import Tensor, nn

import npucompose
from npucompose_vllm.forward import RecordedForward, inner_model


class Plain(nn.Module):
    """As vLLM's decoders are: a compiled module, and weights that only later steps need."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4) if inner is None else inner
        self.other = nn.Linear(4, 4)
        self.last: Any = None

    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        hidden_states = self.model(input_ids, positions, embeds)
        return hidden_states  # noqa: RET504 - as vLLM has it


class ByKeyword(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.model(input_ids, positions=positions, embeds=embeds)


class Scales(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.model(input_ids, positions, embeds) * 2


class Remembers(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        self.last = self.model(input_ids, positions, embeds)
        return self.last


class CallsTwo(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.other(self.model(input_ids, positions, embeds))


class Chooses(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.model(input_ids, positions) if embeds is None else embeds


class AsksAFunction(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.last(input_ids)


class TakesAPart(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.model.inner(input_ids)


class CallsNothing(Plain):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Any:
        return self.model


@pytest.mark.parametrize("kind", [Plain, ByKeyword])
def test_a_model_that_only_hands_on_has_an_inner_model(kind: type[Plain]) -> None:
    model = kind()
    assert inner_model(model) is model.model


@pytest.mark.parametrize("kind", [Scales, Remembers, CallsTwo, Chooses, AsksAFunction, TakesAPart, CallsNothing])
def test_a_model_that_does_more_has_none(kind: type[Plain]) -> None:
    assert inner_model(kind()) is None


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_model_with_a_hook_has_none(hook: str) -> None:
    model = Plain()
    getattr(model, hook)(lambda *_: None)
    assert inner_model(model) is None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.linear = nn.Linear(4, 4)

    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return torch.relu(self.linear(self.table(input_ids))) + positions.unsqueeze(1)


class Cut(Block):
    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        x = torch.relu(self.linear(self.table(input_ids)))
        torch._dynamo.graph_break()
        return x + positions.unsqueeze(1)


class Runner:
    """What an engine has: `_model_forward`, which it calls with keywords; here it counts."""

    def __init__(self, block: nn.Module) -> None:
        torch._dynamo.reset()
        compiled: Any = torch.compile(block, backend=npucompose.backend("mode=reduce-overhead"), dynamic=False)
        self.block, self.model, self.called, self.skips = block, Plain(compiled).requires_grad_(False), 0, False
        self.step: Callable[..., Any] = RecordedForward(self, [2, 3], lambda: self.skips)

    def _model_forward(self, **inputs: Any) -> Any:
        self.called += 1
        return self.model(**inputs)

    def is_right(self, tokens: int) -> bool:
        """Of one step, with inputs of its own."""
        ids, positions = torch.randint(0, 10, (tokens,)), torch.randint(0, 9, (tokens,))
        with torch.no_grad():
            return torch.equal(
                self.step(input_ids=ids, positions=positions, embeds=None), self.block(ids, positions, None)
            )


@pytest.fixture
def runner() -> Runner:
    torch.manual_seed(0)
    return Runner(Block())


def test_a_size_goes_through_the_model_once_and_then_by_its_handle(runner: Runner) -> None:
    assert all(runner.is_right(tokens) for tokens in (2, 3, 2, 2, 3, 2))
    assert runner.called == 2


def test_any_other_number_of_tokens_goes_through_the_model(runner: Runner) -> None:
    assert all(runner.is_right(tokens) for tokens in (4, 2, 4))
    assert runner.called == 3
    runner.step._forward = lambda **_: "as it was"
    assert runner.step(input_ids=None, embeds=torch.ones(2, 4)) == "as it was"


def test_results_that_are_still_held_are_left_alone(runner: Runner) -> None:
    ids, at = [torch.randint(0, 10, (2,)) for _ in range(4)], torch.zeros(2)
    with torch.no_grad():
        held = [runner.step(input_ids=one, positions=at, embeds=None) for one in ids]
        assert all(torch.equal(result, runner.block(one, at)) for result, one in zip(held, ids, strict=True))


def _written(block: Block) -> None:
    block.linear.weight.data.mul_(2)


def _elsewhere(block: Block) -> None:
    block.linear.weight.data = block.linear.weight.data.flip(-1).clone()


def _another(block: Block) -> None:
    block.linear.weight = nn.Parameter(torch.rand(4, 4), requires_grad=False)


@pytest.mark.parametrize("change", [_written, _elsewhere, _another])
def test_new_weights_count(runner: Runner, change: Callable[[Block], None]) -> None:
    assert all(runner.is_right(2) for _ in range(3))
    change(runner.block)  # type: ignore[arg-type]
    assert all(runner.is_right(2) for _ in range(3))
    assert runner.called <= 2, "one step of the changed model at most"


class Handled(Block):
    """As a linear layer of vLLM's on a processor: its function holds what the weights became, and a reload makes it
    anew."""

    def __init__(self) -> None:
        super().__init__()
        self.load(2.0)

    def load(self, value: float) -> None:
        kept = SimpleNamespace(scale=torch.full((4,), value))
        self.__dict__["scaled"] = lambda x: x * kept.scale

    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return self.__dict__["scaled"](super().forward(input_ids, positions, embeds))


def test_what_a_layer_made_of_new_weights_counts() -> None:
    block = Handled()
    runner = Runner(block)
    assert all(runner.is_right(2) for _ in range(3))
    assert runner.called == 1
    block.load(3.0)
    assert all(runner.is_right(2) for _ in range(3))


class FromAList(Block):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.full((4,), 2.0)]

    def forward(self, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None) -> Tensor:
        return super().forward(input_ids, positions, embeds) * self.scales[0]


def test_a_model_with_a_tensor_that_nobody_looks_after_goes_on_as_it_is() -> None:
    block = FromAList()
    runner = Runner(block)
    assert all(runner.is_right(2) for _ in range(2))
    block.scales[0] = torch.full((4,), 3.0)
    assert runner.is_right(2)
    assert runner.called == 3


def test_a_step_that_shall_not_be_compiled_goes_through_the_model(runner: Runner) -> None:
    assert all(runner.is_right(2) for _ in range(2))
    runner.skips = True
    assert runner.is_right(2)
    assert runner.called == 2


def test_a_hook_that_is_registered_later_is_called(runner: Runner) -> None:
    assert all(runner.is_right(2) for _ in range(2))
    seen = list[Any]()
    runner.model.register_forward_hook(lambda *call: seen.append(call))
    assert runner.is_right(2)
    assert len(seen) == 1


def test_a_model_that_took_the_place_of_the_first_is_called(runner: Runner) -> None:
    assert all(runner.is_right(2) for _ in range(2))
    runner.block = Block().requires_grad_(False)
    runner.model = Plain(runner.block)
    assert runner.is_right(2)
    assert runner.called == 2


def test_a_model_of_two_graphs_goes_on_as_it_is_and_a_handle_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, made = Runner(Cut()), list[int]()
    record = runner.step._recorded
    monkeypatch.setattr(runner.step, "_recorded", lambda *call: made.append(1) or record(*call))
    assert all(runner.is_right(2) for _ in range(3))
    assert (runner.called, len(made)) == (3, 1)
