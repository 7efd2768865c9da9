"""A declared space: what is asked, how an answer becomes overrides, and what a space may not touch. Needs no Optuna."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_free.ledger import Trial
from npucompose.cli import run
from npucompose.compose.overrides import parsed_overrides
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import PlanContext
from npucompose.experiment.sweep.command import planned
from npucompose.experiment.sweep.plan import point_of
from npucompose.experiment.sweep.run import PointLedger
from npucompose.schema.sweep import Dimension
from npucompose_extras.search.study import Space, written
from tests.npu.needs import offline
from tests.searches import examples

COMPOSER = Composer()
FOUND = ["search=optuna", "+search.objectives.p50_us=minimize", "+search.space.seed={low:1,high:2}"]


class Answers:
    """A trial that answers as it is told, and notes the questions."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, []

    def suggest_categorical(self, key: str, choices: Sequence[str]) -> str:
        self.asked.append((key, list(choices)))
        return json.dumps(self.answers[key])

    def suggest_int(self, key: str, low: int, high: int, **more: Any) -> int:
        self.asked.append((key, low, high, more))
        return self.answers[key]

    suggest_float = suggest_int


def space(**dimensions: Dimension) -> Space:
    return Space(dimensions=dimensions, base=("model=add",))


def test_a_conditional_key_is_asked_only_where_it_applies() -> None:
    found = space(
        mode=Dimension(one_of=("eager", "reduce-overhead")),
        passes=Dimension(one_of=([], ["cse"]), when={"mode": ("reduce-overhead",)}),
        seed=Dimension(low=1, high=9),
    )
    eager = Answers(mode="eager", seed=3)
    assert found.suggested(eager) == ("model=add", "mode=eager", "seed=3")
    assert [key for key, *_ in eager.asked] == ["mode", "seed"]
    other = Answers(mode="reduce-overhead", passes=["cse"], seed=3)
    assert found.suggested(other) == ("model=add", "mode=reduce-overhead", "passes=[cse]", "seed=3")
    found.check(COMPOSER)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12),
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(value=st.one_of(SCALARS, st.lists(SCALARS, max_size=3)))
def test_what_is_written_is_read_again_as_the_same_value(value: Any) -> None:
    (override,) = parsed_overrides([f"key={written(value)}"])
    read = override.value()
    assert read == value
    assert not override.is_sweep_override()
    assert [type(item) for item in (read if isinstance(read, list) else [read])] == [
        type(item) for item in (value if isinstance(value, list) else [value])
    ]


@pytest.mark.parametrize(
    ("dimensions", "words"),
    [
        ("{}", "the space is empty"),
        ("{mode: {one_of: [eagr]}}", "unknown mode 'eagr'"),
        ("{sede: {low: 1, high: 2}}", "unknown key 'sede'"),
        ("{trust: {one_of: [true]}}", "'trust' cannot be searched over"),
        ("{++trust: {one_of: [true]}}", "'trust' cannot be searched over"),
        ("{executor: {one_of: [ray]}}", "'executor' cannot be searched over"),
        ("{hydra.run.dir: {one_of: [x]}}", "is no key of the experiment"),
        ("{'seed=1,trust': {one_of: [true]}}", "is no key of the experiment"),
        ("{seed: {low: 1}}", "either 'one_of', or 'low' and 'high'"),
        ("{seed: {low: 2, high: 1}}", "there is nothing"),
        ("{seed: {low: 0, high: 9, log: true}}", "'log' needs a 'low' above 0"),
        ("{seed: {one_of: [1], step: 2}}", "neither 'step' nor 'log'"),
        ("{seed: {low: 1, high: 2, when: {mode: [eager]}}}", "'when' names 'mode', which does not come before it"),
        (
            "{mode: {one_of: [eager]}, seed: {low: 1, high: 2, when: {mode: [x]}}}",
            "'when' names values that 'mode' never",
        ),
        ("{seed: {one_of: ['${oc.env:HOME}']}}", "uses a resolver"),
        ("{model.name: {one_of: ['a,b']}}", ""),
    ],
)
def test_a_space_that_is_wrong_is_refused_before_anything_is_made(
    dimensions: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.machinery.ModuleSpec("optuna", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: spec)
    mine = tmp_path / "mine" / "experiment"
    mine.mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - override /search: optuna\nsearch:\n  objectives: {p50_us: minimize}\n"
    (mine / "find.yaml").write_text(f"{text}  space: {dimensions}\n")
    composer = Composer(config_dirs=["mine"])
    if not words:
        planned(["model=add", "experiment=find"], composer)
        return
    with pytest.raises(ConfigError) as refused:
        planned(["model=add", "experiment=find"], composer)
    assert words in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["-m", "search=optuna", "seed=1,2"], "a search takes one value for each key"),
        (["search=optuna"], "search=optuna asks for many trials: it needs -m"),
        (["-m", "search=optuna", "+search.objectives.p5=minimize"], "unknown figure 'p5'"),
        (["-m", "search=optuna"], "search.objectives is empty"),
        (["-m", "executor=evil", *FOUND], "executor.address=evil.example:6379 comes from conf/executor/evil.yaml"),
        (["-m", "search=optuna", "search.sampler=grid"], "'sampler' must be one of tpe, random"),
    ],
)
def test_what_is_no_search_is_refused_with_a_sentence(
    overrides: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.machinery.ModuleSpec("optuna", None)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, package=None: spec if name == "optuna" else found(name)
    )
    (tmp_path / "mine" / "executor").mkdir(parents=True)
    (tmp_path / "mine" / "executor" / "evil.yaml").write_text("name: ray\naddress: evil.example:6379\n")
    assert run(["--config-dir", "mine", *overrides, "model=add"], program="run.py") == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("choice", "package"), [("search=optuna", "optuna"), ("executor=ray", "ray"), ("executor=slurm", "submitit")]
)
def test_without_its_package_a_choice_says_which_extra_brings_it(
    choice: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, package=None: None if name in choice or name == "submitit" else found(name),
    )
    assert run(["-m", "model=add", choice], program="run.py") == 2
    assert (
        f"{choice} needs the package '{package}': pip install 'npucompose[{choice.partition('=')[2]}]'"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


@offline
def test_a_search_cannot_do_what_only_the_command_line_may() -> None:
    composer, key = Composer(), "compiler.debug.graph_dump.path"
    texts = ("model=add", "mode=max-autotune", "target=npu_offline", f"{key}=/tmp/out")
    assert point_of(0, texts, composer, PlanContext()).job is not None
    proposed = point_of(0, texts, composer, PlanContext(), proposed=(key,))
    assert proposed.job is None
    assert "leads out of the run directory and comes from search.space" in proposed.problems[0]


def test_a_trial_is_kept_as_it_was_told(tmp_path: Path) -> None:
    trials = [
        Trial(study="s", number=n, key="k", state=state, params={"mode": '"eager"', "x": 0.5}, values=values)
        for n, (state, values) in enumerate([("complete", (1.5, 2.0)), ("pruned", None), ("failed", None)])
    ]
    with PointLedger.open(tmp_path) as ledger:
        for trial in [*reversed(trials), trials[0]]:
            ledger.write_trial(trial)
        assert ledger.trials("s") == trials
        assert ledger.trials("another") == []


def test_each_value_is_composed_beside_those_it_depends_on() -> None:
    class Noting:
        """A composer that finds fault with one value."""

        def __init__(self) -> None:
            self.asked: list[tuple[str, ...]] = []

        def compose(self, overrides: Sequence[str]) -> Any:
            self.asked.append(tuple(overrides))
            return SimpleNamespace(problems=("no such seed.",) if "seed=3" in overrides else (), tree={})

    found = space(
        mode=Dimension(one_of=("eager", "reduce-overhead")),
        seed=Dimension(one_of=(1, 3), when={"mode": ("reduce-overhead", "eager")}),
    )
    composer = Noting()
    with pytest.raises(ConfigError) as caught:
        found.check(composer)  # type: ignore[arg-type]
    assert caught.value.problems == ("no such seed @ search.space.",)
    beside = ("model=add", "mode=reduce-overhead")
    assert composer.asked == [
        ("model=add",), ("model=add", "mode=eager"), beside, (*beside, "seed=1"), (*beside, "seed=3"),
    ]  # fmt: skip
