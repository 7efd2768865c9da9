"""examples/extension adds one of each kind from outside: found by its entry points alone, and acting in a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npucompose.cli import main
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.recipe import import_file

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extension"
NAMES = {
    "targets": "fx_walker",
    "modes": "plain_graph",
    "passes": "double_negation",
    "models": "zigzag",
    "stages": "census",
    "trackers": "logbook",
    "dialects": "toyserve",
    "pipelines": "census",
}
ALL = ["model=zigzag", "passes=double_negation", "mode=plain_graph", "target=fx_walker", "pipeline=census"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed as pip installs it."""
    place = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(place), str(EXAMPLE)], check=True)
    return place


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "npucompose_demo"]:
        del sys.modules[name]


def composed(*overrides: str) -> Job:
    return Job.from_composed(Composer().compose([*ALL, *overrides]))


@pytest.mark.usefixtures("installed", "warm_workers")
def test_every_kind_of_thing_acts_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*ALL, "extensions.tally.limit=2", "tracker=logbook", f"tracker.place='{tmp_path}'", "target.verbose=true"]
    assert main(["run", *words, "hydra.run.dir=out"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["status"] == "ok"
    assert report["numerics"]["bitwise"] is True  # the model, and the mode: no bit is another
    assert report["passes"][0]["name"] == "double_negation"
    assert report["passes"][0]["matches"] == 2  # of three: the key says so
    assert report["experiment"]["extensions"] == {"tally": {"limit": 2}}
    assert report["stages"]["installed"]["census"] == {"aten.add.Tensor": 3, "aten.neg.default": 2}
    assert "fx_walker: aten.neg.default" in (tmp_path / "out" / "run.log").read_text()  # the target
    assert report["provenance"]["mode.name"].startswith("conf/mode/plain_graph.yaml of npucompose-demo")
    assert (tmp_path / "logbook.txt").read_text() == f"{tmp_path.name}/out zigzag fx_walker plain_graph\n"


@pytest.mark.usefixtures("installed")
def test_a_mode_that_neither_records_nor_fuses_calls_the_graph_as_the_passes_left_it() -> None:
    session = Session(check(Composer().compose([*ALL, "target=cpu"])))
    (compilation,) = session.compilations
    assert compilation.nodes_after == len(compilation.before.lines) - 6
    inputs = session.inputs(0)
    assert session.call(session.compiled, inputs).equal(session.call(session.reference, inputs))
    assert session.detached is None
    assert session.why_attached == "mode=plain_graph records nothing"
    with pytest.raises(ConfigError, match=r"mode=plain_graph cannot run on target=null_device. Modes of this target: "):
        check(Composer().compose([*ALL, "target=null_device"]))


@pytest.mark.usefixtures("installed")
def test_a_dialect_reads_the_files_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("toy_graphs: true\n")
    assert import_file(tmp_path / "serve.yaml").tree["mode"] == {"name": "reduce-overhead"}
    (tmp_path / "serve.yaml").write_text("toy_graphs: false\n")
    assert import_file(tmp_path / "serve.yaml").tree["mode"] == {"name": "eager"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", NAMES)
def test_list_shows_it_with_its_package(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == NAMES[kind]]
    assert row["package"] == "npucompose-demo"
    assert row["doc"]
    assert main(["list", kind]) == 0
    assert re.search(rf"{NAMES[kind]} +npucompose-demo ", capsys.readouterr().out)


@pytest.mark.usefixtures("installed", "warm_workers")
def test_list_shows_the_key_and_explain_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "keys", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["extensions.tally.limit"]["of"] == ["npucompose-demo"]
    assert rows["extensions.tally.limit"]["default"] == 100
    assert rows["target.verbose"]["of"] == ["fx_walker"]
    assert main(["explain", *ALL, "extensions.tally.limit=2", "tracker=logbook", "--json"]) == 0
    assert [note for note in json.loads(capsys.readouterr().out)["notes"] if "npucompose-demo" in note] == [
        "mode: plain_graph comes from npucompose-demo.",
        "target: fx_walker comes from npucompose-demo.",
        "model: zigzag comes from npucompose-demo.",
        "passes.double_negation: double_negation comes from npucompose-demo.",
        "pipeline.stages: census comes from npucompose-demo.",
        "extensions.tally: tally comes from npucompose-demo.",
        "tracker: logbook comes from npucompose-demo.",
    ]
    assert main(["explain", "--options", *ALL, "extensions.tally.limit=2"]) == 0
    said = capsys.readouterr().out
    assert "target/fx_walker of npucompose-demo, chosen on the command line" in said
    assert "extensions.tally.limit=2" in said


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("mode=pl", "mode=plain_graph"),
        ("target=fx", "target=fx_walker"),
        ("passes=[cse,dou", "passes=[cse,double_negation"),
        ("model=zig", "model=zigzag"),
        ("pipeline.stages=[replay,cen", "pipeline.stages=[replay,census"),
        ("tracker=log", "tracker=logbook"),
        ("extensions.ta", "extensions.tally."),
        ("extensions.tally.", "extensions.tally.limit="),
    ],
)
def test_completion_offers_it(begun: str, whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "candidates", "run", begun]) == 0
    assert capsys.readouterr().out.split() == [whole]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "mode=plain_grap",
            "unknown mode 'plain_grap' @ mode=plain_grap. Did you mean 'plain_graph'? Choices: eager, ",
        ),
        ("pipeline.stages=[censu]", "unknown stage 'censu' @ pipeline.stages. Did you mean 'census'? Choices: "),
        ("extensions.taly.limit=1", "unknown section 'taly' @ extensions.taly.limit=1. Did you mean 'tally'?"),
        ("extensions.tally.limt=1", "unknown key 'limt' of extensions.tally @ extensions.tally.limt=1. Did you mean"),
        ("extensions.tally.limit=-1", "'limit' must be >= 0: -1 @ extensions.tally"),
        ("tracker.name=logboo", "unknown tracker 'logboo' @ tracker. Did you mean 'logbook'?"),
    ],
)
def test_what_is_misspelt_is_told_with_what_is_possible(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        composed(override)


@pytest.mark.usefixtures("installed")
def test_a_key_that_does_not_act_is_listed_and_is_part_of_the_result_s_key() -> None:
    (idle,) = composed("mode=eager", "~passes", "extensions.tally.limit=2").checked.effective
    assert (idle.option, idle.why) == ("extensions.tally.limit", "mode=eager compiles nothing")
    keys = [composed(*more).keys["compile"] for more in ((), ("extensions.tally.limit=2",), ())]
    assert keys[0] == keys[2] != keys[1]


def test_the_core_does_not_know_its_names() -> None:
    names = {*NAMES.values(), "tally", "npucompose_demo", "npucompose-demo"}
    known = re.compile("|".join(rf"\b{name}\b" for name in sorted(names)))
    files = (file for folder in ("src", "packages", "airflow_free", "conf") for file in (ROOT / folder).rglob("*"))
    texts = (file for file in files if file.suffix in (".py", ".yaml", ".json", ".html", ".txt", ".cpp", ".h"))
    assert [str(file) for file in texts if known.search(file.read_text(encoding="utf-8"))] == []
