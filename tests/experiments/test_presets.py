"""Every preset of conf/experiment holds what it expects, and every explicit stream plan fits its model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npucompose.compose.conf import choices_of

ROOT = Path(__file__).resolve().parents[2]
RUNS = [[f"experiment={name}"] for name in choices_of("experiment") if not name.startswith("fa_path")]
"""The presets fa_path1 to fa_path6 need the torch_npu wheel: tests/sinking/test_fa_paths.py runs them."""
RUNS += [
    [f"model={name}", f"streams={name}", "passes=stream_plan", "streams.check=3", "expect.streams=2"]
    for name in ("parallel_branches", "moe_shared_expert", "mla_prolog")
]
RUNS += [["model=mm_abs_sub", "passes=stream_plan", "expect.streams=2", "expect.events=1"]]


@pytest.mark.parametrize("overrides", RUNS, ids=" ".join)
def test_a_preset_holds_what_it_expects(overrides: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *overrides, "pipeline=check"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
