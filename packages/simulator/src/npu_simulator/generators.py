"""torch.Generator(device="npu"): a generator of this machine's CPU under the rules of the device's own."""

from __future__ import annotations

from typing import Any

from npu_simulator.randomness import ATTEMPTS, Randomness, outside_a_capture
from npucompose.npu.capture.simulated import generators


def generator_class(device: Randomness) -> type:
    """What stands as torch.Generator; `device` is asked whether the current stream is captured."""

    def asked(generator: Any, method: str, seed: int | None) -> bool:
        if device.capturing is None:
            return True
        if seed is None:
            outside_a_capture(device, ATTEMPTS[method])
        elif seed % 2**64 != generator.initial_seed():
            device.refuse("generator_seed", f"generator.{method} with seed {seed}")
        elif method == "set_state":
            raise RuntimeError(
                "simulator: what a replay draws behind generator.set_state in its capture is known of the default "
                "generator alone: torch.npu.set_rng_state."
            )
        return False

    return generators.generator_class(asked)
