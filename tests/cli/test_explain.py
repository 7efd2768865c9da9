"""npucompose explain: as JSON, from files, and refused where there is nothing to explain."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from npucompose.cli import main
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.npu.static_graph.records import STEP_IDS
from npucompose.table.structure import of_facts

pytestmark = pytest.mark.usefixtures("warm_workers")

SAMPLES = Path(__file__).parents[2] / "packages" / "devtools" / "tests" / "artefacts" / "samples"
LOG, DUMP = SAMPLES / "torchair_cpp.log", SAMPLES / "ge_proto_00000013_graph_2_PreRunAfterBuild.txt"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Explanation:
    assert main(["explain", "--json", *arguments]) == 0
    return of_facts(Explanation, json.loads(capsys.readouterr().out), where="explain")


def test_an_experiment_is_explained_in_a_worker_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    explanation = told(capsys, "model=attention_decode", "shapes=dynamic", "mode=max-autotune")
    assert explanation.sinking.path == 2
    assert tuple(step.id for step in explanation.sinking.steps) == STEP_IDS
    assert explanation.compile_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_log_and_a_dump_speak_for_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = told(capsys, "--log", str(LOG), "--dump", str(DUMP))
    facts = explanation.sinking
    assert (facts.path, facts.ge_build, facts.certainty["ge_build"]) == (None, "dynamic", "proven")
    assert explanation.compile_s == 0
    static = told(capsys, "--dump", str(DUMP)).sinking
    assert (static.ge_build, static.certainty["ge_build"]) == ("static", "proven")


def test_what_a_file_proves_takes_the_place_of_what_was_derived(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = "compiler.experimental_config.frozen_parameter=true"
    asked = ("model=attention_decode", "shapes=static", "mode=max-autotune", "target.soc=a2", frozen)
    explanation = told(capsys, *asked, "--log", str(LOG))
    facts = explanation.sinking
    assert [sentence.partition(":")[0] for sentence in explanation.implied] == [frozen]
    assert (facts.ge_build, facts.certainty["ge_build"], facts.certainty["fx_graph"]) == (
        "dynamic",
        "proven",
        "derived",
    )
    assert facts.path is None  # path 1 was derived, and the log proves that it was not taken
    assert tuple(step.id for step in facts.steps) == STEP_IDS
    assert next(step for step in facts.steps if step.id == "S0").status == "problem"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mode=eager"], "mode=eager compiles nothing: there is no graph to explain"),
        (["tiling=sink"], "has no effect in mode=reduce-overhead; it takes effect in: max-autotune"),
        (["--log", "nowhere.log"], "nowhere.log"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_every_value_says_who_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mode=max-autotune", "tiling=sink", "passes=[stream_plan]", "streams.max_streams=3"]
    assert main(["explain", "--options", "--json", *arguments]) == 0
    found = {row["option"]: (row["value"], row["said_by"]) for row in json.loads(capsys.readouterr().out)}
    assert found["streams.max_streams"] == (3, "command line")
    assert found["mode.name"] == ("max-autotune", "conf/mode/max-autotune.yaml, chosen on the command line")
    assert found["passes.stream_plan.pass"][1] == "conf/passes/stream_plan.yaml, chosen on the command line"
    assert found["seed"] == (0, "default")
    assert found["executor.name"] == ("local", "conf/executor/local.yaml")
    sink = "compiler.experimental_config.tiling_schedule_optimize"
    assert found[sink] == (True, "conf/tiling/sink.yaml, chosen on the command line")
    assert len([name for name in found if name.startswith("compiler.")]) > 90


def test_who_set_it_is_told_without_compiling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--options", "mode=eager", "--under", "mode"]) == 0
    assert capsys.readouterr().out == "conf/mode/eager.yaml, chosen on the command line\n  mode.name=eager\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--options", "--under", "modes"], "Did you mean 'mode'"),
        (["--options", "--log", str(LOG)], "--options is about an experiment"),
        (["--under", "mode"], "--under is for --options"),
        (["--options", "mode=eger"], "Did you mean 'eager'"),
    ],
)
def test_options_are_refused_where_there_are_none(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_graph_that_is_cut_is_explained_before_it_is_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cut_model.py").write_text(
        "import torch\n\n\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        y = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x * 2,))\n"
        "        return y + 1\n\n\n"
        "def make():\n"
        '    return Model(), {"x": torch.randn(4, 4)}\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    asked = ("model=python", "model.factory=cut_model:make", "trust=true")
    assert told(capsys, *asked).recording == (
        "graph_0: 2 segments, 1 operator outside recordings: cond at cut_model.py:6",
        "target=npu refuses this graph: cond at cut_model.py:6",
    )
    refused = told(capsys, *asked, "compile.partial=refuse").recording
    assert refused[0] == "graph_0: compile.partial=refuse refuses this graph: cond at cut_model.py:6"
