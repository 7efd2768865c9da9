"""Every way in which TorchAir runs a model eagerly is seen in a run: its head line, its report, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.npu.needs import offline
from tests.npu.place import ROOT, process

GE, ACL, EX = "max-autotune", "reduce-overhead", "npugraph_ex"
SUMMARY = ("compiler.debug.fx_summary.type=csv", "compiler.debug.graph_dump.type=pbtxt")
ORIGINAL = ("compiler.dump_config.enable_dump=true", "compiler.dump_config.data_dump_stage=original")
EX_ORIGINAL = ("compiler.npugraph_ex.dump_tensor_data=true", "compiler.npugraph_ex.data_dump_stage=original")
EX_EAGER = "compiler.npugraph_ex.force_eager=true"
WAYS = [
    (GE, SUMMARY),
    (GE, ("compiler.debug.data_dump.type=npy",)),
    (ACL, ("compiler.debug.data_dump.type=npy",)),
    (ACL, ORIGINAL),
    (GE, ("compiler.debug.run_eagerly=true",)),
    (ACL, ("compiler.debug.run_eagerly=true",)),
    (EX, (EX_EAGER, "compiler.npugraph_ex.dump_tensor_data=true")),
    (EX, EX_ORIGINAL),
    (EX, (EX_EAGER,)),
]
GROWS = "model.sequence=[{x.0: 6}, {x.0: 9}, {x.0: 6}]"


def run(folder: Path, *overrides: str) -> tuple[int, dict[str, object], str]:
    """Exit status, report and the head line of a run of a small model."""
    done = process("npu_offline", ROOT / "run.py", "target=npu_offline", "hydra.run.dir=out", *overrides, folder=folder)
    head = next((line for line in done.stdout.splitlines() if line.startswith("result")), "")
    report = folder / "out" / "report.json"
    return done.returncode, json.loads(report.read_text()) if report.is_file() else {}, head


@offline
@pytest.mark.parametrize(
    ("mode", "options"), [WAYS[0], *(pytest.param(*way, marks=pytest.mark.slow) for way in WAYS[1:])]
)
def test_a_run_that_compiled_nothing_is_not_ok(mode: str, options: tuple[str, ...], tmp_path: Path) -> None:
    status, report, head = run(tmp_path, f"mode={mode}", "model=mlp", *options)
    assert (status, report["status"], report["compiled"]) == (0, "uncompiled", False)
    assert head.startswith(f"result    not compiled · mlp · npu_offline · eager instead of {mode} · static · ")
    assert ("mode.name", "eager") in [(one["option"], one["effective"]) for one in report["effective"]]
    npu = report["npu"]
    assert npu["taken"] == 1
    assert (npu["uncompiled"] == 1) != (npu["eager_calls"] > 0)
    assert (npu["ge_graphs"], npu["captures"], npu["replays"]) == ([], 0, 0)


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", [GE, ACL, EX])
def test_a_run_whose_graph_is_compiled_is_ok(mode: str, tmp_path: Path) -> None:
    _, report, head = run(tmp_path, f"mode={mode}", "model=mlp")
    assert (report["status"], report["compiled"]) == ("ok", True)
    assert head.startswith(f"result    ok · mlp · npu_offline · {mode} · static · ")
    npu = report["npu"]
    assert (npu["taken"], npu["uncompiled"], npu["eager_calls"], npu["calls_beyond"]) == (1, 0, 0, 0)


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "limit"), [(ACL, "debug.aclgraph.static_capture_size_limit"), (EX, "npugraph_ex.capture_limit")]
)
def test_a_graph_beyond_its_capture_limit_runs_eagerly_and_the_run_says_so(
    mode: str, limit: str, tmp_path: Path
) -> None:
    asked = (f"mode={mode}", "model=linear_scalar", "shapes=dynamic", GROWS)
    _, report, head = run(tmp_path, *asked, f"compiler.{limit}=1")
    assert head.startswith(f"result    partly compiled · linear_scalar · npu_offline · {mode}, then eager · dynamic · ")
    assert (report["status"], report["npu"]["captures"], report["npu"]["eager_calls"]) == ("uncompiled", 1, 3)
    (why,) = (one["why"] for one in report["effective"])
    assert why.startswith(f"3 calls ran eagerly: TorchAir captures a graph compiler.{limit}=1 times at most")


@offline
@pytest.mark.slow
def test_calls_beyond_torch_s_limit_of_recompilations_are_no_calls_of_the_compiled_model(tmp_path: Path) -> None:
    sizes = ", ".join(f"{{x.0: {size}}}" for size in range(6, 16))
    asked = (f"mode={ACL}", "model=linear_scalar", f"model.sequence=[{sizes}]", "compile.fullgraph=false")
    status, report, head = run(tmp_path, *asked, "expect.compiled=true")
    assert (status, report["status"], report["npu"]["calls_beyond"]) == (1, "expect_failed", 2)
    assert f" · {ACL}, then eager · " in head
    (expected,) = report["expectations"]
    assert "2 calls ran eagerly: torch.compile had reached" in expected["evidence"][0]


@offline
@pytest.mark.slow
def test_a_preset_does_not_hold_because_eager_equals_itself(tmp_path: Path) -> None:
    status, report, _ = run(tmp_path, "experiment=fa_path4", "compiler.debug.run_eagerly=true")
    assert status == 1
    assert [one["name"] for one in report["expectations"] if not one["held"]] == ["compiled"]
