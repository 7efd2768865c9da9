"""Many points from one Composer are what each would be alone."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.default_element import ConfigDefault, GroupDefault
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from npucompose.compose import tree
from npucompose.compose.hydra_loader import PackagedFiles, plain
from npucompose.compose.overrides import parsed_overrides, words
from npucompose.compose.references import resolved
from npucompose.compose.tree import COMMAND_LINE, DEFAULT, Composer, compose
from npucompose.errors import ConfigError
from npucompose.table.structure import flat
from tests.searches import examples

CHOICES = {
    "mode": ["eager", "reduce-overhead", "max-autotune"],
    "passes": ["[]", "[cse]", "[cse,stream_plan]", "clean"],
    "model": ["add", "mlp", "gpt_decode"],
    "streams": ["auto", "none"],
}
VALUES = {
    "seed": ["1", "-3", "null", "text", "[1,2]"],
    "streams.max_streams": ["2", "three"],
    "benchmark.min_calls": ["5", "1.5"],
    "pipeline.stages": ["[]", "[compile]"],
    "logs.levels": ["{torch: INFO}"],
    "compiler.ge_config.oo_level": ["O1", "null"],
    "compiler.ge_config": ["{oo_level: O3}"],
    "+passes.cse.stage": ["post"],
    "+compile.nothing": ["1"],
    "expect.speedup": ["${benchmark.min_seconds}", "2"],
    "++streams.max_streams": ["4"],
    "~expect.fx_graph": [""],
    "streams.plan": ["[{stream: a, match: {target: aten.mm.default}}]"],
}


def _texts(choices: dict[str, list[str]]) -> st.SearchStrategy[list[str]]:
    one = st.sampled_from([f"{key}={value}".rstrip("=") for key, values in choices.items() for value in values])
    return st.lists(one, max_size=4, unique_by=lambda text: text.partition("=")[0])


SHARED = Composer()


@settings(max_examples=examples(25), deadline=None)
@given(chosen=_texts(CHOICES), values=_texts(VALUES))
def test_merging_values_gives_what_hydra_gives(chosen: list[str], values: list[str]) -> None:
    base = OmegaConf.create(SHARED.compose(chosen).tree)
    try:
        ConfigLoaderImpl._apply_overrides_to_config(parsed_overrides([_as_hydra_takes(one) for one in values]), base)
        wanted: object = resolved(plain(base))
    except ConfigCompositionException as error:
        wanted = (words(error),)
    try:
        composed = SHARED.compose([*chosen, *values])
        found: object = composed.tree
        assert set(composed.provenance) == set(flat(composed.tree))
        changed = {one.lstrip("+").partition("=")[0] for one in values if not one.startswith("~")}
        below = [by for path, by in composed.provenance.items() if any(f"{path}.".startswith(f"{k}.") for k in changed)]
        assert set(below) <= {COMMAND_LINE, DEFAULT}
    except ConfigError as error:
        found = error.problems
    assert found == wanted


def _as_hydra_takes(text: str) -> str:
    """A plus is no claim here that the key is not there: Hydra says so with two."""
    return f"+{text}" if text.startswith("+") and not text.startswith("++") else text


def test_a_value_does_not_leak_into_the_next_point() -> None:
    composer = Composer()
    first = composer.compose(["model=add", "seed=7", "streams.max_streams=3"])
    second = composer.compose(["model=add"])
    assert (first.tree["seed"], first.provenance["seed"]) == (7, COMMAND_LINE)
    assert second.tree == compose(["model=add"]).tree
    assert second.provenance == compose(["model=add"]).provenance


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever Hydra runs; nothing is remembered from tests before."""
    seen: list[object] = []
    made = tree._Combination.of

    def counted(*arguments: object) -> object:
        seen.append(arguments)
        return made(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tree._Combination, "of", counted)
    monkeypatch.setattr(tree, "_own", threading.local())
    return seen


def test_hydra_runs_once_for_each_combination_of_choices(composed: list[object]) -> None:
    composer = Composer()
    for model in ("add", "mlp"):
        for seed in range(5):
            composer.compose([f"model={model}", f"seed={seed}"])
    assert len(composed) == 2


def test_a_defaults_list_may_refer_to_another_choice(tmp_path: Path) -> None:
    for name, text in {
        "config": "defaults: [db: small, schema: '${db}']",
        "db/small": "rows: 1",
        "schema/small": "of: small",
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    config = ConfigLoaderImpl(create_config_search_path(str(tmp_path))).load_configuration("config", [], RunMode.RUN)
    assert (config.db.rows, config.schema.of) == (1, "small")


@pytest.mark.parametrize(("entry", "made"), [("small", False), ("${db}", True)])
def test_what_may_be_referred_to_is_made_only_for_a_list_that_refers(entry: str, made: bool) -> None:
    entries = [ConfigDefault(path="_self_"), GroupDefault(group="schema", value=entry)]
    entries[1].update_parent("", "")
    found = hydra_defaults._create_interpolation_map(SimpleNamespace(known_choices={"db": "small"}), entries, True)
    assert found == ({"db": "small", "defaults": [{"schema": entry}]} if made else None)


def test_a_packaged_file_is_read_once_and_again_where_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    base: Any = PackagedFiles.__base__  # Hydra loads the file of its class anew when it looks for plugins
    load = base.load_config
    monkeypatch.setattr(base, "load_config", lambda self, path: opened.append(path) or load(self, path))
    source, file = PackagedFiles("main", f"file://{tmp_path}"), tmp_path / "rows.yaml"
    file.write_text("rows: 1")
    source.load_config("rows").config.rows = 5
    assert PackagedFiles("main", f"file://{tmp_path}").load_config("rows").config == {"rows": 1}
    assert opened == ["rows"]
    state = file.stat()
    file.write_text("rows: 2")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    assert source.load_config("rows").config == {"rows": 2}
    file.write_text("rows: 333")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    assert source.load_config("rows").config == {"rows": 333}
    assert opened == ["rows"] * 3


def test_the_package_s_own_files_are_read_so() -> None:
    assert [type(one) for one in Composer().loader.repository.sources if one.scheme() == "file"] == [PackagedFiles]


def test_a_process_composes_the_same_choices_of_the_package_once(composed: list[object]) -> None:
    trees = [compose(["model=add", f"seed={seed}"]).tree for seed in range(3)]
    assert ([one["seed"] for one in trees], len(composed)) == ([0, 1, 2], 1)
    with ThreadPoolExecutor(1) as other:  # Hydra's loader is for one thread
        assert other.submit(compose, ["model=add", "seed=2"]).result().tree == trees[2]
    assert len(composed) == 2


def test_a_file_of_another_folder_is_read_whenever_it_is_composed(tmp_path: Path) -> None:
    file = tmp_path / "benchmark" / "mine.yaml"
    file.parent.mkdir()
    for warmup in (3, 4):
        file.write_text(f"warmup: {warmup}\n")
        made = compose(["benchmark=mine"], config_dirs=[str(tmp_path)])
        assert made.tree["benchmark"]["warmup"] == warmup


@pytest.mark.parametrize("limit", ["MOST_COMBINATIONS", "MOST_OVERRIDES"])
def test_what_a_process_remembers_is_bounded(
    composed: list[object], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(tree, limit, 1)
    for texts in (["model=add"], ["mode=eager"], ["model=add"]):
        compose(texts)
    assert len(composed) == 3
    assert len(tree._own.kept) == 1


def test_a_reference_to_another_value_is_followed(tmp_path: Path) -> None:
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "mine.yaml").write_text("warmup: ${seed}\n")
    composer = Composer(config_dirs=[str(tmp_path)])
    assert composer.compose(["benchmark=mine", "seed=3"]).tree["benchmark"]["warmup"] == 3
    assert composer.compose(["benchmark=mine", "seed=4"]).tree["benchmark"]["warmup"] == 4
