"""Programs that draw random numbers, or seed, inside a capture."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.capture.programs import fault, legal

SEED = "TN aten/NPUGeneratorImpl.cpp:321; Ascend/pytorch test/npu/test_aclgraph_rng_state.py:122"
STATE = "Ascend/pytorch test/npu/test_aclgraph_rng_state.py:10, 71"
MADE = "TN aten/NPUGeneratorImpl.cpp:297"
DRAWN = "Ascend/pytorch test/npu/test_aclnn_random_aclgraph.py"
UNREADY = "TN aten/NPUGeneratorImpl.cpp:548"
FOUND = "Ascend/pytorch 42c2f77d7 (2026-07-23): a generator is registered at its first draw"
Tensor = torch.Tensor


def _generator() -> Any:
    return torch.Generator(device="npu").manual_seed(7)


@fault("generator_seed", None, SEED, before=lambda: torch.manual_seed(1))
def another_seed(x: Tensor, _: Any) -> Any:
    torch.manual_seed(2)  # here
    return x + torch.rand_like(x)


@fault("generator_seed", None, SEED, before=lambda: torch.npu.manual_seed(1))
def another_seed_of_the_device(x: Tensor, _: Any) -> Any:
    torch.npu.manual_seed_all(2)  # here
    return x + torch.rand_like(x)


@fault("generator_seed", None, SEED, before=_generator)
def another_seed_of_a_generator(x: Tensor, generator: Any) -> Any:
    generator.manual_seed(8)  # here
    return x * 2


def _other_state() -> Any:
    torch.npu.manual_seed(2)
    state = torch.npu.get_rng_state()
    torch.npu.manual_seed(1)
    return state


@fault("generator_seed", None, STATE, before=_other_state)
def a_state_with_another_seed(x: Tensor, state: Tensor) -> Any:
    torch.npu.set_rng_state(state)  # here
    return x + torch.rand_like(x)


@fault("generator_state", None, "TN aten/NPUGeneratorImpl.cpp:362")
def a_seed_by_chance(x: Tensor) -> Any:
    torch.npu.seed()  # here
    return x * 2


@fault("generator_state", None, MADE)
def a_generator_made_inside(x: Tensor) -> Any:
    generator = torch.Generator(device="npu")  # here
    return x + torch.rand(4, 4, generator=generator, device=x.device)


@fault("generator_state", None, "TN aten/NPUGeneratorImpl.cpp:340", before=_generator)
def asks_for_an_offset(x: Tensor, generator: Any) -> Any:
    generator.get_offset()  # here
    return x * 2


@fault("generator_state", None, "TN aten/NPUGeneratorImpl.cpp:578", before=_generator)
def copies_a_generator(x: Tensor, generator: Any) -> Any:
    generator.clone_state()  # here
    return x * 2


@fault("host_generator", None, "torch: aten/src/ATen/core/Generator.h", before=lambda: torch.Generator())
def a_generator_of_the_host(x: Tensor, generator: Any) -> Any:
    return x + torch.rand(4, 4, generator=generator, device=x.device)  # here


@fault(
    "generator_unknown",
    None,
    "sgl-project/sgl-kernel-npu #138; Ascend/pytorch v2.9.0",
    before=_generator,
    torch_npu="2.11.0.post3",
)
def a_generator_that_no_graph_knows(x: Tensor, generator: Any) -> Any:
    return torch.multinomial(x.softmax(-1), 1, generator=generator)  # here


@fault("random_unready", None, f"OP ops/opapi/BernoulliKernelNpuOpApi.cpp:50; {UNREADY}")
def bernoulli(x: Tensor) -> Any:
    return x * torch.bernoulli(x.sigmoid())  # here


@fault("random_unready", None, f"OP ops/opapi/BernoulliKernelNpuOpApi.cpp:32; {UNREADY}")
def bernoulli_in_place(x: Tensor) -> Any:
    return torch.empty_like(x).bernoulli_(0.5)  # here


@fault("random_unready", None, f"OP ops/opapi/RandpermKernelNpuOpApi.cpp:26; {UNREADY}")
def randperm(x: Tensor) -> Any:
    return x[torch.randperm(4, device=x.device)]  # here


@fault("random_unready", None, f"OP ops/opapi/RReluWithNoiseKernelNpuOpApi.cpp:35; {UNREADY}")
def rrelu_in_training(x: Tensor) -> Any:
    return F.rrelu(x, training=True)  # here


@legal("generator_seed", f"{SEED}: the same seed is taken", before=lambda: torch.manual_seed(1))
def the_same_seed(x: Tensor, _: Any) -> Any:
    torch.manual_seed(1)
    return x + torch.rand_like(x)


def _state() -> Any:
    torch.npu.manual_seed(1)
    return torch.npu.get_rng_state()


@legal("generator_seed", STATE, before=_state)
def a_state_with_the_same_seed(x: Tensor, state: Tensor) -> Any:
    torch.npu.set_rng_state(state)
    return x + torch.rand_like(x) * len(torch.npu.get_rng_state())


@legal("generator_seed", f"{SEED}: the same seed is taken", before=_generator)
def the_same_seed_of_a_generator(x: Tensor, generator: Any) -> Any:
    generator.manual_seed(generator.initial_seed())
    return x * 2


@legal("generator_state", f"{MADE}: a generator of the CPU is none of the device's")
def a_generator_of_the_host_on_the_host(x: Tensor) -> Any:
    generator = torch.Generator()
    generator.manual_seed(3)
    return x * torch.rand(1, generator=generator).item()


@legal("generator_unknown", FOUND, before=_generator)
def a_generator_that_the_graph_finds(x: Tensor, generator: Any) -> Any:
    return torch.multinomial(x.softmax(-1), 1, generator=generator)


@legal("generator_unknown", "torch: the default generator is known", torch_npu="2.11.0.post3")
def the_default_generator(x: Tensor) -> Any:
    return x + torch.rand_like(x)


@legal("host_generator", FOUND, before=_generator)
def a_generator_of_the_device(x: Tensor, generator: Any) -> Any:
    return x + torch.rand(4, 4, generator=generator, device=x.device)


@legal("random_unready", f"{DRAWN}: uniform_, normal_, random_ and multinomial")
def draws_on_the_device(x: Tensor) -> Any:
    y = torch.empty_like(x).uniform_() + torch.empty_like(x).normal_() + torch.empty_like(x).random_(0, 9)
    return y + torch.multinomial(x.softmax(-1), 1)


@legal("random_unready", f"{DRAWN}: dropout")
def dropout_in_training(x: Tensor) -> Any:
    return F.dropout(x, 0.5, training=True)


@legal(
    "random_unready", "OP ops/opapi/ExponentialKernelNpuOpApi.cpp:53: uniform_ of the device, on Ascend910B and 910_93"
)
def samples_by_noise(x: Tensor) -> Any:
    noise = torch.empty_like(x).exponential_()
    return (x.softmax(-1) / noise).argmax(-1)


@legal("random_unready", "torch: without training nothing is drawn")
def rrelu_without_training(x: Tensor) -> Any:
    return F.dropout(F.rrelu(x), 0.5, training=False)


@legal(
    "random_unready",
    "torch: the host's numbers are drawn before the capture",
    before=lambda: torch.randperm(4).to("npu"),
)
def an_order_drawn_before(x: Tensor, order: Tensor) -> Any:
    return x[order]
