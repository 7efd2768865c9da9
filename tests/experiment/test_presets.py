"""Every preset of conf/experiment holds what it expects, and every explicit stream plan fits its model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nursery import command

from npucompose.compose.conf import choices_of

ROOT = Path(__file__).resolve().parents[2]
REJECTED = "adapt_reject"
"""Ends when it is compiled: that is what it shows."""
RUNS = [
    [f"experiment={name}"] for name in choices_of("experiment") if name != REJECTED and not name.startswith("fa_path")
]
"""The presets fa_path1 to fa_path6 need the torch_npu wheel: tests/sinking/test_fa_paths.py runs them."""
RUNS = [[*run, "check=per_pass"] if run[0].startswith("experiment=adapt_") else run for run in RUNS]
RUNS += [
    [f"model={name}", f"streams={name}", "passes=stream_plan", "streams.check=3", "expect.streams=2"]
    for name in ("parallel_branches", "moe_shared_expert", "mla_prolog")
]
RUNS += [["model=mm_abs_sub", "passes=stream_plan", "streams.min_gain=0", "expect.streams=2", "expect.events=1"]]


DEAR = {
    "model=parallel_branches",
    "model=moe_shared_expert",
    "experiment=decode",
    "experiment=adapt_pool_dispatch",
    "experiment=adapt_pool_nhwc",
    "experiment=adapt_relu_grad",
    "experiment=adapt_nll_loss",
    "model=mla_prolog",
    "model=mm_abs_sub",
}
"""Plans that are written for a model are put into its graph by tests/streams/test_built_in_models.py. Of what decode
expects, test_decode.py proves the part that takes twenty steps; rules of the presets that adapt are tried one by one by
tests/passes/test_adapt.py."""


@pytest.mark.parametrize(
    "overrides",
    [pytest.param(run, id=" ".join(run), marks=[pytest.mark.slow] if DEAR & set(run) else []) for run in RUNS],
)
def test_a_preset_holds_what_it_expects(overrides: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        command("run.py", *overrides, "pipeline=check"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.slow
def test_a_mode_that_no_kernel_has_ends_the_compilation_with_the_model_s_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command("run.py", f"experiment={REJECTED}"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "paddle.pool2d.default (node pool2d) at" in done.stderr
    assert "npucompose_extras/paddle/__init__.py" in done.stderr
    assert "y = torch.ops.paddle.pool2d(x, [2, 2], [2, 2], [0, 0], *self.options, kind)" in done.stderr
    assert "is rejected by adapt rule 'pool2d_ceil_mode': ceil_mode is not supported" in done.stderr
