"""MLflow, TensorBoard, W&B and Optuna played by this test: what they are told, how often, and what is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_free.errors import OrchestratorError
from airflow_free.fresh_python import SAFE_PATH
from airflow_free.ledger import Trial
from npucompose.experiment import tracking
from npucompose.experiment.sweep.run import PointLedger
from npucompose.experiment.tracking import TrackerOrder
from npucompose.report.json import Tracked
from npucompose.schema.sweep import Dimension, Optuna, Tracker
from npucompose_extras import trackers
from npucompose_extras.search.study import Space, Study

RUN = Tracked(
    key="k" * 64, name="a run", params={f"p{n:03}": "v" * 6000 for n in range(101)},
    metrics={"p50_us": 1.5}, samples={"replay": tuple(float(n) for n in range(1000))},
    tags={"npucompose.status": "ok", "long": "t" * 6000}, files=(Path("/a/report.html"), Path("/a/report.json")),
)  # fmt: skip


def order(folder: Path, place: str | None = None) -> TrackerOrder:
    return TrackerOrder(name="mlflow", place=place, experiment="mine", store=str(folder / "store"), folders=())


class Mlflow:
    def __init__(self, known: bool) -> None:
        self.calls: list[Any] = []
        self.known, self.runs = known, list[str]()

    def __call__(self, *, tracking_uri: str) -> Mlflow:
        self.calls.append(("uri", tracking_uri))
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if self.known else None

    def search_runs(self, experiments: list[str], text: str, *, max_results: int) -> list[str]:
        assert (experiments, text, max_results) == (["7"], f"tags.`npucompose.key` = '{RUN.key}'", 1)
        return self.runs

    def create_run(self, experiment: str, **more: Any) -> Any:
        self.calls.append(("run", experiment, more))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def __getattr__(self, name: str) -> Any:
        return lambda *what, **named: self.calls.append((name, *what, named)) or "7"


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))


def mlflow(monkeypatch: pytest.MonkeyPatch, *, known: bool) -> Mlflow:
    client, module = Mlflow(known), ModuleType("mlflow")
    module.MlflowClient = client  # type: ignore[attr-defined]
    entities: Any = ModuleType("mlflow.entities")
    entities.Param = lambda *what: what
    entities.Metric = lambda name, value, when, step: (name, value, step)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return client


@pytest.mark.usefixtures("environ")
def test_mlflow_gets_a_run_in_portions_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow(monkeypatch, known=True)
    teller = trackers.Mlflow.reporter(order(tmp_path))
    assert (tmp_path / "store").is_dir()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    teller(RUN, False)
    uri, made, *rest = client.calls
    assert uri == ("uri", f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    assert made == ("run", "7", {"tags": {"npucompose.status": "ok", "long": "t" * 5000}, "run_name": "a run"})
    batches = [named for name, *_, named in rest if name == "log_batch"]
    assert [len(batch.get("params", ())) for batch in batches] == [100, 1, 0, 0]
    assert [len(batch.get("metrics", ())) for batch in batches] == [0, 0, 1000, 1]
    assert batches[0]["params"][0] == ("p000", "v" * 5000)
    assert batches[2]["metrics"][:3] == [
        ("p50_us", 1.5, 0), ("samples.replay_us", 0.0, 0), ("samples.replay_us", 1.0, 1),
    ]  # fmt: skip
    assert [call[1:3] for call in rest if call[0] == "log_artifact"] == [("r", str(path)) for path in RUN.files]
    assert rest[-1] == ("set_terminated", "r", "FINISHED", {})


@pytest.mark.usefixtures("environ")
def test_mlflow_makes_the_experiment_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow(monkeypatch, known=False)
    trackers.Mlflow.reporter(order(tmp_path))
    artifacts = (tmp_path / "store" / "mlflow-artifacts" / "mine").as_uri()
    assert client.calls[1] == ("create_experiment", "mine", artifacts, {})
    client = mlflow(monkeypatch, known=False)
    trackers.Mlflow.reporter(order(tmp_path, "http://there"))
    assert client.calls == [("uri", "http://there"), ("create_experiment", "mine", None, {})]
    trackers.Mlflow.reporter(order(tmp_path))  # the folder is there already


@pytest.mark.usefixtures("environ")
def test_mlflow_is_told_of_a_run_that_ran_nothing_only_where_it_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mlflow(monkeypatch, known=True)
    teller = trackers.Mlflow.reporter(order(tmp_path))
    client.runs = ["known"]
    teller(RUN, True)
    assert len(client.calls) == 1
    teller(RUN, False)
    client.runs = []
    failed = Tracked(key=RUN.key, name="b", params={}, metrics={}, samples={}, tags={"npucompose.status": "failed"},
                     files=())  # fmt: skip
    teller(failed, True)
    assert [call[2] for call in client.calls if call[0] == "set_terminated"] == ["FINISHED", "FAILED"]


class Writer:
    made: list[Any]

    def __init__(self, place: str) -> None:
        self.place, self.calls = place, list[Any]()
        type(self).made.append(self)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("closed")

    def __getattr__(self, name: str) -> Any:
        return lambda *what, **named: self.calls.append((name, *what, *named.items()))


@pytest.mark.parametrize("place", [None, "/a/place"])
def test_tensorboard_gets_a_folder_for_each_run(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    Writer.made = []
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    teller = trackers.TensorBoard.reporter(order(tmp_path, place))
    run = Tracked(key="k" * 64, name="a run", params={"a": "1"}, metrics={"p50_us": 1.5},
                  samples={"replay": (3.0, 4.0)}, tags={"t": "x", "u": "y"}, files=())  # fmt: skip
    teller(run, True)
    (writer,) = Writer.made
    root = Path(place) if place else tmp_path / "store" / "tensorboard"
    assert writer.place == str(root / "mine" / ("k" * 16))
    text, one, two, histogram, params, closed = writer.calls
    assert text == ("add_text", "run", "a run\n\nt: x\n\nu: y")
    assert [one, two] == [("add_scalar", "samples/replay_us", 3.0, 0), ("add_scalar", "samples/replay_us", 4.0, 1)]
    assert (histogram[:2], list(histogram[2])) == (("add_histogram", "latency/replay_us"), [3.0, 4.0])
    assert params == ("add_hparams", {"a": "1"}, {"p50_us": 1.5}, ("run_name", "."))
    assert closed == "closed"
    if place is None:
        Path(writer.place).mkdir(parents=True)
        teller(run, True)
        assert len(Writer.made) == 1
        teller(run, False)
        assert len(Writer.made) == 2
    without = Tracked(key="", name="b", params={}, metrics={}, samples={}, tags={}, files=())
    teller(without, False)
    assert Path(Writer.made[-1].place).name == "without-a-key"


class Wandb(ModuleType):
    """The module `wandb`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("wandb")
        self.dir, self.calls = str(folder), list[Any]()
        self.Settings = dict
        self.summary = SimpleNamespace(update=lambda values: self.calls.append(("summary", values)))

    def init(self, **more: Any) -> Wandb:
        self.calls.append(("init", more))
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *what, **named: self.calls.append((name, *what, named))


@pytest.mark.parametrize(("place", "mode"), [(None, "offline"), ("https://wandb.example", "online")])
def test_wandb_gets_a_run_with_numbers_as_numbers_and_sends_only_where_the_command_line_says(
    place: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("a page")
    (tmp_path / "files").mkdir()
    module = Wandb(tmp_path / "files")
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(os, "environ", {"WANDB_CACHE_DIR": "/mine"})
    teller = trackers.WeightsAndBiases.reporter(order(tmp_path, place))
    wandb = tmp_path / "store" / "wandb"
    assert os.environ == {
        "WANDB_CACHE_DIR": "/mine", "WANDB_DATA_DIR": str(wandb / "data"), "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip
    run = Tracked(
        key="k" * 64, name="a run", params={"layers": "4", "sizes": "[1, 2]", "name": "cpu", "none": "null"},
        metrics={"latency.eager.p50_us": 1.5}, samples={"eager": (3.0, 4.0), "replay": (1.0,)},
        tags={"npucompose.status": "ok", "t": "4"}, files=(tmp_path / "report.html",),
    )  # fmt: skip
    teller(run, True)
    (_, made), *rest = module.calls
    settings = made.pop("settings")
    assert settings == {
        "mode": mode, **({} if place is None else {"base_url": place}), "console": "off", "disable_code": True,
        "disable_git": True, "save_code": False, "x_disable_machine_info": True, "x_disable_meta": True,
        "x_disable_stats": True, "x_save_requirements": False, "silent": True, "reinit": "create_new",
        "init_timeout": 30.0,
    }  # fmt: skip
    assert made.pop("id").startswith("k" * 16 + "-")
    assert made == {
        "project": "mine", "name": "a run", "dir": str(tmp_path / "store"), "tags": ["ok"],
        "config": {"layers": 4, "sizes": [1, 2], "name": "cpu", "none": None, "npucompose.status": "ok", "t": "4"},
    }  # fmt: skip
    copied = str(tmp_path / "files" / "report.html")
    assert rest == [
        ("log", {"samples/eager_us": 3.0, "samples/replay_us": 1.0}, {"step": 0}),
        ("log", {"samples/eager_us": 4.0}, {"step": 1}),
        ("summary", {"latency/eager/p50_us": 1.5}),
        ("save", copied, {"base_path": str(tmp_path / "files"), "policy": "now"}),
        ("finish", {"exit_code": 0}),
    ]  # fmt: skip
    assert Path(copied).read_text() == "a page"


def test_wandb_gets_a_run_that_ran_nothing_only_where_its_folder_has_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Wandb(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(os, "environ", {})
    teller = trackers.WeightsAndBiases.reporter(order(tmp_path))
    failed = Tracked(
        key="k" * 64, name="b", params={}, metrics={}, samples={}, tags={"npucompose.status": "failed"}, files=()
    )
    (tmp_path / "store" / "wandb" / f"offline-run-2026-{'j' * 16}-1").mkdir()
    teller(failed, True)
    assert module.calls[-1] == ("finish", {"exit_code": 1})
    (tmp_path / "store" / "wandb" / f"offline-run-2026-{'k' * 16}-1").mkdir()
    made = len(module.calls)
    teller(failed, True)
    assert len(module.calls) == made
    teller(failed, False)
    ids = [named["id"] for name, named in (call for call in module.calls if call[0] == "init")]
    assert len(ids) == len(set(ids)) == 2


# The process in between.


@pytest.mark.parametrize(
    ("stdout", "stderr", "problems"),
    [
        ('noise\n{"problems": ["a", "b"]}\n', "", ["tracker=mlflow: a", "tracker=mlflow: b"]),
        ('{"problems": []}', "", []),
        ("", "one\ntwo\n", ["tracker=mlflow: its process ended with exit status 5 (two); the runs are kept."]),
        ("no json", "", ["tracker=mlflow: its process ended with exit status 5 (it said nothing); the runs are kept."]),
        ("{}", "", ["tracker=mlflow: its process ended with exit status 5 (it said nothing); the runs are kept."]),
        ("1", "", ["tracker=mlflow: its process ended with exit status 5 (it said nothing); the runs are kept."]),
    ],
)
def test_the_tracker_s_process_gets_the_order_and_its_account_is_told(
    stdout: str, stderr: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append((command, options))
        return subprocess.CompletedProcess(command, 5, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    tracker = Tracker(name="mlflow", experiment="mine")
    monkeypatch.chdir(tmp_path)
    assert list(tracking.report_runs(tracker, [Path("a"), Path("b")], Path("store"))) == problems
    ((command, options),) = asked
    assert command == [sys.executable, "-c", tracking.BOOT, json.dumps(sys.path)]
    assert json.loads(options.pop("input")) == {
        "name": "mlflow", "place": None, "experiment": "mine", "store": str(tmp_path.resolve() / "store"),
        "folders": [str(tmp_path.resolve() / name) for name in "ab"],
    }  # fmt: skip
    environment = {**SAFE_PATH, **os.environ}
    assert options == {"capture_output": True, "text": True, "timeout": 80.0, "check": False, "env": environment}


def test_nobody_is_told_where_there_is_nothing_to_tell_and_a_tracker_that_hangs_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    assert tracking.report_runs(Tracker(), [tmp_path], tmp_path) == ()
    tracker = Tracker(name="mlflow")
    assert tracking.report_runs(tracker, [], tmp_path) == ()
    assert tracking.report_runs(tracker, [tmp_path], tmp_path) == (
        "tracker=mlflow did not end within 70 s; the runs are kept, it may lack some.",
    )


def test_only_the_account_reaches_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []
    out, into = os.pipe()
    asked = SimpleNamespace(dup=lambda handle: into, dup2=lambda *handles: moved.append(handles), fdopen=os.fdopen)
    text = json.dumps({"name": "mlflow", "place": None, "experiment": "e", "store": "s", "folders": ["a"]})
    monkeypatch.setattr(tracking, "os", asked)
    monkeypatch.setattr(tracking, "sys", SimpleNamespace(stdin=SimpleNamespace(read=lambda: text)))
    monkeypatch.setattr(tracking, "reporter_of", lambda order: ("reporter", order.name))
    monkeypatch.setattr(tracking, "handle", lambda order, teller: [f"{teller} {list(order.folders)}"])
    tracking.main()
    assert json.loads(os.read(out, 1000)) == {"problems": ["('reporter', 'mlflow') ['a']"]}
    assert moved == [(2, 1)]
    os.close(out)


# A study of a search.


class Frozen:
    def __init__(self, state: str, params: Any, values: Any) -> None:
        self.state, self.params, self.values = SimpleNamespace(name=state), params, values


class Seen(ModuleType):
    """The module `optuna`."""

    def __init__(self) -> None:
        super().__init__("optuna")
        self.calls: list[Any] = []
        self.trials: list[Any] = []
        self.logging = SimpleNamespace(set_verbosity=lambda level: self.calls.append(level), WARNING="warning")
        self.samplers = SimpleNamespace(
            TPESampler=lambda seed: ("tpe", seed), RandomSampler=lambda seed: ("random", seed)
        )

        class States:
            COMPLETE, PRUNED, FAIL = "COMPLETE", "PRUNED", "FAIL"

            def __class_getitem__(cls, name: str) -> str:
                return getattr(cls, name)

        self.trial = SimpleNamespace(
            TrialState=States,
            FixedTrial=lambda params: Suggested(params),
            create_trial=lambda **parts: parts,
        )
        self.fails = False

    def create_study(self, **options: Any) -> Any:
        self.calls.append(options)
        return self

    def add_trial(self, trial: Any) -> None:
        if self.fails:
            raise ValueError("out of the distribution")
        self.trials.append(trial)

    def ask(self) -> Any:
        return Suggested({"seed": 5})

    def tell(self, trial: Any, values: Any, *, state: str) -> Any:
        self.trials.append(Frozen(state, trial.params, values))
        return self.trials[-1]

    @property
    def best_trial(self) -> Any:
        return self.trials[0]

    @property
    def best_trials(self) -> Any:
        return self.trials[:2]


class Suggested:
    def __init__(self, params: Any) -> None:
        self.params, self.distributions = params, {"seed": "1 to 9"}

    def suggest_int(self, key: str, low: int, high: int, **more: Any) -> int:
        return self.params[key]


SPACE = Space(dimensions={"seed": Dimension(low=1, high=9)}, base=("model=add",))


def options(**more: Any) -> Optuna:
    return Optuna(**{"space": SPACE.dimensions, "objectives": {"p50_us": "minimize"}, "trials": 4, "seed": 10, **more})


@pytest.fixture
def optuna(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setitem(sys.modules, "optuna", found)
    return found


def trial(number: int, state: Any = "complete", values: Any = (2.0,)) -> Trial:
    return Trial(study="s", number=number, key="k", state=state, params={"seed": 3}, values=values)


def test_a_study_asks_for_each_trial_once_and_writes_down_how_it_ended(tmp_path: Path, optuna: Seen) -> None:
    with PointLedger.open(tmp_path) as ledger:
        study = Study("s", options(trials=3), SPACE, ledger)
        assert optuna.calls == ["warning", {"directions": ["minimize"], "sampler": ("tpe", 10)}]
        assert list(study.best()) == []
        asked = [study.ask() for _ in range(4)]
        assert asked[3] is None
        one, two, three = (found for found in asked if found is not None)
        assert [(found.number, found.overrides) for found in (one, two, three)] == [
            (n, ("model=add", "seed=5")) for n in range(3)
        ]
        study.tell(one, "k0", (1.5,))
        study.tell(two, "k1", None, illegal=True)
        study.tell(three, "k2", None)
        assert [found.state.name for found in optuna.trials] == ["COMPLETE", "PRUNED", "FAIL"]
        assert [(t.number, t.key, t.state, t.values, t.params) for t in ledger.trials("s")] == [
            (0, "k0", "complete", (1.5,), {"seed": 5}), (1, "k1", "pruned", None, {"seed": 5}),
            (2, "k2", "failed", None, {"seed": 5}),
        ]  # fmt: skip
        assert list(study.best()) == [({"seed": 5}, (1.5,))]


def test_a_study_goes_on_where_an_earlier_process_ended(tmp_path: Path, optuna: Seen) -> None:
    with PointLedger.open(tmp_path) as ledger:
        for one in (trial(0), trial(2, "pruned", None), trial(3, "failed", None)):
            ledger.write_trial(one)
        study = Study("s", options(sampler="random"), SPACE, ledger)
        assert optuna.calls[1]["sampler"] == ("random", 13)
        assert [(told["state"], told["values"], told["params"]) for told in optuna.trials] == [
            ("COMPLETE", [2.0], {"seed": 3}), ("PRUNED", None, {"seed": 3}), ("FAIL", None, {"seed": 3}),
        ]  # fmt: skip
        assert optuna.trials[0]["distributions"] == {"seed": "1 to 9"}
        asked = [study.ask(), study.ask()]
        assert [one and one.number for one in asked] == [1, None]
        optuna.trials.clear()
        again = Study("s", options(), SPACE, ledger, forget=("failed",))
        assert len(optuna.trials) == 2
        assert [one.number for one in iter(again.ask, None)] == [1, 3]


def test_trials_that_fit_no_search_are_refused_and_several_objectives_have_several_best(
    tmp_path: Path, optuna: Seen
) -> None:
    with PointLedger.open(tmp_path) as ledger:
        two = options(objectives={"p50_us": "minimize", "speedup": "maximize"})
        study = Study("s", two, SPACE, ledger)
        assert optuna.calls[1]["directions"] == ["minimize", "maximize"]
        for values in ((1.0, 2.0), (2.0, 3.0)):
            asked = study.ask()
            assert asked is not None
            study.tell(asked, "k", values)
        assert [values for _, values in study.best()] == [(1.0, 2.0), (2.0, 3.0)]
        optuna.fails = True
        with pytest.raises(OrchestratorError, match="trial 0 of the study 's': out of the distribution"):
            Study("s", options(), SPACE, ledger)
