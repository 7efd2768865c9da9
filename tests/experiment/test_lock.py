"""A recipe is data: every field counts, what differs is named, and a stranger's file runs nothing."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lock_examples import GRAPH, OVERRIDES, locked_of

from airflow_free.keys import digest
from airflow_free.store import Store
from npucompose.cli import main
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment import lock, verify
from npucompose.experiment.job import Job
from npucompose.experiment.lock import EXCLUDED, Locked, read
from npucompose.experiment.orchestrator import STORE_VARIABLE, default_store
from npucompose.experiment.verify import compared, described, job_of, judged
from npucompose.input_safety import load_yaml
from npucompose.results.graphs import Partition
from npucompose.results.record import Expectation
from npucompose.table.structure import of_facts
from tests.searches import examples


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_composed(compose(OVERRIDES))


@pytest.fixture
def locked(job: Job) -> Locked:
    return locked_of(job)


def changed(locked: Locked, field: str, value: Any, *path: str) -> Locked:
    """The lock with one value changed, locked again."""
    tree = yaml.safe_load(locked.text())
    at = tree[field]
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return of_facts(Locked, {**tree, "configuration": digest(tree["experiment"])}, where="a lock")


def test_what_is_written_is_read_again_and_is_the_same_job(locked: Locked, job: Job, tmp_path: Path) -> None:
    assert locked.write(tmp_path) == tmp_path / "recipe.lock.yaml"
    again = read(tmp_path)
    verdict = compared(locked, again, tolerance=0.0)
    assert verdict.holds
    assert verdict.differences == ()
    assert sum(verdict.compared.values()) > 50
    assert job_of(again).keys == job.keys


def test_every_field_of_an_experiment_but_the_excluded_ones_is_in_the_hash(job: Job, locked: Locked) -> None:
    assert set(job.ingredients.values) - set(locked.experiment) == EXCLUDED == {"trust", "debug"}


@pytest.mark.parametrize(
    ("field", "path", "value", "told", "holds"),
    [
        ("experiment", ("model", "size"), 3, "configuration.model.size: locked", False),
        ("experiment", ("seed",), 7, "configuration.seed: locked 0, here 7", False),
        ("experiment", ("compiler",), {}, "configuration.compiler.debug.aclgraph.clone_input: locked false", False),
        ("sources", ("npucompose.passes.simplify",), "0" * 64, "sources.npucompose.passes.simplify: locked", True),
        ("versions", ("torch",), "2.14.0", "versions.torch: locked", True),
        ("device", ("cpu",), "another", "device.cpu: locked", True),
        ("result", ("numerics", "bitwise"), False, "numerics.bitwise: locked true, here false", False),
        ("result", ("benchmark", "speedup", "eager"), 1.5, "speedup.eager: locked 2.0, here 1.5", False),
        ("result", ("benchmark",), None, "speedup.eager: locked 2.0, here null", False),
    ],
)
def test_each_difference_is_named_and_decides_or_does_not(
    field: str, path: tuple[str, ...], value: Any, told: str, holds: bool, locked: Locked
) -> None:
    verdict = compared(locked, changed(locked, field, value, *path), tolerance=0.2)
    assert [str(d) for d in verdict.differences if str(d).startswith(told)], verdict.differences
    assert verdict.holds is holds
    assert told in judged(verdict, locked, locked)


def test_another_graph_is_named(locked: Locked) -> None:
    other = attrs.evolve(locked, graphs=(attrs.evolve(GRAPH, fingerprint="0" * 64),))
    verdict = compared(locked, other, tolerance=0.2)
    assert [f"{d.part}.{d.field}" for d in verdict.differences] == ["graphs.graph_0.fingerprint"]
    assert not verdict.holds


PARTITION = Partition(segments=2)


def test_a_fact_that_is_null_is_judged_both_ways(locked: Locked, tmp_path: Path) -> None:
    """Nothing of the graph was recorded there, something is here; and the reverse."""
    cut = attrs.evolve(locked, graphs=(attrs.evolve(GRAPH, partition=PARTITION),))
    locked.write(tmp_path)
    null = read(tmp_path)
    assert null.lacks == frozenset()
    for there, here, told in (
        (null, cut, "graphs.graph_0.partition.segments: locked null, here 2"),
        (cut, null, "graphs.graph_0.partition.segments: locked 2, here null"),
    ):
        verdict = compared(there, here, tolerance=0.2)
        assert told in map(str, verdict.differences)
        assert not verdict.holds


def test_a_fact_that_the_recipe_does_not_name_is_listed_and_not_judged(locked: Locked, tmp_path: Path) -> None:
    tree = yaml.safe_load(locked.text())
    del tree["graphs"][0]["partition"]
    (tmp_path / "recipe.lock.yaml").write_text(
        yaml.safe_dump({**tree, "lacks": ["graph_0.fingerprint"]}, sort_keys=False)
    )
    old = read(tmp_path)
    assert old.lacks == {"graph_0.partition"}, "what a file says of itself is not asked"
    cut = attrs.evolve(locked, graphs=(attrs.evolve(GRAPH, partition=PARTITION),))
    verdict = compared(old, cut, tolerance=0.2)
    assert verdict.differences == ()
    assert "not judged: 2 facts that the version of the recipe did not know\n  graph_0.partition.segments=2" in judged(
        verdict, old, cut
    )
    another = attrs.evolve(cut, graphs=(attrs.evolve(cut.graphs[0], nodes_after=7),))
    assert [d.field for d in compared(old, another, tolerance=0.2).differences] == ["graph_0.nodes_after"]
    assert not compared(cut, old, tolerance=0.2).holds, "what the recipe says and the other file cannot is a difference"


def expecting(locked: Locked, status: Any, *expectations: Expectation) -> Locked:
    return attrs.evolve(locked, result=attrs.evolve(locked.result, status=status, expectations=expectations))


HELD = Expectation(name="speedup", wanted=1.5, got=2.0, held=True)
MISSED = Expectation(name="speedup", wanted=1.5, got=1.2, held=False)
UNKNOWN = Expectation(name="segments", wanted=1, got=None, held=False)


def test_an_expectation_that_held_there_and_fails_or_is_unknown_here_decides(locked: Locked) -> None:
    there = expecting(locked, "ok", HELD)
    verdict = compared(there, expecting(locked, "expect_failed", MISSED, UNKNOWN), tolerance=0.2)
    assert [str(d) for d in verdict.differences] == [
        "expectations.speedup: locked held, here 1.2, wanted 1.5",
        "expectations.segments: locked held, here null, wanted 1",
    ]
    assert not verdict.holds
    assert "the recipe does not hold here: expect_failed" in judged(verdict, there, expecting(locked, "expect_failed"))
    assert compared(there, expecting(locked, "ok", HELD), tolerance=0.2).holds
    kept_the_status = expecting(locked, "ok")
    assert not compared(kept_the_status, expecting(locked, "expect_failed", MISSED), tolerance=0.2).holds
    assert not compared(there, expecting(locked, "expect_failed"), tolerance=0.2).holds


def test_an_expectation_that_failed_there_promises_nothing(locked: Locked) -> None:
    failed = expecting(locked, "expect_failed", MISSED)
    for there in (failed, expecting(locked, "expect_failed")):
        verdict = compared(there, failed, tolerance=0.2)
        assert verdict.holds
    assert "expectations: as in the recipe" in judged(verdict, failed, failed)


def test_the_order_of_passes_counts(locked: Locked) -> None:
    passes = dict(reversed(locked.experiment["passes"].items()))
    other = attrs.evolve(locked, experiment={**locked.experiment, "passes": passes})
    (difference,) = compared(locked, other, tolerance=0.2).differences
    assert difference.field == "passes.(order)"


def test_a_speedup_within_the_tolerance_or_above_holds(locked: Locked) -> None:
    for value in (1.61, 2.0, 9.0):
        assert compared(locked, changed(locked, "result", value, "benchmark", "speedup", "eager"), tolerance=0.2).holds


def test_one_option_that_was_set_is_one_difference(locked: Locked) -> None:
    plain = attrs.evolve(locked, experiment={**locked.experiment, "compiler": {}})
    verdict = compared(plain, locked, tolerance=0.2)
    assert [str(d) for d in verdict.differences] == [
        "configuration.compiler.debug.aclgraph.clone_input: locked null, here false"
    ]
    without = attrs.evolve(locked, experiment={**locked.experiment, "passes": {}})
    fields = {d.field for d in compared(locked, without, tolerance=0.2).differences}
    assert {field.split(".")[1] for field in fields} == {"cse", "stream_plan"}


def test_show_says_what_it_is(locked: Locked) -> None:
    text = described(locked)
    for words in ("mode=reduce-overhead", "passes: cse, stream_plan", "bit for bit", "2.00x eager", "of 2 samples"):
        assert words in text


BROKEN = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def make():
    return Model(), {"x": torch.ones(2)}
"""
LETTERS = "abcdefghijklmnop"
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise(LETTERS))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, ":1: anchors and aliases are not read"),
        ("a: !!python/object/apply:os.system ['echo ran > ran']", "the tag tag:yaml.org,2002:python/object"),
        ("a: !!set {b}", "r.yaml:1: the tag tag:yaml.org,2002:set is not read"),
        ("[" * 100 + "]" * 100, "nested more than 32 deep"),
        ("a: [", "is not YAML"),
        ("- 1", "is no recipe of schema 1"),
        ("schema: 2", "is no recipe of schema 1: its schema is 2"),
        ("schema: 1", "'configuration' is missing @"),
        ("schema: 1\nconfiguration: a\nschema: 1\n", "r.yaml:3: the key 'schema' stands in line 1 already"),
        (
            "experiment:\n  seed: 1\n  mode: {name: eager}\n  seed: 2\n",
            ":4: the key 'seed' stands in line 2 already",
        ),
        ("\x00", "is not YAML"),
    ],
)
def test_a_hostile_or_broken_file_is_one_paragraph(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(text)
    for command in ("show", "verify"):
        assert main(["recipe", command, "r.yaml"]) == 2
        assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["r.yaml"]


def test_a_file_that_is_too_large_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(2**30)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("read"))
    with pytest.raises(ConfigError, match="has 1,073,741,824 bytes"):
        load_yaml(tmp_path / "big.yaml")


@pytest.fixture(scope="module")
def whole(job: Job) -> str:
    return attrs.evolve(
        locked_of(job), versions={"torch": "2.13.0"}, device={"cpu": "x"}, sources={"a": "0" * 64}
    ).text()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_change_of_a_recipe_makes_a_traceback(data: st.DataObject, whole: str) -> None:
    """A line dropped, or a value of another type in its place, the hash made to fit."""
    lines = whole.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    name = lines[at].partition(":")[0]
    put = data.draw(st.sampled_from([None, f"{name}: 3", f"{name}: [1]", f"{name}: {{a: 1}}", "- x", "\t"]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "r.yaml"
        file.write_text("\n".join([*lines[:at], *([put] if put else []), *lines[at + 1 :]]))
        problems: tuple[str, ...] = ()
        try:
            tree = load_yaml(file)
            if isinstance(tree, dict) and isinstance(tree.get("experiment"), dict):
                file.write_text(yaml.safe_dump({**tree, "configuration": digest(tree["experiment"])}))
            found = read(file)
            described(found)
            job_of(found)
        except ConfigError as error:
            problems = tuple(error.problems)
        assert not any("\n" in problem for problem in problems)


def test_a_recipe_names_no_folder_elsewhere_and_tells_a_terminal_nothing(locked: Locked) -> None:
    compiler = {"debug": {"graph_dump": {"type": "py", "path": "/tmp/out"}}}
    with pytest.raises(ConfigError, match=r"leads out of the run directory and comes from recipe\.lock\.yaml"):
        job_of(attrs.evolve(locked, experiment={**locked.experiment, "target": {"name": "npu"}, "compiler": compiler}))
    text = described(attrs.evolve(locked, device={"cpu": "\x1b]0;owned\x07<b>"}))
    assert "cpu: \\x1b]0;owned\\x07<b>" in text


@pytest.mark.parametrize("named", sorted(EXCLUDED))
def test_a_recipe_cannot_trust_itself(named: str, locked: Locked, tmp_path: Path) -> None:
    experiment = {**locked.experiment, named: True}
    attrs.evolve(locked, experiment=experiment, configuration=digest(experiment)).write(tmp_path)
    with pytest.raises(ConfigError, match=rf"experiment\.{named} is not a recipe's to say"):
        read(tmp_path)


def test_a_model_that_imports_code_needs_trust_on_the_command_line(locked: Locked, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    model = {"name": "python", "factory": "evil:make"}
    experiment = {**locked.experiment, "model": model}
    with pytest.raises(ConfigError, match="imports code that the configuration names, and trust is false"):
        job_of(attrs.evolve(locked, experiment=experiment))


def test_what_is_run_again_takes_nothing_from_an_earlier_run(
    locked: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    stores: list[Store] = []

    def lock(job: Job, *, store: Store) -> Locked:
        stores.append(store)
        assert list(store.root.iterdir()) == []
        return locked

    monkeypatch.setattr(verify, "lock", lock)
    assert verify.run_again(locked) is locked
    assert stores[0].root != default_store().root
    assert not stores[0].root.exists()


def test_an_experiment_that_was_changed_after_locking_is_refused(locked: Locked, tmp_path: Path) -> None:
    file = locked.write(tmp_path)
    file.write_text(file.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match="its experiment was changed after it was locked"):
        read(tmp_path)


@pytest.mark.slow
def test_locked_here_verified_here_all_is_equal_and_a_changed_pass_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "lock", *OVERRIDES, "--out", "a.yaml"]) == 0
    assert main(["recipe", "verify", "a.yaml"]) == 0
    said = capsys.readouterr().out
    assert "the recipe holds here: ok" in said
    assert "differ" not in said
    file = read(Path("a.yaml"))
    sources = {**file.sources, "npucompose.passes.simplify": "0" * 64}
    Path("b.yaml").write_text(attrs.evolve(file, sources=sources).text())
    assert main(["recipe", "verify", "b.yaml"]) == 0
    said = capsys.readouterr().out
    assert "sources.npucompose.passes.simplify: locked 000000000000…" in said
    assert "the recipe holds here (and sources differ)" in said
    assert main(["recipe", "verify", "a.yaml", "--against", "b.yaml"]) == 0


@pytest.mark.slow
def test_a_recipe_whose_run_fails_here_ends_with_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = ["model=python", "model.factory=broken:make", "trust=true", "pipeline=check"]
    assert main(["recipe", "lock", *chosen, "--out", "a.yaml"]) == 0
    assert main(["recipe", "verify", "a.yaml"]) == 2
    told = capsys.readouterr().err
    assert "If you trust that code, add --trust to the command line" in told
    assert "trust=true" not in told
    (tmp_path / "broken.py").write_text(BROKEN.replace("return x + 1", "raise RuntimeError('broken')"))
    assert main(["recipe", "verify", "a.yaml", "--trust"]) == 3
    assert "failed: " in capsys.readouterr().err


def test_the_file_is_named_as_the_design_names_it() -> None:
    assert lock.FILE_NAME == "recipe.lock.yaml"
