"""Generators and seeds of the device as a model under the simulated capture finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npucompose.capture.calls import calls
from npucompose.capture.lines import model_line
from npucompose.capture.machine import SimulatedMachine
from npucompose.capture.places import place_of_device

_BYTES = 8
"""Of a seed, and of an offset, in a generator's state."""


class _AnyGenerator(type(torch.Generator)):
    """`isinstance(g, torch.Generator)` holds of every generator, whichever class made it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


def generator_class(machine: SimulatedMachine) -> type:
    """What stands as `torch.Generator`: a generator of this machine's, which knows whether it is the device's."""

    def refuse(self: Any, method: str) -> None:
        if self.on_device:
            rule = calls().methods[f"Generator.{method}"].rule
            assert rule is not None
            machine.runtime.refuse(rule, f"generator.{method}()", model_line())

    class Generator(torch._C.Generator, metaclass=_AnyGenerator):
        on_device: bool

        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls, device="cpu")
            made.on_device = place_of_device(device) == "device"
            if made.on_device:
                machine.runtime.refuse("generator_state", "a generator of the device is made", model_line())
            return made

        def __init__(self, device: Any = "cpu") -> None: ...

        def manual_seed(self, seed: int) -> Any:
            if seed != self.initial_seed():
                refuse(self, "manual_seed")
            return super().manual_seed(seed)

        def seed(self) -> int:
            refuse(self, "seed")
            return super().seed()

        def get_offset(self) -> int:
            refuse(self, "get_offset")
            return 0

        def set_offset(self, offset: int) -> None:
            refuse(self, "set_offset")

        def clone_state(self) -> Any:
            refuse(self, "clone_state")
            return super().clone_state()

    return Generator


class Seeds:
    """The default generator of the device: `manual_seed`, `get_rng_state` and their like."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.seed: int | None = None
        """None: that of the CPU, which torch.manual_seed gives both."""

    def manual_seed(self, seed: int) -> None:
        if seed != self.initial_seed():
            self.machine.runtime.refuse("generator_seed", "the device's generator gets another seed", model_line())
        self.seed = seed

    def initial_seed(self) -> int:
        return torch.initial_seed() if self.seed is None else self.seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """The seed and the offset, on the host."""
        state = self.initial_seed().to_bytes(_BYTES, "little") + bytes(_BYTES)
        return self._on_host(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.manual_seed(int.from_bytes(bytes(state.tolist()[:_BYTES]), "little"))

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: Any) -> None:
        for state in states:
            self.set_rng_state(state)

    def seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.manual_seed`, which seeds the device too."""

        def manual_seed(seed: int) -> Any:
            self.manual_seed(int(seed))
            return original(seed)

        return manual_seed

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.machine.places.put(tensor, "host")
        return tensor
