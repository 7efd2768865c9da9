"""What a model is: options in YAML, a module and named example inputs out. Knows no device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.schema.options import option
from npucompose.schema.sequence import Call

if TYPE_CHECKING:
    from torch import nn

Inputs = Mapping[str, Any]
"""{parameter name of forward: tensor, number, list of ints, text, None, …}, in any order (`binding.bind`)."""


@frozen(kw_only=True, eq=False)
class Built:
    """A module in eval mode (parameters without grad) and where its inputs come from.

    `inputs(0)` are the example inputs; `inputs(step)` for step > 0 are other values of the same shapes, made from the
    same seed: equal calls give equal values in fresh tensors.
    """

    module: nn.Module
    inputs: Callable[[int], Inputs]
    steps: int = 3
    """How many different inputs a comparison with eager should use (`inputs(0)` … `inputs(steps - 1)`)."""


@frozen(kw_only=True)
class Model(ABC):
    """A named model; its fields are its options. Importing the file of a model loads no torch."""

    name: ClassVar[str]
    needs_trust: ClassVar[bool] = False
    """Building it imports code that a configuration names."""
    sequence: tuple[Call, ...] = option(
        factory=tuple, doc="calls after the first, each as what it changes in the inputs: {x.0: 6, times: 4}"
    )

    def check(self) -> None:
        """Raise ConfigError (MissingExtra, …) when this machine cannot build it. Loads no torch."""

    @abstractmethod
    def build(self, seed: int) -> Built:
        """Build module and inputs; the same seed gives the same weights and inputs, whatever ran before."""

    def source_files(self) -> tuple[str, ...]:
        """Files outside the package whose content the model depends on (a user's factory): part of the key."""
        return ()
