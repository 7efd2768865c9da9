"""On a CPU a graph is cut; what is said there of an NPU is what the genuine TorchAir does."""

from __future__ import annotations

import warnings

import pytest
import torch

import npucompose
from simulator_tests.processes import in_a_process
from tests.cut_programs import PROGRAMS
from tests.npu.needs import offline


def said_on_the_cpu() -> set[str]:
    """Programs of which a run on the CPU says that an NPU refuses them."""
    found: set[str] = set()
    for name, program in PROGRAMS.items():
        torch._dynamo.reset()
        fast = npucompose.compile(program.function)
        with torch.no_grad(), torch._dynamo.config.patch(**program.config), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast(*program.inputs())
        found.update(name for one in fast.effective if one.why.startswith("target=npu refuses this graph: "))
    return found


@offline
@pytest.mark.slow
def test_torchair_refuses_what_a_run_on_a_cpu_says_and_nothing_else() -> None:
    refused = in_a_process("cut.py", "reduce-overhead")
    assert {name for name, error in refused.items() if error} == said_on_the_cpu()


@offline
@pytest.mark.slow
def test_what_a_run_on_a_cpu_says_is_refused_for_ge_too() -> None:
    refused = in_a_process("cut.py", "max-autotune")
    assert {name for name, error in refused.items() if error} >= said_on_the_cpu()
