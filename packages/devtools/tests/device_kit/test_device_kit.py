"""A kit, from the recipe to what the engine makes of its result file; what ran in between knows no npucompose."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nursery import command

from npucompose import api
from npucompose.cli import main
from npucompose.targets import TARGETS
from npucompose_devtools.device_kit import _number, _written, about
from npucompose_devtools.device_kit.kit_files import observe
from tests.npu.needs import offline

SIMULATED = Path(__file__).parents[4] / "tests" / "recipe" / "simulated"
MODEL = """
import torch

class Mine(torch.nn.Module):
    def forward(self, x):
        return torch.abs(x) - torch.mm(x, x)

def make():
    return Mine().eval(), {"x": torch.arange(16.0).reshape(4, 4) / 16}
"""
RECIPE = """# @package _global_
defaults:
  - override /mode: reduce-overhead
compiler:
  debug:
    aclgraph:
      enable_output_clone: true
"""
IDLE = """  ge_config:
    oo_level: O1
strict: 'off'
"""


pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.mark.skipif(importlib.util.find_spec("npu_simulator") is None, reason="that target asks for npu-simulator")
@pytest.mark.parametrize(
    ("choice", "sinks"),
    [(("mode=max-autotune", "tiling=sink"), True), (("mode=max-autotune",), False), (("mode=reduce-overhead",), False)],
)
def test_a_kit_expects_a_sunk_graph_where_tiling_is_to_sink(choice: tuple[str, ...], sinks: bool) -> None:
    checked = api.checked(["target=npu_offline", "model=add", *choice])
    assert about(checked, "", "0")["sink"] is sinks


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUCOMPOSE_STORE", str(tmp_path / "store"))
    return tmp_path


def environment() -> dict[str, str]:
    """With the simulated runtime where the host has its torch_npu."""
    path = os.pathsep.join([str(SIMULATED), *filter(None, sys.path)])
    return {**os.environ, **TARGETS.get("npu_offline")().environment(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run_there(kit: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """`python run_kit.py`."""
    done = subprocess.run(
        [sys.executable, "run_kit.py", "--device", "cpu", *words],
        cwd=kit, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, left_in(kit), done.stdout + done.stderr


def run_warm(kit: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """The same program here, each of its looks forked from a process that has torch."""
    spec = importlib.util.spec_from_file_location("run_kit_of_a_kit", kit / "run_kit.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    def look(python: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert python[0] == sys.executable
        return subprocess.run(command(*python[1:], environment=environment()), env=environment(), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "subprocess", SimpleNamespace(run=look))
        patch.setattr(sys, "argv", ["run_kit.py", "--device", "cpu", *words])
        patch.chdir(kit)
        status = program.main()
    return status, left_in(kit), ""


def left_in(kit: Path) -> dict[str, Any]:
    file = kit / "results.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def verdicts(results: dict[str, Any]) -> dict[str, str]:
    return {claim["name"]: claim["verdict"] for claim in results["claims"]}


def test_the_files_of_a_kit_import_nothing_of_ours(here: Path) -> None:
    for file in ("run_kit.py", "observe.py", "my_model.py"):
        tree = ast.parse((files("npucompose_devtools.device_kit") / "kit_files" / file).read_text("utf-8"))
        names = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in ast.walk(tree)
                 if isinstance(n, (ast.Import, ast.ImportFrom))}  # fmt: skip
        theirs = {"torch", "torch_npu", "torchair", "compiled", "my_model"}
        assert {str(name).partition(".")[0] for name in names} <= set(sys.stdlib_module_names) | theirs


@pytest.mark.slow
@offline
def test_an_option_without_effect_is_told_from_one_that_acts(here: Path) -> None:
    (here / "mine.yaml").write_text(RECIPE + IDLE)
    assert main(["device-kit", "mine.yaml", "target=npu_offline", "--out", "kit"]) == 0
    (here / "kit" / "my_model.py").write_text(MODEL)
    _, results, _ = run_there(here / "kit")
    acted = {row["option"]: row["acted"] for row in results["options"]}
    assert acted == {"debug.aclgraph.enable_output_clone": "seen", "ge_config.oo_level": "not seen"}
    (here / "results.json").write_text(json.dumps(results))
    assert main(["device-kit", "read", "results.json"]) == 0


@offline
@pytest.mark.parametrize("run", [run_warm, pytest.param(run_there, marks=pytest.mark.slow)])
def test_from_a_recipe_to_a_host_and_back(here: Path, capsys: pytest.CaptureFixture[str], run: Any) -> None:
    (here / "mine.yaml").write_text(RECIPE)
    assert main(["device-kit", "mine.yaml", "target=npu_offline", "--out", "kit"]) == 0
    assert "python3 kit/run_kit.py" in capsys.readouterr().out
    kit = here / "kit"
    assert sorted(path.name for path in kit.iterdir()) == [
        "README.txt", "compiled.py", "kit.json", "my_model.py", "observe.py", "run_kit.py"
    ]  # fmt: skip
    assert "npucompose" not in "".join(
        line for line in (kit / "run_kit.py").read_text().splitlines() if "import" in line
    )

    (kit / "my_model.py").write_text(MODEL)
    status, results, output = run(kit)
    assert status == 0, output
    assert set(verdicts(results).values()) == {"proven"}, output
    assert [row["acted"] for row in results["options"]] == ["seen"]
    assert results["times_us"] == {}, "a simulated runtime has no speed"

    assert main(["device-kit", "read", str(kit / "results.json")]) == 0
    told = capsys.readouterr().out
    assert "proven   kit[equals eager]" in told
    assert "debug.aclgraph.enable_output_clone=true: acted (outputs_reused)" in told
    assert "times    not run" in told
    (kept,) = (here / "store" / "device").iterdir()
    assert {path.name for path in kept.iterdir()} == {"verdicts.json", "report.txt"}


@pytest.mark.slow
@offline
def test_streams_of_a_plan_are_seen_where_they_act_and_refuted_where_they_do_not(here: Path) -> None:
    (here / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /mode: reduce-overhead\n")
    chosen = ["model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub", "target=npu_offline"]
    assert main(["device-kit", "mine.yaml", *chosen, "--out", "kit"]) == 0
    kit = here / "kit"
    about = json.loads((kit / "kit.json").read_text())
    assert (about["frozen"], about["events"] >= 1) == (True, True)
    (kit / "my_model.py").write_text(
        "from npucompose import api\nfrom npucompose.compose.session import Session\n\n"
        "def make():\n    session = Session(api.checked(['model=mm_abs_sub', 'target=cpu']))\n"
        "    return session.built.module, dict(session.built.inputs(0))\n"
    )
    status, results, output = run_there(kit, "--no-options")
    assert (status, verdicts(results)["kit[streams]"]) == (0, "proven"), output
    assert results["streams"]["ordered"] >= about["events"]

    (kit / "kit.json").write_text(json.dumps({**about, "events": about["events"] + 40}))
    status, results, _ = run_there(kit, "--no-options")
    assert (status, verdicts(results)["kit[streams]"]) == (1, "refuted")


@pytest.mark.slow
@offline
def test_another_model_than_a_frozen_plan_s_is_refused_and_said(here: Path) -> None:
    (here / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /mode: reduce-overhead\n")
    chosen = ["model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub", "target=npu_offline"]
    assert main(["device-kit", "mine.yaml", *chosen, "--out", "kit"]) == 0
    (here / "kit" / "my_model.py").write_text(MODEL)
    status, results, output = run_there(here / "kit", "--no-options")
    assert status == 1
    assert verdicts(results) == {"kit[compiles]": "refuted"}
    assert "were frozen for the graph" in output


def result_file(folder: Path, **changes: Any) -> Path:
    data = {
        "schema": 2,
        "device": {"soc": "Ascend910B4", "torch_npu": "2.13.0", "torch": "2.13.0", "cann": "8.5.0"},
        "claims": [{"name": "kit[equals eager]", "says": "two calls give eager's values", "verdict": "proven"}],
        "times_us": {"eager": [30.0, 20.0, 25.0], "compiled": [10.0, 5.0, 11.0]},
        "costs": {"launch_us": 3.5, "gbytes_s": 750.0, "matmul_gflops": 200_000.0},
        "kernels": {"MatMul": {"calls": 1, "us": 4.0, "streams": ["2"]}},
        **changes,
    }
    file = folder / "results.json"
    file.write_text(json.dumps(data))
    return file


def test_what_was_measured_becomes_costs_that_a_plan_takes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from npucompose import api

    assert main(["device-kit", "read", str(result_file(here))]) == 0
    told = capsys.readouterr().out
    assert "eager 25.0 µs, compiled 10.0 µs: 2.50 x" in told
    assert "kernel   MatMul: 1 calls, 4.0 µs" in told
    conf = here / "store" / "device" / "Ascend910B4" / "conf"
    device = api.checked(["streams=Ascend910B4", "target=cpu"], config_dirs=[str(conf)]).experiment.streams.device
    assert (device.launch_us, device.gbytes_s, device.event_us) == (3.5, 750.0, None)


@offline
def test_a_refuted_claim_that_was_read_is_an_error_of_every_later_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = [{"name": "ge[sink]", "says": "tiling reaches GE", "verdict": "refuted", "error": "'0' != '1'"}]
    assert main(["device-kit", "read", str(result_file(here, claims=claims))]) == 1
    capsys.readouterr()
    chosen = ["model=linear_scalar", "mode=max-autotune", "target=npu_offline"]
    assert main(["run", *chosen, "tiling=sink"]) == 2
    assert "refuted on Ascend910B4" in capsys.readouterr().err
    assert main(["device-kit", "read", str(result_file(here))]) == 0
    assert main(["recipe", "lock", "model=add", "mode=eager", "target=cpu", "pipeline=check"]) == 0


def test_a_folder_with_files_in_it_is_no_place_for_a_kit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /mode: reduce-overhead\n")
    assert main(["device-kit", "mine.yaml", "--out", str(here)]) == 2
    assert "is there and not empty" in capsys.readouterr().err


def test_a_locked_recipe_becomes_a_kit_and_takes_no_other_options(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["model=add", "mode=reduce-overhead", "target=cpu", "pipeline=check"]
    assert main(["recipe", "lock", *chosen]) == 0
    assert main(["device-kit", "recipe.lock.yaml", "mode=eager"]) == 2
    assert "is locked: it takes no key=value" in capsys.readouterr().err
    assert main(["device-kit", "recipe.lock.yaml"]) == 0
    assert json.loads((here / "device_kit" / "kit.json").read_text())["mode"] == "reduce-overhead"


@offline
def test_an_imported_script_for_an_npu_becomes_a_kit_without_one(here: Path) -> None:
    script = "import torchair as tng\ntng.patch_for_hcom()\nc = tng.CompilerConfig()\n"
    script += "f = tng.inference.cache_compile(m.forward, config=c, dynamic=False)\n"
    (here / "serve.py").write_text(script)
    assert main(["recipe", "import", "serve.py", "--out", "serve.yaml"]) == 0
    assert "override /target: npu" in (here / "serve.yaml").read_text()
    assert main(["device-kit", "serve.yaml"]) == 0
    compiled = (here / "device_kit" / "compiled.py").read_text()
    assert "torchair.patch_for_hcom()" in compiled
    assert "torchair.inference.cache_compile(model.forward, dynamic=False" in compiled


@offline
def test_a_kit_s_claims_about_itself_count_for_its_own_recipe_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text(RECIPE)
    assert main(["device-kit", "mine.yaml", "target=npu_offline"]) == 0
    key = json.loads((here / "device_kit" / "kit.json").read_text())["recipe"]
    claims = [{"name": "kit[equals eager]", "says": "eager's values", "verdict": "refuted", "error": "0.5"}]
    assert main(["device-kit", "read", str(result_file(here, claims=claims, recipe=key))]) == 1
    capsys.readouterr()
    assert main(["device-kit", "mine.yaml", "target=npu_offline", "--out", "again"]) == 2
    assert "kit[equals eager]: eager's values: 0.5" in capsys.readouterr().err
    assert main(["device-kit", "mine.yaml", "target=npu_offline", "seed=3", "--out", "other"]) == 0


def test_a_link_where_a_file_of_a_kit_belongs_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other, kit = tmp_path / "other.txt", tmp_path / "kit"
    other.write_text("somebody's")
    kit.mkdir()
    (kit / "README.txt").symlink_to(other)
    _written(kit, {"README.txt": "of the kit"})
    assert other.read_text() == "somebody's"
    assert (kit / "README.txt").read_text() == "of the kit"


@pytest.mark.parametrize(("given", "number"), [(3, 3.0), (2.5, 2.5), (True, 0.0), ("4", 0.0), (None, 0.0), ([1], 0.0)])
def test_what_a_device_wrote_for_a_number_and_is_none_counts_as_nothing(given: Any, number: float) -> None:
    assert _number(given) == number


def test_a_call_is_timed_until_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(now=0, left=0)

    def synchronize() -> None:
        device.now, device.left = device.now + device.left, 0

    def taking(us: int) -> Callable[..., None]:
        def call(**_: Any) -> None:
            device.left += 1000 * us

        return call

    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=synchronize), raising=False)
    monkeypatch.setattr(observe, "time", SimpleNamespace(perf_counter_ns=lambda: device.now))
    assert observe._times(taking(5), taking(2), {}, 3) == {"eager": [5.0] * 3, "compiled": [2.0] * 3}


def test_the_number_of_an_event_that_was_recorded_is_never_another_s() -> None:
    class Event:
        pass

    counter, stream = observe.CallCounter(), SimpleNamespace(stream_id=3)
    event = Event()
    gone = weakref.ref(event)
    counter._record(event, stream)
    del event
    assert gone() is not None
    assert (counter.counts["records"], counter.streams) == (1, {3})
