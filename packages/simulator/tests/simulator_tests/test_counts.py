"""What a capture takes is foretold of the graph: the simulated runtime's capture of TorchAir's code takes as much."""

from __future__ import annotations

import pytest

from simulator_tests.processes import in_a_process
from tests.npu.needs import offline

MODELS = (
    "add", "linear_scalar", "mm_abs_sub", "parallel_branches", "mlp", "mla_prolog", "moe_shared_expert", "gpt_decode",
    "tiny_ops", "conv_nhwc", "attention_decode", "unet",
)  # fmt: skip
PLANS = (
    "",
    "passes=stream_plan streams.min_gain=0",
    "passes=stream_plan streams.min_gain=0 streams.max_streams=3",
)
KEEPS_COPIES = "compiler.npugraph_ex.input_inplace_pass=false"
"""Two modes capture. The second's other way with inputs that are written stands for a third."""


@offline
@pytest.mark.parametrize(
    ("mode", "more"),
    [("reduce-overhead", ""), ("npugraph_ex", ""), ("npugraph_ex", KEEPS_COPIES)],
    ids=["reduce-overhead", "npugraph_ex", "npugraph_ex, copies kept"],
)
@pytest.mark.slow
def test_twelve_models_take_what_was_foretold(mode: str, more: str) -> None:
    asked = [f"model={model} {plan} {more}" for model in MODELS for plan in PLANS]
    found = in_a_process("counted.py", mode, *asked)
    assert len(found) == len(MODELS) * len(PLANS)
    print(f"\nmode={mode} {more}\n{'streams, kernels, records, waits':>44}  of")
    for overrides, one in found.items():
        print(f"{one['foretold']!s:>22}{one['captured']!s:>22}  {overrides}")
    assert [name for name, one in found.items() if one["foretold"] != one["captured"]] == []
    assert {one["captured"][0][0] for one in found.values()} >= {1, 2, 3}


@offline
def test_a_plan_of_two_streams_takes_what_was_foretold() -> None:
    """The sample of the quick suite: two streams, four kernels, three events that are waited for."""
    asked = f"model=mm_abs_sub {PLANS[1]}"
    found = in_a_process("counted.py", "npugraph_ex", asked)[asked]
    assert found["foretold"] == found["captured"] == [[2, 4, 3, 3]]


@offline
@pytest.mark.slow
def test_a_graph_closed_in_the_other_modes_way_takes_something_else() -> None:
    """The negative control: one plan, the two ways of closing it."""
    asked = f"model=mla_prolog {PLANS[1]}"
    scopes, streams = (in_a_process("counted.py", mode, asked)[asked] for mode in ("reduce-overhead", "npugraph_ex"))
    for found in (scopes, streams):
        assert found["foretold"] == found["captured"]
    assert scopes["captured"] != streams["captured"]
