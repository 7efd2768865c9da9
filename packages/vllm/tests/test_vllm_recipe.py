"""What a serving engine reads of a recipe, and what it says of sizes: everything that asks for no engine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose import recorder
from npucompose.compose import check as check_module
from npucompose.compose.tree import compose
from npucompose.errors import CaptureError, ConfigError
from npucompose.experiment.job import Job
from npucompose.models import MODELS
from npucompose_vllm.pieces import Unrecorded
from npucompose_vllm.recipe import Recipe, read, recipe_of
from tests.lock_examples import locked_of

NEEDS_RECORDER = pytest.mark.skipif(
    find_spec("npucompose_replay") is None, reason="is about recordings: pip install 'npucompose[replay]'"
)
"""What a recipe asks of Inductor and its recordings only a recorder can do."""
HEAD = "# @package _global_\n# served\n"
FUSED = HEAD + "defaults:\n  - override /mode: max-autotune\n  - override /shapes: auto\n"


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    place = folder / name
    place.write_text(text)
    return str(place)


def test_a_recipe_is_an_experiments_file_wherever_it_lies(tmp_path: Path) -> None:
    recipe = read(written(tmp_path, FUSED + "extensions:\n  vllm: {sizes: [4, 1, 4], general: eager}\n"))
    assert recipe.sizes == (1, 4)
    assert (recipe.options.general, recipe.options.graphs) == ("eager", "full")
    assert not recipe.each_size_alone


def test_a_recipe_with_static_shapes_compiles_each_size_alone(tmp_path: Path) -> None:
    assert read(written(tmp_path, HEAD + "defaults:\n  - override /mode: reduce-overhead\n")).each_size_alone


@NEEDS_RECORDER
def test_weights_that_are_inputs_are_not_frozen_and_that_is_said(tmp_path: Path) -> None:
    checked = read(written(tmp_path, FUSED)).checked
    assert checked.experiment.inductor.settings()["freezing"] is False
    (line,) = checked.effective
    assert (line.option, line.requested, line.effective) == ("inductor.freezing", True, False)
    unfrozen = read(written(tmp_path, FUSED + "inductor: {freezing: false}\n", "unfrozen.yaml"))
    assert unfrozen.checked.effective == ()


def test_what_else_has_no_effect_is_said_beside_it(tmp_path: Path) -> None:
    text = FUSED + "strict: 'off'\ncompiler: {debug: {aclgraph: {clone_input: false}}}\n"
    options = [line.option for line in read(written(tmp_path, text)).checked.effective]
    assert options == ["compiler.debug.aclgraph.clone_input", "inductor.freezing"]


def test_a_lock_is_a_recipe_too(tmp_path: Path) -> None:
    chosen = ["model=mlp", "mode=max-autotune", "passes=[cse]", "inductor.freezing=false"]
    job = Job.from_composed(compose(chosen))
    recipe = read(written(tmp_path, locked_of(job).text(), "recipe.lock.yaml"))
    assert [label for label, _ in recipe.checked.passes] == ["cse"]
    assert recipe.passes_key == Recipe(path="", checked=job.checked).passes_key


@pytest.mark.parametrize("locked", [False, True])
def test_a_model_that_cannot_be_made_here_is_the_engines_affair(
    locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job.from_composed(compose(["model=mlp", "mode=max-autotune"]))
    text = locked_of(job).text() if locked else FUSED
    made = check_module._made

    def no_model(registry: Any, *how: Any) -> Any:
        assert registry is not MODELS, "the engine has a model of its own"
        return made(registry, *how)

    monkeypatch.setattr(check_module, "_made", no_model)
    assert read(written(tmp_path, text)).checked.model is None


def test_it_is_named_in_vllms_configuration_or_else_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPUCOMPOSE_RECIPE", raising=False)
    one, other = written(tmp_path, FUSED, "one.yaml"), written(tmp_path, FUSED, "other.yaml")
    assert recipe_of({}) is None
    monkeypatch.setenv("NPUCOMPOSE_RECIPE", one)
    assert [recipe_of(config) for config in ({}, {"npucompose": other})] == [read(one), read(other)]
    assert recipe_of({"npucompose": None, "npucompose_steps": "steps.csv", "of_another_plugin": 1}) == read(one)


@pytest.mark.parametrize(
    ("config", "variable", "says"),
    [
        ({"npucompose": 3}, None, "additional_config.npucompose is the path of a recipe; given 3."),
        ({"npucompose": ""}, "one.yaml", "additional_config.npucompose is the path of a recipe; given ''."),
        ({"npucompose": " "}, None, "additional_config.npucompose is the path of a recipe; given ' '."),
        ({}, "", "NPUCOMPOSE_RECIPE is the path of a recipe; given ''."),
        ({"npu_compose": "a"}, None, "unknown key 'npu_compose' @ additional_config. Did you mean 'npucompose'?"),
        ({"NPUCompose": "a"}, None, "unknown key 'NPUCompose' @ additional_config."),
        ({"npu-compose-recipe": "a"}, None, "unknown key 'npu-compose-recipe' @ additional_config."),
        ({"npcompose": "a"}, None, "unknown key 'npcompose' @ additional_config. Did you mean 'npucompose'?"),
        ({"npucompose_step": "a"}, None, "Did you mean 'npucompose_steps'? Choices: npucompose, npucompose_steps."),
    ],
)
def test_what_names_no_recipe_is_refused_and_not_ignored(
    config: Any, variable: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPUCOMPOSE_RECIPE", raising=False)
    if variable is not None:
        monkeypatch.setenv("NPUCOMPOSE_RECIPE", variable)
    with pytest.raises(ConfigError) as refused:
        recipe_of(config)
    assert says in str(refused.value)


@pytest.mark.parametrize("config", [None, {}, {"torchair_graph_config": {}, "compose": 1, "npu": 2}, ["npu_compose"]])
def test_keys_of_others_are_theirs(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPUCOMPOSE_RECIPE", raising=False)
    assert recipe_of(config) is None


@pytest.mark.parametrize("by", ["configuration", "environment"])
def test_a_home_is_the_callers(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JSON nor a variable goes through a shell that would say where it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NPUCOMPOSE_RECIPE", "~/mine.yaml")
    wanted = read(written(tmp_path, FUSED))
    assert recipe_of({"npucompose": "~/mine.yaml"} if by == "configuration" else {}) == wanted


JSON = """{
  "defaults": [{"override /mode": "reduce-overhead"}, {"override /shapes": "auto"}],
  "extensions": {"vllm": {"sizes": [2, 1]}}
}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (JSON, "mine.json"),
        (JSON, "mine.yaml"),
        ("# served\n" + FUSED.removeprefix(HEAD).replace("max-autotune", "reduce-overhead")
         + "extensions:\n  vllm: {sizes: [2, 1]}\n", "mine.yaml"),
    ],
)  # fmt: skip
def test_a_recipe_needs_no_header(text: str, name: str, tmp_path: Path) -> None:
    recipe = read(written(tmp_path, text, name))
    assert (recipe.sizes, recipe.checked.experiment.mode.name) == ((1, 2), "reduce-overhead")
    assert not recipe.each_size_alone


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FUSED + "trust: true\n", "only the command line itself can say so"),
        (FUSED + "seed: ${oc.env:HOME}\n", "resolver"),
        (FUSED + "hydra: {run: {dir: /tmp/x}}\n", "hydra"),
        (FUSED + "passes: {python: {function: 'os:getcwd'}}\n", "trust=true"),
        (FUSED + "extensions:\n  vllm: {graphs: half}\n", "mine.yaml:7"),
        (FUSED + "extensions:\n  vllm: {sizes: [0, -1]}\n", "'sizes' must be >= 1: 0 @ extensions.vllm (mine.yaml:7)"),
        (FUSED + "extensions:\n  vllm: {sizes: [4, -1]}\n", "'sizes' must be >= 1: -1 @ extensions.vllm (mine.yaml:7)"),
        (FUSED + "  - override /passes: [nopass]\n", "unknown pass 'nopass' @ mine.yaml:6. Choices: adapt, "),
        (FUSED + "  - override /passes: [clean, css]\n", "unknown pass 'css' @ mine.yaml:6. Did you mean 'cse'?"),
        (FUSED + "  - /streams: one\n", "mine.yaml:6: the defaults list may not name '/streams': streams has a choice"
         " already; write `override /streams: one`."),
        (FUSED + "  - /passes: [cse, clean]\n", "write `override /passes: cse`"),
        (FUSED.replace("_global_", "experiment"), "mine.yaml:1: its package may be _global_, not 'experiment'."),
        (JSON.replace("vllm", "vlm"), "unknown section 'vlm' @ extensions. Did you mean 'vllm'?"),
        ("sed: 3\n", "mine.yaml:1: unknown key 'sed'. Did you mean 'seed'?"),
        ("- a\n", "holds no mapping"),
        (HEAD + "defaults:\n  - override /mode: eager\n", "target=cpu mode=eager; vLLM on a CPU takes target=cpu and"),
        pytest.param(
            FUSED + "  - override /target: npu_offline\n", "target=npu_offline mode=max-autotune; vLLM on a CPU takes",
            marks=pytest.mark.skipif(find_spec("npu_simulator") is None, reason="that target asks for npu-simulator"),
        ),
        (FUSED.replace("max-autotune", "reduce-overhead") + "  - override /target: null_device\n",
         "target=null_device mode=reduce-overhead; vLLM on a CPU takes target=cpu"),
        ("schema: 7\n", "no recipe of schema 1"),
    ],
)  # fmt: skip
def test_what_a_strangers_file_may_not_say_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    assert says in str(refused.value).replace(f"{tmp_path}/", "")


def test_an_edited_pass_is_another_key_and_another_recipe_of_the_same_text_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FUSED.replace("/shapes: auto", "/shapes: auto\n  - override /passes: cse")
    first, same = (read(written(tmp_path, text, name)) for name in ("a.yaml", "b.yaml"))
    assert (first.key, first.passes_key) == (same.key, same.passes_key)
    from airflow_free import keys

    digest = keys._tree_digest

    def edited(path: Path) -> str:
        return digest(path) + ("edited" if path.stem in ("simplify", "cse") else "")

    monkeypatch.setattr(keys, "_tree_digest", edited)
    again = Recipe(path=first.path, checked=first.checked)
    assert again.passes_key != first.passes_key
    assert again.key != first.key


def test_a_scheduler_has_the_sizes_up_to_its_own(tmp_path: Path) -> None:
    recipe = read(written(tmp_path, FUSED + "extensions:\n  vllm: {sizes: [8, 1, 4]}\n"))
    assert recipe.sizes_within(4) == ([1, 4], [8])
    assert recipe.sizes_within(8) == ([1, 4, 8], [])
    assert recipe.sizes_within(0) == ([], [1, 4, 8])


@pytest.mark.parametrize(
    ("mode", "shapes", "general", "others"),
    [
        ("max-autotune", "auto", "inductor", "inductor"),
        ("max-autotune", "auto", "eager", "eager"),
        ("reduce-overhead", "auto", "inductor", "eager"),
        ("reduce-overhead", "static", "inductor", "inductor"),
    ],
)
@NEEDS_RECORDER
def test_other_sizes_run_as_the_recipe_says_where_there_is_code_for_them(
    mode: str, shapes: str, general: str, others: str, tmp_path: Path
) -> None:
    text = FUSED.replace("max-autotune", mode).replace("/shapes: auto", f"/shapes: {shapes}")
    recipe = read(written(tmp_path, text + f"extensions: {{vllm: {{general: {general}}}}}\n"))
    assert (recipe.fuses, recipe.others) == (mode == "max-autotune", others)
    assert bool(recipe.inductor) is recipe.fuses
    assert recipe.inductor.get("freezing") is (False if recipe.fuses else None)


@NEEDS_RECORDER
def test_another_torch_machine_recipe_or_source_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose_vllm import recipe as of_vllm

    checked = read(written(tmp_path, FUSED)).checked
    asked: list[tuple[str, ...]] = []

    def keys() -> tuple[str, str]:
        one = Recipe(path="", checked=checked)
        return one.key, one.passes_key

    first = keys()
    assert keys() == first
    assert keys()[0] != keys()[1]
    other = Recipe(path="", checked=read(written(tmp_path, FUSED + "seed: 3\n", "other.yaml")).checked)
    assert (other.key == first[0], other.passes_key == first[1]) == (False, True)
    with monkeypatch.context() as patched:
        patched.setattr(of_vllm, "installed_version", lambda name: f"another {name}")
        assert (keys()[0] == first[0], keys()[1] == first[1]) == (False, True)
    with monkeypatch.context() as patched:
        patched.setattr(type(checked.target), "identity", lambda target: {"machine": "another"})
        assert (keys()[0] == first[0], keys()[1] == first[1]) == (False, True)
    monkeypatch.setattr(of_vllm, "code_digests", lambda packages, files: asked.append(packages) or {"a": "b"})
    assert keys()[0] != first[0]
    assert asked == [(*of_vllm.RESULT_PACKAGES, "npucompose_replay", "npucompose.serving", "npucompose_vllm"), ()]


def test_each_size_that_is_left_out_is_said_once_and_all_above_the_largest_together() -> None:
    said: list[str] = []
    unrecorded = Unrecorded((1, 4), "eager", said.append)
    for tokens in (1, 2, 2, 4, 3, 9, 200):
        unrecorded.came(tokens)
    assert said == [
        "A step of 2 tokens is none of the recorded sizes [1, 4]: eager runs it.",
        "A step of 3 tokens is none of the recorded sizes [1, 4]: eager runs it.",
        "A step of 9 tokens is none of the recorded sizes [1, 4]: eager runs it, as will every larger one.",
    ]


def test_of_no_sizes_the_first_that_comes_is_above_all_and_a_refusal_says_why() -> None:
    said: list[str] = []
    nothing = Unrecorded((), "eager", said.append)
    for tokens in (3, 9):
        nothing.came(tokens)
    nothing.refused(4, "it has a hook")
    assert said == [
        "A step of 3 tokens is none of the recorded sizes []: eager runs it, as will every larger one.",
        "Steps of 4 tokens are not replayed: it has a hook",
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_a_piece_records_a_size_once_and_runs_what_cannot_be_recorded(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npucompose_vllm import pieces

    said: list[str] = []
    recorded: list[Any] = []

    class Handle:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ("replayed", *args)

    def call_and_detach(compiled: Any, args: Any, kwargs: Any, *, outputs: str) -> Any:
        recorded.append((args, kwargs, outputs))
        return compiled(*args), CaptureError("it has a hook") if refused else Handle()

    noting = SimpleNamespace(call_and_detach=call_and_detach, is_watched=lambda: False)
    monkeypatch.setattr(recorder, "installed", lambda: noting)
    backend: Any = SimpleNamespace()
    piece = pieces.Piece(
        lambda *args: ("compiled", *args),
        lambda *args: ("other", *args),
        backend,
        Unrecorded((2,), "eager", said.append),
    )
    found = [piece("x", 2), piece("x", 2), piece("x", 3), piece("x")]
    again = ("other", "x", 2) if refused else ("replayed", "x", 2)
    assert found == [("compiled", "x", 2), again, ("other", "x", 3), ("other", "x")]
    assert recorded == [(("x", 2), {}, "keep")]
    assert said[0] == (
        "Steps of 2 tokens are not replayed: it has a hook" if refused
        else "A step of 3 tokens is none of the recorded sizes [2]: eager runs it, as will every larger one."
    )  # fmt: skip


def test_what_recordings_take_counts_shared_memory_once() -> None:
    from npucompose_vllm.pieces import recorded_bytes

    one = {"slabs": {1: 100, 2: 50}, "output_bytes": 7}
    other = {"slabs": [(2, 50), (3, 25)], "output_bytes": 3}
    assert recorded_bytes([one, other]) == 100 + 50 + 25 + 7 + 3
    assert recorded_bytes([]) == 0
