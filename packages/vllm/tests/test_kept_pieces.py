"""A piece whose code an earlier process compiled is loaded: nothing is traced or compiled, and it does the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("npucompose_replay", reason="pieces are recorded by it: pip install 'npucompose[replay]'")

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.codecache import CppPythonBindingsCodeCache

from npucompose.errors import ConfigError
from npucompose.targets import compilers as aot
from npucompose_replay.front.generated_cache import GeneratedCache
from npucompose_replay.inductor import through as inductor
from npucompose_vllm.pieces import Piece, Unrecorded, compiled, restored
from npucompose_vllm.recipe import Recipe, read
from packages.vllm.tests.test_vllm_pieces import Caught, Untouched

RECIPE = """\
# @package _global_
# fused
defaults:
  - override /mode: max-autotune
  - override /shapes: auto
inductor: {max_autotune: false, cpp_wrapper: false}
extensions:
  vllm: {sizes: [2, 4]}
"""


NOTHING: Mapping[str, Any] = {}


class Residual(nn.Module):
    """Writes its input, as a piece writes into the cache of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.relu(self.first(x))
        x.add_(1)
        return self.second(made), made.sum(0)


@pytest.fixture
def caught() -> Caught:
    torch.manual_seed(0)
    return Caught(Residual().requires_grad_(False), 5)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_of(tmp_path)


def recipe_of(folder: Path, *changed: tuple[str, str]) -> Recipe:
    text = RECIPE
    for old, new in changed:
        text = text.replace(old, new)
    place = folder / f"recipe{abs(hash(changed))}.yaml"
    place.write_text(text)
    return read(str(place))


def compiled_anew(recipe: Recipe, caught: Caught, engine: Mapping[str, Any] = NOTHING) -> Piece:
    """With Inductor's settings as an engine wants them."""
    unrecorded = Unrecorded(recipe.sizes, recipe.others, lambda _: None)
    with torch.no_grad(), inductor_config.patch(fx_graph_cache=True):
        return compiled(recipe, caught.graph, caught.inputs, engine, Untouched(), unrecorded)


def loaded(
    recipe: Recipe, caught: Caught, code: Mapping[str, Any], engine: Mapping[str, Any] = NOTHING
) -> Piece | None:
    """Of facts that have been text in between."""
    unrecorded = Unrecorded(recipe.sizes, recipe.others, lambda _: None)
    return restored(recipe, caught.graph, caught.inputs, engine, json.loads(json.dumps(code)), unrecorded)


def kept(recipe: Recipe, caught: Caught) -> Mapping[str, Any]:
    code = compiled_anew(recipe, caught).code
    assert code is not None
    return code


def test_what_is_loaded_does_what_was_compiled_and_nobody_traces_or_compiles(
    recipe: Recipe, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled_anew(recipe, caught)
    assert first.code is not None
    monkeypatch.setattr(inductor, "compile_fx", None)
    monkeypatch.setattr(aot, "aot_autograd", None)
    before = counters["inductor"]["fxgraph_cache_miss"]
    second = loaded(recipe, caught, first.code)
    assert second is not None
    assert counters["inductor"]["fxgraph_cache_miss"] == before
    with torch.no_grad():
        for rows in (2, 4, 3, 2, 4, 7):
            x = torch.rand(rows, 4)
            given, other = x.clone(), x.clone()
            versions = given._version
            results = second(*caught.args(given))
            assert all(map(torch.equal, results, first(*caught.args(other))))
            assert torch.equal(given, x + 1)
            assert given._version > versions, "who has looked at the tensor before sees that it was written"
    with torch.inference_mode():
        x = torch.rand(3, 4)
        assert torch.equal(second(*caught.args(x.clone()))[0], first(*caught.args(x.clone()))[0])
    assert len(second.recordings()) == 2
    assert second.code == first.code


@pytest.fixture
def denormals() -> Iterator[None]:
    """A library that gcc linked with unsafe math lets its thread flush denormals from then on."""
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("denormals")
def test_loading_asks_for_the_libraries_that_were_compiled(caught: Caught, tmp_path: Path) -> None:
    """A library's key has the compiler's flags, ours, the recipe's and the engine's: with others it would be compiled
    again. Across processes packages/vllm/tests/test_engine.py counts the files."""
    flags = "inductor: {cpp: {enable_floating_point_contract_flag: fast}, "
    recipe, engine = (
        recipe_of(tmp_path, ("inductor: {", flags)),
        {"cpp.enable_unsafe_math_opt_flag": True, "cpp_cache_precompile_headers": False},
    )
    code = compiled_anew(recipe, caught, engine).code
    assert code is not None
    known = set(CppPythonBindingsCodeCache.cache)
    assert known
    assert loaded(recipe, caught, code, engine) is not None
    assert set(CppPythonBindingsCodeCache.cache) == known


@pytest.mark.parametrize("general", ["inductor", "eager"])
def test_any_other_number_of_tokens_runs_as_the_recipe_says(general: str, caught: Caught, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ("sizes: [2, 4]", f"sizes: [2, 4], general: {general}"))
    first = compiled_anew(recipe, caught)
    assert first.code is not None
    for piece in (first, loaded(recipe, caught, first.code)):
        assert piece is not None
        assert piece.other == (caught.graph.forward if general == "eager" else piece.compiled)


def test_an_engine_is_told_of_its_graph_as_of_one_that_was_compiled(recipe: Recipe, caught: Caught) -> None:
    found = loaded(recipe, caught, kept(recipe, caught))
    assert found is not None
    (compilation,) = found.backend.compilations
    assert isinstance(compilation.lowered, GeneratedCache)
    assert compilation.lowered.partition().outside == ()


def test_code_that_is_gone_or_was_kept_under_other_guards_is_compiled_anew(recipe: Recipe, caught: Caught) -> None:
    code = kept(recipe, caught)
    assert loaded(recipe, caught, code) is not None
    assert loaded(recipe, caught, {**code, "guards": "L['t0'] == 3"}) is None
    assert loaded(recipe, caught, {**code, "key": "f" + "a" * 51}) is None
    with pytest.raises(ConfigError, match="'fixed' must be a list"):
        loaded(recipe, caught, {**code, "fixed": "all"})


@pytest.mark.parametrize("change", ["threads", "environment", "deterministic"])
def test_code_that_was_made_for_another_state_of_torch_is_not_loaded(
    change: str, recipe: Recipe, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = kept(recipe, caught)
    match change:
        case "threads":
            monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
        case "environment":
            monkeypatch.setenv("TORCHINDUCTOR_CPP_SIMDLEN", "256")
        case _:
            monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert loaded(recipe, caught, code) is None


def test_a_graph_that_no_code_is_kept_of_has_none(tmp_path: Path) -> None:
    """In a mode that compiles no code."""
    nothing = ("inductor: {max_autotune: false, cpp_wrapper: false}\n", "")
    recorded = recipe_of(tmp_path, ("max-autotune", "reduce-overhead"), nothing)
    caught = Caught(Residual().requires_grad_(False), 5)
    assert compiled_anew(recorded, caught).code is None
