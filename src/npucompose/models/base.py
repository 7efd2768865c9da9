"""What a model is: options in YAML, a module and named example inputs out; greedy generation as two modules that share
a static cache, and the one loop that every way to run them goes through. Knows no device and no library of models.
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.experiment import Call, ScenarioName
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn


Step = Callable[..., tuple[Any, Any]]
"""prefill(prompt) or decode(token [batch, 1], position [1]) -> (next token [batch, 1], its logits)."""


@frozen(kw_only=True, eq=False)
class Generation:
    """A prompt and the steps that read it and go on from it. `prefill` starts anew, whatever the cache holds."""

    prefill: nn.Module
    decode: nn.Module
    prompt: Tensor
    """What `prefill` reads: tokens [batch, length], or the features of speech."""
    first: int
    """Position of the first token that `decode` is given."""
    batch: int
    new_tokens: int
    cache_bytes: int
    """Of keys and values, for `first + new_tokens` positions at least."""


Generations = Callable[[int, int, int], Generation]
"""(batch, tokens of a prompt, new tokens) -> steps on the same weights, with a cache of their own."""


@frozen(eq=False)
class GreedyLoop:
    """Always the likeliest token, `new_tokens` of each prompt: no end token ends it, so that every way does the same.

    The tensors that one call after the other is given are made once. A token is copied out of the step's result, whose
    memory the next step may use again.
    """

    prefill: Step
    decode: Step
    prompt: Tensor
    rows: tuple[Tensor, ...]
    """The tokens [batch, 1] of each position."""
    positions: tuple[Tensor, ...]

    @staticmethod
    def of(generation: Generation, prefill: Step, decode: Step) -> GreedyLoop:
        """A loop over these steps, which are those of `generation` however they were compiled."""
        import torch

        device = generation.prompt.device
        rows = torch.zeros(generation.new_tokens, generation.batch, 1, dtype=torch.long, device=device)
        places = torch.arange(generation.first, generation.first + generation.new_tokens, device=device)
        return GreedyLoop(prefill, decode, generation.prompt, rows.unbind(0), places.split(1))

    def first_token(self) -> Tensor:
        """The prompt is read; what follows it, [batch, 1]."""
        return self.rows[0].copy_(self.prefill(self.prompt)[0])

    def next_tokens(self) -> None:
        """All tokens after the first."""
        rows, decode = self.rows, self.decode
        for number, position in enumerate(self.positions[:-1]):
            rows[number + 1].copy_(decode(rows[number], position)[0])

    def tokens(self) -> Tensor:
        """[batch, new tokens], generated now."""
        import torch

        self.first_token()
        self.next_tokens()
        return torch.cat(self.rows, dim=1)

    def steps(self) -> tuple[tuple[Step, tuple[Tensor, ...]], ...]:
        """(step, the arguments of its first call), in the order in which they run."""
        return (self.prefill, (self.prompt,)), (self.decode, (self.rows[0], self.positions[0]))


Inputs = Mapping[str, Any]
"""{parameter name of forward: tensor, number, list of ints, text, None, …}, in any order (`inputs.bind`)."""


STEPS = 3


@frozen(kw_only=True, eq=False)
class Built:
    """A module in eval mode (parameters without grad) and where its inputs come from.

    `inputs(0)` are the example inputs; `inputs(step)` for step > 0 are other values of the same shapes, made from the
    same seed: equal calls give equal values in fresh tensors.
    """

    module: nn.Module
    inputs: Callable[[int], Inputs]
    steps: int = STEPS
    """How many different inputs a comparison with eager should use (`inputs(0)` … `inputs(steps - 1)`)."""
    generations: Generations | None = None
    """Steps of greedy generation on the weights of the module; None of a model that generates nothing."""


@frozen(kw_only=True)
class Model(ABC):
    """A named model; its fields are its options. Importing the file of a model loads no torch."""

    name: ClassVar[str]
    needs_trust: ClassVar[bool] = False
    """Building it imports code that a configuration names."""
    scenarios: ClassVar[tuple[ScenarioName, ...]] = ("forward",)
    """What can be run of it; one with more than `forward` has the experiment's `scenario` in a field."""
    sequence: tuple[Call, ...] = option(
        factory=tuple, doc="calls after the first, each as what it changes in the inputs: {x.0: 6, times: 4}"
    )

    def check(self) -> None:
        """Raise ConfigError (MissingExtra, …) when this machine cannot build it. Loads no torch."""

    @property
    def title(self) -> str:
        """What reports and tables call it."""
        return self.name

    def settled(self) -> tuple[Model, Mapping[str, str]]:
        """The model with what only its own code says written out, and {option: who says it}; imports nothing."""
        return self, {}

    @abstractmethod
    def build(self, seed: int) -> Built:
        """Build module and inputs; the same seed gives the same weights and inputs, whatever ran before."""

    def source_files(self) -> tuple[str, ...]:
        """Files outside the package whose content the model depends on (a user's factory): part of the key."""
        return ()


@frozen(kw_only=True)
class Network(Model):
    """A model that says its module and its inputs apart; the seeds are set here."""

    def build(self, seed: int) -> Built:
        self.check()
        with seeded(seed):
            module = inference(self.network())
        return Built(module=module, inputs=lambda step: self.inputs(step, generator(seed, step)))

    @abstractmethod
    def network(self) -> nn.Module:
        """The module, its weights drawn from torch's global generator. Its class is made inside, where torch is."""

    @abstractmethod
    def inputs(self, step: int, chance: Generator) -> Inputs:
        """What forward takes in one step."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator, `random` and numpy's global one start from `seed`; then they are restored."""
    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the devices, whose state fork_rng does not restore here.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def generator(seed: int, step: int) -> Generator:
    """The source of the inputs of one step: `generator(0, 0)`, `generator(0, 1)` and `generator(1, 0)` all differ."""
    import torch

    return torch.Generator().manual_seed((seed * 1_000_003 + step + 1) % 2**63)


def refuse_undivided(heads: int, kv_heads: int) -> None:
    """ConfigError where heads of the query cannot share those of key and value evenly."""
    if heads % kv_heads:
        raise ConfigError(f"model.kv_heads={kv_heads} does not divide model.heads={heads}.")


def refuse_odd(name: str, width: int) -> None:
    """ConfigError for a width whose halves rotary position would turn against each other."""
    if width % 2:
        raise ConfigError(f"model.{name}={width} must be even: its halves are turned against each other.")


def normal(chance: Generator, *shape: int) -> Tensor:
    """Normal numbers out of a step's source."""
    import torch

    return torch.randn(shape, generator=chance)


def inference(module: nn.Module) -> nn.Module:
    """The module in eval mode, its parameters without grad."""
    return module.eval().requires_grad_(False)
