"""torch.Generator(device="npu"): a generator of this machine's CPU under the rules of the device's own."""

from __future__ import annotations

from typing import Any

import torch

from npucompose.capture.generators import AnyGenerator
from npucompose.capture.places import place_of_device
from npucompose.targets.npu_offline.simulator.randomness import Randomness, State, outside_a_capture, seed_of


def generator_class(device: Randomness) -> type:
    """What stands as torch.Generator. One for another device than the NPU is torch's own."""

    def outside(self: Any, attempt: str) -> None:
        if self.on_device:
            outside_a_capture(device, attempt)

    def seeded(self: Any, seed: int, what: str) -> None:
        """A capture takes the seed that the generator has, and no other."""
        if self.on_device and device.capturing is not None and seed % 2**64 != self.initial_seed():
            device.refuse("generator_seed", what)

    class Generator(torch._C.Generator, metaclass=AnyGenerator):
        on_device: bool

        def __new__(cls, device: Any = "cpu") -> Any:
            on_npu = place_of_device(device) == "device"
            made = super().__new__(cls, device="cpu" if on_npu else device)
            made.on_device = on_npu
            outside(made, "construct a new NPUGeneratorImpl")
            return made

        def __init__(self, device: Any = "cpu") -> None: ...

        def manual_seed(self, seed: int) -> Any:
            seeded(self, seed, f"generator.manual_seed({seed})")
            if not self.on_device or device.capturing is None:
                super().manual_seed(seed)
            return self

        def set_state(self, new_state: State) -> Any:
            seeded(self, seed_of(new_state), "generator.set_state of a state with another seed")
            if self.on_device and device.capturing is not None:
                raise RuntimeError(
                    "simulator: what a replay draws behind generator.set_state in its capture is known of the default "
                    "generator alone: torch.npu.set_rng_state."
                )
            super().set_state(new_state)
            return self

        def seed(self) -> int:
            outside(self, "call NPUGeneratorImpl::seed while in capture mode")
            return super().seed()

        def get_offset(self) -> int:
            outside(self, "call NPUGeneratorImpl::get_offset while in capture mode")
            return super().get_offset()

        def set_offset(self, offset: int) -> None:
            outside(self, "call NPUGeneratorImpl::set_offset while in capture mode")
            super().set_offset(offset)

        def clone_state(self) -> Any:
            outside(self, "call NPUGeneratorImpl::clone_impl while in capture mode")
            return super().clone_state()

    return Generator
