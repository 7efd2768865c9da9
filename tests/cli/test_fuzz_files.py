"""Files from strangers, made at random: configurations, recipes, scripts. Sentences, or something legal: no traceback,
nothing run, no trust, nothing on disk.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lock_examples import OVERRIDES, locked_of
from test_fuzz import CHOICES, GROUPS, KEYS, ODD

from airflow_free.errors import InvalidRequest
from airflow_free.keys import digest
from npucompose.cli import main
from npucompose.compose.tree import Composer, compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, PlanContext
from npucompose.experiment.lock import read
from npucompose.experiment.verify import compared, described, job_of, judged
from tests.searches import examples

ANYWAY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
FEW, MANY = 15, 1000

TEXTS = st.one_of(st.sampled_from([*ODD, *CHOICES]), st.text(max_size=10))
HOSTILE = [
    "<script>alert(1)</script>", "../../../etc/passwd", "${oc.env:HOME}", "=cmd()", "\u202e", "a\nb", "x" * 2000,
    {"_target_": "os.system", "_args_": ["touch executed"]}, {"hydra": {"callbacks": {}}}, [[[[]]]], float("inf"),
]  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.sampled_from(HOSTILE)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
PATHS = [key for key in KEYS if key and "@" not in key]
DEFAULTS = st.lists(
    st.one_of(
        st.builds(lambda group, name: {f"override /{group}": name}, st.sampled_from(GROUPS), TEXTS),
        st.builds(lambda group, name: {f"/{group}@{name}": name}, st.sampled_from([*GROUPS, "hydra"]), TEXTS),
        TEXTS, VALUES,
    ),
    max_size=3,
)  # fmt: skip
HEADERS = st.sampled_from(
    ["# @package _global_\n", "", "# @package hydra\n", "# @package passes\n", "# @package a b\n"]
)


def tree_of(values: dict[str, Any], defaults: list[Any] | None) -> dict[str, Any]:
    """{"seed": 1, "expect.path": 2} as nested mappings."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parts, last = path.split(".")
        node = tree
        for part in parts:
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            node = inner
        node[last] = value
    return tree if defaults is None else {"defaults": defaults, **tree}


CONFIGURATIONS = st.one_of(
    st.builds(
        lambda header, values, defaults: header + yaml.safe_dump(tree_of(values, defaults), allow_unicode=True),
        HEADERS, st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=3), st.one_of(st.none(), DEFAULTS),
    ),
    st.text(max_size=40),
    st.builds(lambda text, at, bit: text[: at % len(text)] + bit + text[at % len(text) :],
              st.sampled_from(["# @package _global_\nseed: 1\nmodel: {name: add}\n"]), st.integers(0, 60),
              st.text(max_size=4)),
)  # fmt: skip


def outcome(act: Callable[[], Job]) -> Job | None:
    """What came of it; None for a refusal, each of whose problems is a sentence."""
    try:
        return act()
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(problem.strip() and "Traceback" not in problem for problem in problems)
    return None


COMPOSER: dict[Path, Composer] = {}
AROUND = PlanContext()
NUMBERS = itertools.count()


def look_at_configuration(group: str, text: str, folder: Path) -> None:
    """Compose it as a choice of a group, in a folder of a stranger; each file has a name of its own, for the caches."""
    mine = folder / "mine"
    (mine / group).mkdir(parents=True, exist_ok=True)
    name = f"x{next(NUMBERS)}"
    file = mine / group / f"{name}.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    composer = COMPOSER.setdefault(folder, Composer(config_dirs=[str(mine)]))
    chosen = f"{group}=[{name}]" if group == "passes" else f"{group}={name}"
    found = outcome(lambda: Job.from_composed(composer.compose([chosen]), AROUND))
    if isinstance(found, Job):
        assert not found.composed.problems
        assert not found.checked.experiment.trust
        assert len(found.key) == 64
    file.unlink()
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@settings(max_examples=examples(FEW), deadline=None, suppress_health_check=ANYWAY)
@given(group=st.sampled_from(GROUPS), text=CONFIGURATIONS)
@example(group="experiment", text="# @package _global_\nseed: 1\n")
def test_no_configuration_of_a_stranger_gets_past_the_checks(
    group: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_configuration(group, text, tmp_path)


@pytest.mark.slow
@settings(max_examples=MANY, deadline=None, suppress_health_check=ANYWAY)
@given(group=st.sampled_from(GROUPS), text=CONFIGURATIONS)
def test_no_configuration_of_many_gets_past_the_checks(
    group: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_configuration(group, text, tmp_path)


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """A whole lock, as it is written after a run."""
    return yaml.safe_load(locked_of(Job.from_composed(compose(OVERRIDES))).text())


def changed(recipe: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """One to three leaves or branches replaced, dropped or added, and the hash made to fit where that is possible."""
    tree = copy.deepcopy(recipe)
    for _ in range(data.draw(st.integers(1, 3))):
        node = tree
        while True:
            name = data.draw(st.sampled_from(sorted(node)))
            if not isinstance(node[name], dict) or not node[name] or data.draw(st.booleans()):
                break
            node = node[name]
        how = data.draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        if how == "drop":
            del node[name]
        else:
            node[name if how == "replace" else data.draw(TEXTS)] = copy.deepcopy(
                data.draw(VALUES)
            )  # else it may hold itself
        if not tree:
            break
    if isinstance(tree.get("experiment"), dict) and data.draw(st.integers(0, 9)):
        with contextlib.suppress(InvalidRequest):  # what JSON cannot hold has no hash
            tree["configuration"] = digest(tree["experiment"])
    return tree


def look_at_recipe(tree: dict[str, Any], recipe: dict[str, Any], folder: Path) -> None:
    (folder / "theirs.yaml").write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "ours.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    ours = read(folder / "ours.yaml")

    def look() -> Job:
        locked = read(folder / "theirs.yaml")
        assert described(locked).replace("\n", "").isprintable()
        judged(compared(ours, locked, tolerance=0.2), ours, locked)
        judged(compared(locked, ours, tolerance=0.2), locked, ours)
        return job_of(locked)

    found = outcome(look)
    if isinstance(found, Job):
        assert not found.checked.experiment.trust
        assert found.checked.experiment.model.name != "python"
    assert {path.name for path in folder.iterdir()} == {"theirs.yaml", "ours.yaml"}


@settings(max_examples=examples(FEW), deadline=None, suppress_health_check=ANYWAY)
@given(data=st.data())
def test_no_recipe_of_a_stranger_gets_past_the_checks(
    data: st.DataObject, recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_recipe(changed(recipe, data), recipe, tmp_path)


@pytest.mark.slow
@settings(max_examples=MANY, deadline=None, suppress_health_check=ANYWAY)
@given(data=st.data())
def test_no_recipe_of_many_gets_past_the_checks(
    data: st.DataObject, recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_recipe(changed(recipe, data), recipe, tmp_path)


LINES = [
    "import torch, torch_npu, torchair", "config = torchair.CompilerConfig()", "config.mode = 'reduce-overhead'",
    "config.mode = {value}", "config.experimental_config.frozen_parameter = {value}", "config.{value} = 1",
    "setattr(config, {value}, {value})", "backend = torchair.get_npu_backend(compiler_config=config)",
    "model = torch.compile(model, backend=backend, dynamic={value})", "torch._dynamo.mark_static({value})",
    "torchair.inference.set_dim_gears(x, {value})", "open('executed', 'w')", "import os; os.system('touch executed')",
    "def f(c=config): f(c)", "f()", "if {value}: config.mode = 'max-autotune'", "for config in config: config.mode = 1",
    "# npucompose recipe, read by `npucompose recipe import`:", "#   mode: {{name: {value}}}", "# end of recipe",
    "{value}",
]  # fmt: skip
SCRIPTS = st.builds(
    lambda lines: "\n".join(lines),
    st.lists(
        st.builds(
            lambda line, value: line.replace("{value}", repr(value)).replace("{{", "{").replace("}}", "}"),
            st.sampled_from(LINES),
            VALUES,
        ),
        max_size=8,
    ),
)


def look_at_script(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "theirs.py").write_text(text, encoding="utf-8", errors="surrogatepass")
    status = main(["recipe", "import", "theirs.py"])
    told = capsys.readouterr()
    assert status in (0, 2), told
    assert "Traceback" not in told.err
    if status == 0:
        said = yaml.safe_load(told.out)
        assert set(said) <= {
            "defaults", "mode", "shapes", "tiling", "passes", "streams", "adapt", "compiler", "target", "model",
            "compile", "logs", "seed", "strict",
        }  # fmt: skip
    assert [path.name for path in folder.iterdir()] == ["theirs.py"]


@settings(max_examples=examples(FEW), deadline=None, suppress_health_check=ANYWAY)
@given(text=SCRIPTS)
@example(text="import torchair\nconfig = torchair.CompilerConfig()\nconfig.mode = 'a\\ntrust: true\\n#'\n")
def test_no_script_of_a_stranger_is_run_or_writes_more_than_it_may(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_script(text, tmp_path, capsys)


@pytest.mark.slow
@settings(max_examples=MANY, deadline=None, suppress_health_check=ANYWAY)
@given(text=SCRIPTS)
def test_no_script_of_many_is_run_or_writes_more_than_it_may(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    look_at_script(text, tmp_path, capsys)
