"""Random numbers of the device: torch's generator for the CPU under the rules of the device's own.

# Note [Random numbers of a capture]
A device's generator is a seed and an offset. A captured kernel keeps its offset from the beginning of the graph, and a
replay adds the generator's: `set_rng_state` in a capture moves the offset of the kernels after it (Ascend/pytorch,
aten/NPUGeneratorImpl.cpp:218, 455). Here a draw has no offset that could be moved. So the tape holds where a state was
taken (`RandomMark`) and where it was set again (`RandomReturn`), and a replay goes back to what the generator was
there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from attrs import define, frozen
from torch.utils._python_dispatch import _disable_current_modes

from npu_simulator.refusals import library_error
from npucompose.npu.capture.simulated.generators import seed_of

ATTEMPTS: Mapping[str, str] = {
    "__new__": "construct a new NPUGeneratorImpl",
    "seed": "call NPUGeneratorImpl::seed while in capture mode",
    "get_offset": "call NPUGeneratorImpl::get_offset while in capture mode",
    "set_offset": "call NPUGeneratorImpl::set_offset while in capture mode",
    "clone_state": "call NPUGeneratorImpl::clone_impl while in capture mode",
}
"""{method: what torch_npu says that it cannot do in a capture} (Ascend/pytorch, aten/NPUGeneratorImpl.cpp)."""
State = torch.Tensor
"""What `get_state` gives: bytes, the first eight of which are the seed."""


def content(state: State) -> bytes:
    """Without a call of torch, which a capture would see."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def copied(state: State) -> State:
    made = bytearray(content(state))
    with _disable_current_modes():
        return torch.frombuffer(made, dtype=torch.uint8)


DRAWN = 2**53
"""No device draws a seed as large (torch's c10/core/GeneratorImpl.cpp, getNonDeterministicRandom, which
NPUGeneratorImpl.cpp:364 calls): an int64 holds it, and TorchAir makes a constant of it."""


def fresh(seed: int) -> State:
    """The state of a generator that was just given the seed."""
    return torch.Generator().manual_seed(seed).get_state()


@define(kw_only=True, eq=False)
class RandomMark:
    """The capture took the state here; `here` is that of the last replay."""

    state: State
    here: State | None = None

    def run(self) -> None:
        self.here = torch.default_generator.get_state()


@frozen(kw_only=True, eq=False)
class RandomReturn:
    """The capture set the state of a mark again."""

    mark: RandomMark

    def run(self) -> None:
        assert self.mark.here is not None
        torch.default_generator.set_state(self.mark.here)


@frozen(kw_only=True, eq=False)
class RandomJump:
    """The capture set a state from outside: an offset from the beginning of the graph, which only a generator at the
    beginning of the same seed has as a state."""

    state: State
    begin: RandomMark

    def run(self) -> None:
        begun = self.begin.here
        assert begun is not None
        seed = torch.default_generator.initial_seed()
        if seed != seed_of(self.state) or content(begun) != content(fresh(seed)):
            raise RuntimeError(
                "simulator: the graph sets a state of random numbers that was taken outside its capture. What a device "
                f"draws after it is known here only for torch.npu.manual_seed({seed_of(self.state)}) right before the "
                "replay; take the state inside the capture."
            )
        torch.default_generator.set_state(self.state)


class CapturedRandomness:
    """The generators while one graph is captured, from the beginning of the seed; `undo` gives back what was before."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.Generator, State]] = []
        self._keep(torch.default_generator)
        self.seed = torch.default_generator.initial_seed()
        self.begin = RandomMark(state=fresh(self.seed))
        self._marks = [self.begin]
        self._now = self.begin.state
        self.drawn = False
        """An operator has drawn."""

    def draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator that draws: from a generator of its own, or from where this capture stands."""
        self.drawn = True
        own = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        for generator in own:
            self._keep(generator)
        if own and not _same(own[0], torch.default_generator):
            return func(*args, **kwargs)
        torch.default_generator.set_state(self._now)
        out = func(*args, **kwargs)
        self._now = torch.default_generator.get_state()
        return out

    def mark(self) -> RandomMark:
        """The state is taken."""
        self._marks.append(RandomMark(state=self._now))
        return self._marks[-1]

    def back_to(self, state: State) -> RandomReturn | RandomJump:
        """A state of this seed is set."""
        self._now = copied(state)
        mark = next((one for one in reversed(self._marks) if content(one.state) == content(state)), None)
        return RandomJump(state=self._now, begin=self.begin) if mark is None else RandomReturn(mark=mark)

    def undo(self) -> None:
        for generator, state in self._before:
            generator.set_state(state)

    def _keep(self, generator: torch.Generator) -> None:
        if not any(_same(kept, generator) for kept, _ in self._before):
            self._before.append((generator, generator.get_state()))


def _same(one: Any, other: Any) -> bool:
    """Whether both are one generator, which torch wraps anew for each call."""
    return one._cdata == other._cdata


def draws(func: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class Capturing(Protocol):
    """A graph that is being captured, as the device's generator sees it."""

    randomness: CapturedRandomness

    def taped(self, entry: RandomMark | RandomReturn | RandomJump) -> None: ...


class Randomness(Protocol):
    """The device, as its generator sees it."""

    @property
    def capturing(self) -> Capturing | None: ...

    def refuse(self, rule: str, what: str) -> None: ...


class DeviceGenerator:
    """torch.npu's default generator; refuses in a capture what torch_npu refuses (NPUGeneratorImpl.cpp:297)."""

    def __init__(self, device: Randomness) -> None:
        self._device, self._begun, self._offset = device, torch.default_generator.initial_seed(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator, name)

    def manual_seed(self, seed: int) -> DeviceGenerator:
        graph = self._device.capturing
        if graph is None:
            torch.default_generator.manual_seed(seed)
            self._offset = 0
        elif seed % 2**64 != graph.randomness.seed:
            self._device.refuse("generator_seed", f"manual_seed({seed})")
        return self

    def get_state(self) -> State:
        graph = self._device.capturing
        if graph is None:
            return torch.default_generator.get_state()
        mark = graph.randomness.mark()
        graph.taped(mark)
        return copied(mark.state)

    def set_state(self, new_state: State) -> DeviceGenerator:
        graph = self._device.capturing
        if graph is None:
            torch.default_generator.set_state(new_state)
        elif new_state.numel() != graph.randomness.begin.state.numel():
            raise library_error("rng_state_size")
        elif seed_of(new_state) != graph.randomness.seed:
            self._device.refuse("generator_seed", f"set_rng_state of a state with seed {seed_of(new_state)}")
        else:
            graph.taped(graph.randomness.back_to(new_state))
        return self

    def initial_seed(self) -> int:
        """A seed that torch drew for the CPU before there was this device has 64 bits, those of a device have 53."""
        seed = torch.default_generator.initial_seed()
        return seed % DRAWN if seed == self._begun else seed

    def seed(self) -> int:
        outside_a_capture(self._device, ATTEMPTS["seed"])
        drawn = torch.default_generator.seed() % DRAWN
        self.manual_seed(drawn)
        return drawn

    def get_offset(self) -> int:
        """What TorchAir's graphs have counted on; draws outside of them count nothing here."""
        outside_a_capture(self._device, ATTEMPTS["get_offset"])
        return self._offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        """A GE graph counts on before it draws, and offset 0 is the beginning of the seed; the CPU's generator, which
        draws here, knows no other place."""
        outside_a_capture(self._device, ATTEMPTS["set_offset"])
        if offset == 0:
            self.manual_seed(torch.default_generator.initial_seed())
        elif offset < self._offset:
            raise RuntimeError(
                f"simulator: set_offset({offset}) goes back from {self._offset}, and what a device draws from there is "
                "known here for offset 0 alone; keep a state with get_state and set that again."
            )
        self._offset = offset
        return self

    def clone_state(self) -> torch.Generator:
        outside_a_capture(self._device, ATTEMPTS["clone_state"])
        return torch.default_generator.clone_state()


def outside_a_capture(device: Randomness, attempt: str) -> None:
    """What torch_npu allows only while the current stream is not captured."""
    if device.capturing is not None:
        raise library_error("generator_in_capture", attempt=attempt)
