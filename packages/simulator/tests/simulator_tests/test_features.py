"""TorchAir's features beside its options: each from YAML, run by the genuine package, seen in the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from airflow_free.keys import digest
from npucompose import private
from npucompose.experiment.run import COMPILED
from tests.npu.needs import offline
from tests.npu.place import ROOT, process

PLAN = "streams=mm_abs_sub"  # abs and sub on a stream of their own
LIMIT = "passes.core_limit.regions=[{aicore:8,vectorcore:16,match:{target:aten.abs}}]"
FUSE = "passes.super_kernel.regions=[{scope:sk,options:'stream-fusion=1',match:{target:'re:aten.(abs|sub).*'}}]"
LOSS_OF_ITS_OWN = """
import torch


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 4)

    def forward(self, x, wanted):
        scores = self.body(x)
        return scores.detach(), (scores - wanted).square().mean()


def make():
    return Classifier(), {"x": torch.randn(2, 8), "wanted": torch.randn(2, 4)}
"""


def run(folder: Path, *overrides: str) -> tuple[int, dict[str, Any], str]:
    """`python run.py target=npu_offline …` in `folder`: exit status, report (empty when there is none), stderr.

    Flags such as `-m` come first, where Hydra wants them.
    """
    flags = [word for word in overrides if word.startswith("-")]
    chosen = [*flags, "target=npu_offline", "hydra.run.dir=out", *(word for word in overrides if word not in flags)]
    done = process("npu_offline", ROOT / "run.py", *chosen, folder=folder)
    report = folder / "out" / "report.json"
    return done.returncode, json.loads(report.read_text()) if report.is_file() else {}, done.stderr


def written(folder: Path) -> list[str]:
    """Files of the run directory's `torchair`, without the process and time in their names."""
    root = folder / "out" / "torchair"
    files = (file.relative_to(root).as_posix() for file in sorted(root.rglob("*")) if file.is_file())
    return [file.split("_rank_")[0] for file in files]


def litter(folder: Path) -> set[str]:
    """What a run leaves beside its own folder and the store."""
    return {entry.name for entry in folder.iterdir()} - {"out", ".npucompose"}


# Core limits and super kernels.


@offline
def test_a_core_limit_is_set_in_the_capture_on_its_own_stream_and_taken_back(tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "mode=npugraph_ex", "model=mm_abs_sub", "passes=[stream_plan,core_limit]", PLAN, LIMIT
    )
    assert (status, error) == (0, "")
    told = (tmp_path / "out" / "graphs" / "capture_0.txt").read_text().splitlines()
    at = next(n for n, line in enumerate(told) if line.startswith("aten.abs"))
    stream = told[at].rpartition(" ")[2]
    assert told[at - 1] == f"limit stream {stream} to 8 cube and 16 vector cores"
    assert told[at + 1] == f"limit stream {stream} to 24 cube and 48 vector cores"
    assert not any(line.startswith("aten.mm") and line.endswith(f"stream {stream}") for line in told)
    assert report["npu"]["core_limits"] == 2
    assert report["numerics"]["bitwise"]
    assert report["streams"]["streams"] == 2


@offline
@pytest.mark.slow
def test_ge_nodes_carry_their_cores_and_their_super_kernel(tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, "mode=max-autotune", "model=mm_abs_sub", "passes=[stream_plan,core_limit,super_kernel]", PLAN, LIMIT,
        FUSE,
    )  # fmt: skip
    assert (status, error) == (0, "")
    (graph,) = report["npu"]["ge_graphs"]
    assert graph["cores"] == {"Abs": "8 cube, 16 vector"}
    assert set(graph["streams"]) == {"Abs", "Sub"}
    # the limit's scope ends a super kernel: TorchAir's scopes nest, and these do not
    assert graph["super_kernels"] == {"Abs": "sk", "Sub": "sk_1"}
    listing = (tmp_path / "out" / "graphs" / "graph_0.ge.txt").read_text()
    assert "_op_aicore_num=8, _op_vectorcore_num=16" in listing
    assert "_super_kernel_options=stream-fusion=1" in listing


@offline
@pytest.mark.slow
def test_reduce_overhead_limits_cores_too_and_without_streams_no_plan_is_told(tmp_path: Path) -> None:
    status, report, error = run(tmp_path, "mode=reduce-overhead", "model=mm_abs_sub", "passes=core_limit", LIMIT)
    assert status == 0, error
    assert report["npu"]["core_limits"] == 2
    assert report["streams"] is None


@offline
@pytest.mark.slow
def test_a_region_without_a_kernel_is_told_in_one_sentence_and_leaves_no_folder(tmp_path: Path) -> None:
    wrong = LIMIT.replace("aten.abs", "aten.ab.default")
    status, report, error = run(tmp_path, "mode=npugraph_ex", "model=mm_abs_sub", "passes=core_limit", wrong)
    assert (status, report) == (2, {})
    assert "finds no kernel: no target fits 'aten.ab.default'. Near: aten.abs.default" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


# What npugraph_ex does with a captured graph.


@offline
@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("{dcci_disable_on_kernel: ['.*']}", ""),
        ("{nonsense: 1}", "Invalid optimize_options param key: 'nonsense'"),
    ],
)
@pytest.mark.slow
def test_a_captured_graph_is_checked_for_deadlocks_and_for_the_options_of_its_super_kernel(
    options: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DEBUG_DIR", str(tmp_path))  # where npugraph_ex writes what it checks
    status, _, error = run(
        tmp_path, "mode=npugraph_ex", "model=add", "compiler.npugraph_ex.deadlock_check=true",
        "compiler.npugraph_ex.super_kernel_optimize=true",
        f"+compiler.npugraph_ex.super_kernel_optimize_options={options}",
    )  # fmt: skip
    assert status == (3 if refusal else 0), error
    assert refusal in error
    assert bool(refusal) == ("torch.npu.NPUGraph refuses compiler.npugraph_ex.super_kernel_optimize_options" in error)


# cache_compile.


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["npugraph_ex", "reduce-overhead"])
def test_a_second_process_loads_what_the_first_compiled(mode: str, tmp_path: Path) -> None:
    """The second run needs live values again for `replay`; it compiles no FX graph, captures and gives eager's bits."""
    chosen = (f"mode={mode}", "model=mlp", "compile.cache=true")
    status, first, error = run(tmp_path, *chosen, "pipeline=compile_only")
    assert status == 0, error
    assert (first["npu"]["cache"], first["npu"]["fx_graphs"]) == ("saved", 1)
    status, second, error = run(tmp_path, *chosen)
    assert status == 0, error
    assert (second["npu"]["cache"], second["npu"]["fx_graphs"], second["npu"]["captures"]) == ("loaded", 0, 1)
    assert second["numerics"]["bitwise"]
    assert [graph["nodes_after"] for graph in second["graphs"]] == [graph["nodes_after"] for graph in first["graphs"]]
    assert litter(tmp_path) == set()
    (kept,) = kept_in(tmp_path).rglob("compiled_module")
    assert kept.stat().st_size > 0
    shutil.rmtree(kept_in(tmp_path))


def kept_in(folder: Path) -> Path:
    """Where the graphs of the store in `folder` are kept."""
    return private.place_of_ours(COMPILED) / digest(str((folder / ".npucompose").resolve()))[:16]


@offline
@pytest.mark.slow
@pytest.mark.parametrize("place", ["the store", "the cache"])
def test_no_compiled_graph_of_a_store_that_came_with_a_folder_is_run(place: str, tmp_path: Path) -> None:
    """What is planted is a genuine graph whose source was changed; in the cache, as a control, it does run."""
    chosen = ("mode=npugraph_ex", "model=mlp", "compile.cache=true")
    assert run(tmp_path, *chosen, "pipeline=compile_only")[1]["npu"]["cache"] == "saved"
    (kept,) = kept_in(tmp_path).rglob("compiled_module")
    source = b"import threading\nfrom collections import OrderedDict"
    other = b'from collections import OrderedDict;open("ran","w")'
    changed = kept.read_bytes().replace(source, other.ljust(len(source), b"#"))
    assert changed != kept.read_bytes()
    if place == "the store":
        planted = tmp_path / ".npucompose" / "compiled" / kept.relative_to(kept_in(tmp_path))
        planted.parent.mkdir(parents=True)
        planted.write_bytes(changed)
        shutil.rmtree(kept_in(tmp_path))
    else:
        kept.write_bytes(changed)
    status, report, error = run(tmp_path, *chosen)
    assert status == 0, error
    assert report["npu"]["cache"] == ("saved" if place == "the store" else "loaded")
    assert (tmp_path / "ran").exists() == (place == "the cache")
    shutil.rmtree(kept_in(tmp_path))


@offline
@pytest.mark.slow
def test_another_experiment_does_not_load_it_and_a_lost_record_compiles_anew(tmp_path: Path) -> None:
    """TorchAir's own key knows neither shapes nor the model's source; the folder of each experiment does."""
    chosen = ("mode=npugraph_ex", "model=mlp", "compile.cache=true")
    assert run(tmp_path, *chosen, "model.batch=8")[1]["npu"]["cache"] == "saved"
    status, other, error = run(tmp_path, *chosen, "model.batch=4")
    assert status == 0, error
    assert (other["npu"]["cache"], other["npu"]["fx_graphs"]) == ("saved", 1)
    for record in (tmp_path / ".npucompose" / "records").rglob("*.json"):
        record.unlink()
    _, again, _ = run(tmp_path, *chosen, "model.batch=4")
    assert (again["npu"]["cache"], len(again["graphs"])) == ("saved", 1)


# dynamo_export.


@pytest.mark.slow
@offline
def test_an_export_lies_in_the_run_directory_and_comes_back_from_the_store(tmp_path: Path) -> None:
    chosen = ("mode=max-autotune", "model=mlp", "pipeline=export", "compiler.export.export_name=net")
    status, report, error = run(tmp_path, *chosen)
    assert (status, error) == (0, "")
    assert written(tmp_path) == report["npu"]["files"] == ["dynamo.pbtxt", "options.json"]
    assert "MatMul" in (tmp_path / "out" / "torchair" / "dynamo.pbtxt").read_text()
    (graph,) = report["npu"]["ge_graphs"]
    assert graph["options"]["export_name"] == "net.air"
    assert (report["numerics"], report["npu"]["replays"]) == (None, 0)
    assert litter(tmp_path) == set()
    for file in (tmp_path / "out" / "torchair").iterdir():
        file.unlink()
    _, report, _ = run(tmp_path, *chosen)
    assert report["reused"]
    assert written(tmp_path) == ["dynamo.pbtxt", "options.json"]


@offline
@pytest.mark.slow
def test_an_export_takes_its_folder_and_what_needs_a_run_is_refused(tmp_path: Path) -> None:
    status, _, error = run(
        tmp_path, "mode=max-autotune", "model=mlp", "pipeline=export", "compiler.export.export_path_dir=for/atc",
        "compiler.export.experimental.auto_atc_config_generated=true",
    )  # fmt: skip
    assert status == 0, error
    assert all(file.startswith("for/atc/") for file in written(tmp_path))
    assert litter(tmp_path) == set()


# Dumps.


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "options", "files"),
    [
        ("max-autotune", ["debug.graph_dump.type=py"], ["dynamo_optimized_graph_1", "dynamo_original_graph_1"]),
        ("max-autotune", ["debug.graph_dump.type=pbtxt"], ["dynamo_optimized_graph_1", "dynamo_original_graph_1"]),
        ("max-autotune", ["debug.graph_dump.type=txt", "debug.graph_dump.path=a/b"], ["a/b/dynamo_", "a/b/dynamo_"]),
        ("reduce-overhead", ["debug.graph_dump.type=py"], ["dynamo_optimized_graph_1", "dynamo_original_graph_1"]),
        ("max-autotune", ["debug.fx_summary.type=csv"], ["summary"]),
        ("max-autotune", ["dump_config.enable_dump=true"], ["ge_dump_data_json/dump_options_"]),
    ],
)
def test_what_torchair_writes_lands_in_the_run_directory(
    mode: str, options: list[str], files: list[str], tmp_path: Path
) -> None:
    status, report, error = run(tmp_path, f"mode={mode}", "model=mlp", *(f"compiler.{option}" for option in options))
    assert status == 0, error
    found = written(tmp_path)
    assert len(found) == len(files)
    assert all(file.startswith(name) for file, name in zip(found, files, strict=True))
    assert len(report["npu"]["files"]) == len(files)
    assert litter(tmp_path) == set()


@offline
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_data_of_the_operators_that_were_named_are_dumped_as_they_were(mode: str, tmp_path: Path) -> None:
    status, report, error = run(
        tmp_path, f"mode={mode}", "model=mm_abs_sub", "compiler.debug.data_dump.type=npy",
        "compiler.debug.data_dump.filter=[aten.abs]", "compiler.debug.data_dump.path=data",
    )  # fmt: skip
    assert status == 0, error
    root = tmp_path / "out" / "torchair" / "data"
    (given,) = root.glob("*/*/0/*abs*INPUT*.npy")
    (made,) = root.glob("*/*/0/*abs*OUTPUT*.npy")
    assert np.array_equal(np.abs(np.load(given)), np.load(made))
    assert not list(root.rglob("*mm*"))
    assert report["npu"]["captures"] == 0
    assert litter(tmp_path) == set()


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "option"),
    [
        ("reduce-overhead", "dump_config.enable_dump=true"),
        ("npugraph_ex", "npugraph_ex.dump_tensor_data=true"),
    ],
)
def test_a_captured_graph_dumps_at_every_replay_and_not_while_it_is_captured(
    mode: str, option: str, tmp_path: Path
) -> None:
    status, report, error = run(tmp_path, f"mode={mode}", "model=mm_abs_sub", f"compiler.{option}")
    assert status == 0, error
    root = tmp_path / "out" / "torchair"
    dumped = sorted(root.rglob("add*.pt"))
    assert len(dumped) == report["npu"]["replays"] == 4
    product, rest, total = (torch.load(next(root.rglob(f"{name}_device_0_1.pt"))) for name in ("mm", "sub", "add"))
    assert torch.equal(product + rest, total)
    assert litter(tmp_path) == set()


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "option"),
    [
        ("max-autotune", "debug.run_eagerly"),
        ("reduce-overhead", "debug.run_eagerly"),
        ("npugraph_ex", "npugraph_ex.force_eager"),
    ],
)
def test_run_eagerly_optimises_the_graph_and_captures_and_loads_nothing(mode: str, option: str, tmp_path: Path) -> None:
    status, report, error = run(tmp_path, f"mode={mode}", "model=mlp", f"compiler.{option}=true")
    assert status == 0, error
    npu = report["npu"]
    assert (npu["fx_graphs"], npu["ge_graphs"], npu["captures"], npu["replays"]) == (1, [], 0, 0)
    assert report["numerics"]["passed"]


# Logs.


@offline
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "logger"), [("max-autotune", "torchair"), ("reduce-overhead", "torchair"), ("npugraph_ex", "npugraph_ex")]
)
def test_the_level_of_torchair_s_logger_holds_in_the_worker(mode: str, logger: str, tmp_path: Path) -> None:
    """Without a level TorchAir says nothing below ERROR; importing it resets the level, and the worker sets it back."""
    chosen = (f"mode={mode}", "model=add")
    assert run(tmp_path, *chosen)[0] == 0
    log = tmp_path / "out" / "run.log"
    assert "[DEBUG]" not in log.read_text()
    assert run(tmp_path, *chosen, "seed=1", f"+logs.levels.{logger}=DEBUG")[0] == 0
    lines = log.read_text().splitlines()
    assert any(line.startswith(f"[DEBUG] {logger.upper()}") and "after fx graph optimization" in line for line in lines)


# Training.


def gradients_compared(report: dict[str, Any]) -> int:
    assert report["numerics"]["passed"]
    return report["numerics"]["compared"]


@offline
@pytest.mark.slow
def test_a_backward_graph_is_compiled_and_its_gradients_are_eager_s(tmp_path: Path) -> None:
    status, report, error = run(tmp_path, "mode=max-autotune", "model=mlp", "compile.training=true")
    assert (status, error) == (0, "")
    forward, backward = report["npu"]["ge_graphs"]
    assert report["npu"]["fx_graphs"] == 2
    assert ("Gelu" in forward["types"], "GeluGrad" in forward["types"]) == (True, False)
    assert backward["types"]["GeluGrad"] == forward["types"]["Gelu"] == 2
    # three layers: a loss and six gradients, and the inputs as they were, in each of three steps
    assert gradients_compared(report) == 3 * (1 + 6 + 1)


@offline
@pytest.mark.slow
def test_a_joint_graph_is_one_graph_that_gives_the_gradients_itself(tmp_path: Path) -> None:
    joint = "compiler.experimental_config.aot_config_enable_joint_graph=true"
    status, report, error = run(tmp_path, "mode=max-autotune", "model=mlp", "compile.training=true", joint)
    assert (status, error) == (0, "")
    (graph,) = report["npu"]["ge_graphs"]
    assert graph["types"]["GeluGrad"] == graph["types"]["Gelu"] == 2
    assert gradients_compared(report) == 3 * (1 + 6 + 1)


@offline
@pytest.mark.slow
def test_a_model_s_own_loss_is_found_by_its_index(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(LOSS_OF_ITS_OWN)
    chosen = ("mode=max-autotune", "model=python", "model.factory=losses:make", "trust=true", "compile.training=true")
    joint = "compiler.experimental_config.aot_config_enable_joint_graph=true"
    index = "compiler.experimental_config.aot_config_output_loss_index=1"
    status, report, error = run(tmp_path, *chosen, joint, index)
    assert (status, error) == (0, "")
    assert gradients_compared(report) == 3 * (2 + 2 + 2)
    status, _, error = run(tmp_path, *chosen, joint, index.replace("=1", "=5"))
    assert status == 2
    assert "output 5 of Classifier is no single floating-point number" in error


@offline
@pytest.mark.slow
def test_a_backward_operator_without_a_converter_is_named_with_the_model_s_line(tmp_path: Path) -> None:
    chosen = ("mode=max-autotune", "model=gpt_decode", "compile.training=true")
    status, _, error = run(tmp_path, *chosen)
    assert status == 3
    assert "no GE converter for torch.ops.aten.silu_backward.default" in error
    assert "at layers.py:" in error
    status, report, error = run(tmp_path, *chosen, "target.decompose=[aten.silu_backward]")
    assert status == 0, error
    assert report["numerics"]["passed"]


# patch_for_hcom.


@offline
@pytest.mark.slow
def test_the_patch_replaces_the_collectives_of_torch_distributed(tmp_path: Path) -> None:
    status, report, error = run(tmp_path, "mode=max-autotune", "model=add", "target.patch_for_hcom=true")
    assert status == 0, error
    assert "need no patch_for_hcom" in error
    assert set(report["npu"]["patched"]) == {
        "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "all_to_all_single", "all_to_all",
    }  # fmt: skip
    status, report, _ = run(tmp_path, "mode=max-autotune", "model=add")
    assert report["npu"]["patched"] == []
    status, _, error = run(tmp_path, "mode=npugraph_ex", "model=add", "target.patch_for_hcom=true")
    assert status == 2
    assert "target.patch_for_hcom=true has no effect in mode=npugraph_ex; it takes effect in: max-autotune" in error


# A sweep over an option of GE.


@offline
@pytest.mark.slow
def test_one_command_sweeps_ge_s_optimisation_level_and_a_captured_graph_refuses_it(tmp_path: Path) -> None:
    level = "compiler.ge_config.oo_level=O1,O3"
    status, _, error = run(tmp_path, "-m", "mode=max-autotune", "model=add", level)
    assert status == 0, error
    reports = [json.loads(path.read_text()) for path in sorted((tmp_path / "multirun").rglob("report.json"))]
    assert [report["npu"]["global_options"]["ge.oo.level"] for report in reports] == ["O1", "O3"]
    assert len({report["key"] for report in reports}) == 2
    for mode in ("reduce-overhead", "npugraph_ex"):
        status, report, error = run(tmp_path, f"mode={mode}", "model=add", "compiler.ge_config.oo_level=O1")
        assert (status, report) == (2, {})
        assert f"compiler.ge_config.oo_level=O1 has no effect in mode={mode}; it takes effect in: max-autotune" in error
