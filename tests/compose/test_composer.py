"""Many points from one Composer are what each would be alone."""

from __future__ import annotations

import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from npucompose.compose import tree
from npucompose.compose.conf import choices_of, conf_dir, installed_dirs
from npucompose.compose.merge import completed, merged
from npucompose.compose.overrides import parsed_overrides, words
from npucompose.compose.references import resolved
from npucompose.compose.sources import Folder
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
        wanted: object = resolved(cast("dict[str, Any]", OmegaConf.to_container(base, resolve=False)))
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
    made = tree._Combination.of  # private: how often it is composed anew is no result

    def counted(*arguments: object) -> object:
        seen.append(arguments)
        return made(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tree._Combination, "of", counted)  # private: how often it is composed anew is no result
    monkeypatch.setattr(tree, "_own", threading.local())  # private: as in another thread
    return seen


def test_hydra_runs_once_for_each_combination_of_choices(composed: list[object]) -> None:
    composer = Composer()
    for model in ("add", "mlp"):
        for seed in range(5):
            composer.compose([f"model={model}", f"seed={seed}"])
    assert len(composed) == 2


def test_a_composer_reads_a_file_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: list[str] = []
    of_a_folder = Folder.content
    monkeypatch.setattr(Folder, "content", lambda self, file, path: read.append(path) or of_a_folder(self, file, path))
    composer = Composer(config_dirs=[str(tmp_path)])
    for model in ("add", "mlp", "add"):
        composer.compose([f"model={model}", "passes=clean"])
    composer.application().load_configuration("config", ["model=mlp", "passes=clean"], RunMode.RUN)
    assert {"config", "model/add", "model/mlp", "passes/clean"} <= set(read)
    assert len(read) == len(set(read))


def _as_hydra_composes(overrides: list[str]) -> Any:
    """By Hydra's public functions alone, over the same files."""
    with warnings.catch_warnings(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
        warnings.simplefilter("ignore")
        packages = f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in installed_dirs())}]"
        return OmegaConf.to_container(hydra_compose("config", [*overrides, packages]), resolve=False)


@pytest.mark.parametrize("experiment", choices_of("experiment"))
def test_files_are_merged_as_hydra_merges_them(experiment: str) -> None:
    for chosen in ([], ["target=npu_offline"], ["passes=[clean,stream_plan]", "shapes=dynamic"]):
        overrides = [f"experiment={experiment}", *chosen]
        theirs = completed(_as_hydra_composes(overrides))
        ours = SHARED.compose(overrides).tree
        assert ours == theirs
        assert list(ours["passes"]) == list(theirs["passes"])


KEYS = st.sampled_from("abc")
LEAVES = st.sampled_from([1, "a", None, "???", {}])
TREES = st.dictionaries(KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner)), max_size=3)


@settings(max_examples=examples(100), deadline=None)
@given(files=st.lists(TREES, max_size=4))
def test_a_file_goes_above_another_as_in_hydra(files: list[dict[str, Any]]) -> None:
    found: Any = {}
    for file in files:
        found = merged(found, file)
    assert found == OmegaConf.to_container(OmegaConf.merge({}, *files), resolve=False)


def test_no_more_of_hydra_s_own_modules_is_imported_than_has_no_public_name() -> None:
    """And each with its reason beside it; none of their functions is replaced."""
    source = Path(tree.__file__).parents[2]
    lines = [line for file in source.rglob("*.py") for line in file.read_text().splitlines()]
    own = [line for line in lines if re.search(r"(from|import) +hydra\._internal", line)]
    assert 0 < len(own) <= 3
    assert all("#" in line for line in own), own
    assert not [line for line in lines if re.match(r"\s*hydra[\w.]*\.\w+ = ", line)]


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
    assert len(tree._own.kept) == 1  # private: as in another thread


def test_a_reference_to_another_value_is_followed(tmp_path: Path) -> None:
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "mine.yaml").write_text("warmup: ${seed}\n")
    composer = Composer(config_dirs=[str(tmp_path)])
    assert composer.compose(["benchmark=mine", "seed=3"]).tree["benchmark"]["warmup"] == 3
    assert composer.compose(["benchmark=mine", "seed=4"]).tree["benchmark"]["warmup"] == 4
