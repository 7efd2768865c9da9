"""Generators and seeds of the device as a model under the simulated capture finds them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.rules import calls
from npucompose.npu.capture.simulated.machine import SimulatedMachine, place_of_device

_BYTES = 8
"""Of a seed, and of an offset, in a generator's state."""


class AnyGenerator(type(torch.Generator)):
    """`isinstance(g, torch.Generator)` holds of every generator, whichever class made it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


def seed_of(state: torch.Tensor) -> int:
    """The seed in a generator's state, without a call of torch, which a capture would see."""
    return int.from_bytes(ctypes.string_at(state.data_ptr(), _BYTES), "little")


def generator_class(asked: Callable[[Any, str, int | None], bool]) -> type:
    """What stands as `torch.Generator`: a generator of this machine's, which knows whether it is the device's.

    `asked(generator, "manual_seed", 7)` comes before what a capture may forbid of one of the device, with the seed that
    it is given; whether torch's own is called then.
    """

    def goes_on(self: Any, method: str, seed: int | None = None) -> bool:
        return not self.on_device or asked(self, method, seed)

    class Generator(torch._C.Generator, metaclass=AnyGenerator):
        on_device: bool

        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls)
            made.on_device = place_of_device(device) == "device"
            goes_on(made, "__new__")
            return made

        def __init__(self, device: Any = "cpu") -> None: ...

        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed(seed) if goes_on(self, "manual_seed", seed) else self

        def set_state(self, new_state: torch.Tensor) -> Any:
            return super().set_state(new_state) if goes_on(self, "set_state", seed_of(new_state)) else self

        def seed(self) -> int:
            return super().seed() if goes_on(self, "seed") else self.initial_seed()

        def get_offset(self) -> int:
            return super().get_offset() if goes_on(self, "get_offset") else 0

        def set_offset(self, offset: int) -> Any:
            return super().set_offset(offset) if goes_on(self, "set_offset") else self

        def clone_state(self) -> Any:
            goes_on(self, "clone_state")
            return super().clone_state()

    return Generator


def refusing_generators(machine: SimulatedMachine) -> type:
    """The class whose generators refuse by the table of calls."""

    def asked(generator: Any, method: str, seed: int | None) -> bool:
        if seed is None or seed != generator.initial_seed():
            rule = calls().methods[f"Generator.{method}"].rule
            assert rule is not None
            what = "a generator of the device is made" if method == "__new__" else f"generator.{method}()"
            machine.runtime.refuse(rule, what, model_line())
        return method not in ("get_offset", "set_offset")  # a generator of the CPU has none

    return generator_class(asked)


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
