"""Random numbers in a capture: what a device refuses of a generator, and what its replays draw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from npu_simulator.device import SimulatedDevice
from npu_simulator.generators import generator_class
from npu_simulator.randomness import DeviceGenerator
from simulator_tests.asked import capture

SEED = "set_current_seed can be called during stream capture only if new seed is the same as the original seed"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def default(device: SimulatedDevice) -> DeviceGenerator:
    return DeviceGenerator(device)


def test_a_replay_draws_what_a_device_draws_from_the_same_seed(
    device: SimulatedDevice, default: DeviceGenerator
) -> None:
    default.manual_seed(7)
    expected = [torch.rand(3).tolist() for _ in range(3)]
    default.manual_seed(7)
    with capture(device) as recording:
        y = torch.rand(3)
    for numbers in expected[:2]:
        recording.replay()
        assert y.tolist() == numbers
    assert torch.rand(3).tolist() == expected[2]


def test_a_state_that_is_set_again_in_a_capture_is_set_again_by_its_replay(
    device: SimulatedDevice, default: DeviceGenerator
) -> None:
    default.manual_seed(0)
    with capture(device) as recording:
        torch.rand(2)
        state = default.get_state()
        first = torch.rand(2)
        default.set_state(state)
        second = torch.rand(2)
    default.manual_seed(1)
    recording.replay()
    assert first.tolist() == second.tolist()
    default.manual_seed(1)
    assert torch.rand(4)[2:].tolist() == first.tolist()


def test_a_capture_takes_its_own_seed_and_no_other(device: SimulatedDevice, default: DeviceGenerator) -> None:
    other = default.manual_seed(1).get_state()
    default.manual_seed(0)
    with capture(device):
        default.manual_seed(0)
        with pytest.raises(RuntimeError, match=SEED):
            default.manual_seed(1)
        with pytest.raises(RuntimeError, match=SEED):
            default.set_state(other)
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            default.set_state(other[:8])
        with pytest.raises(RuntimeError, match="Cannot call NPUGeneratorImpl::seed while in capture mode"):
            default.seed()
    assert default.manual_seed(1).initial_seed() == 1


def test_a_seed_that_the_device_draws_has_53_bits_and_one_that_is_set_stays(device: SimulatedDevice) -> None:
    torch.manual_seed(2**64 - 5)
    generator = DeviceGenerator(device)
    assert generator.initial_seed() == (2**64 - 5) % 2**53
    assert generator.manual_seed(2**60).initial_seed() == 2**60
    assert all(generator.seed() == generator.initial_seed() < 2**53 for _ in range(20))


def test_a_generator_counts_its_offset_on_and_goes_back_to_the_beginning_alone(default: DeviceGenerator) -> None:
    default.manual_seed(7)
    first = torch.rand(2).tolist()
    assert default.get_offset() == 0
    default.set_offset(20)
    default.set_offset(32)
    assert default.get_offset() == 32
    with pytest.raises(RuntimeError, match=r"set_offset\(20\) goes back from 32.*get_state"):
        default.set_offset(20)
    default.set_offset(0)
    assert (torch.rand(2).tolist(), default.get_offset()) == (first, 0)
    default.set_offset(4)
    assert default.manual_seed(7).get_offset() == 0


def test_a_generator_of_the_device_is_made_and_seeded_before_the_capture(device: SimulatedDevice) -> None:
    made = generator_class(device)
    generator = made("npu").manual_seed(3)
    with capture(device) as recording:
        y = torch.rand(2, generator=generator) + torch.rand(2, generator=generator)
        generator.manual_seed(3)
        with pytest.raises(RuntimeError, match=SEED):
            generator.manual_seed(4)
        refused = {
            "Cannot construct a new NPUGeneratorImpl during NPU graph capture": lambda: made("npu"),
            "Cannot call NPUGeneratorImpl::get_offset": generator.get_offset,
            "Cannot call NPUGeneratorImpl::clone_impl": generator.clone_state,
            "known of the default generator alone": lambda: generator.set_state(generator.get_state()),
        }
        for words, act in refused.items():
            with pytest.raises(RuntimeError, match=words):
                act()
        made("cpu").manual_seed(5)
    again = torch.Generator().manual_seed(3)
    expected = [(torch.rand(2, generator=again) + torch.rand(2, generator=again)).tolist() for _ in range(2)]
    for numbers in expected:
        recording.replay()
        assert y.tolist() == numbers
    assert isinstance(again, made)
