"""What `npucompose explain --vllm` says: every option of vLLM and of the recipe as asked, as it acts, and why not."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

from npucompose.cli.arguments import command_line
from npucompose.errors import ConfigError
from npucompose.table.structure import facts_of
from npucompose_vllm import explain, installed
from npucompose_vllm.configuration import DEFAULTS, FUSIONS, without_effect
from npucompose_vllm.explain import OptionOutcome, render, requested, said
from npucompose_vllm.installed import MARK, Installed
from npucompose_vllm.recipe import Recipe, read
from tests.answers import answer

HEAD = "# @package _global_\n# served\ndefaults:\n"
FUSED = f"{HEAD}  - override /mode: max-autotune\n  - override /shapes: auto\ninductor: {{max_autotune: false}}\n"
RECORDED = f"{HEAD}  - override /mode: reduce-overhead\n  - override /shapes: auto\n"
PIECEWISE = f"{RECORDED}extensions:\n  vllm: {{sizes: [1, 2, 4], graphs: piecewise}}\n"
ASKED: Mapping[str, Any] = {
    "mode": 3,
    "backend": "eager",
    "cudagraph_mode": "FULL",
    "compile_sizes": [1, 2],
    "cudagraph_num_of_warmups": 2,
    "use_inductor_graph_partition": True,
    "custom_ops": ["all"],
    "pass_config": {"fuse_norm_quant": True, "eliminate_noops": False},
    "inductor_compile_config": {"dce": False, "max_autotune": True, "epilogue_fusion": True},
    "inductor_passes": {},
}


def written(folder: Path, text: str) -> Recipe:
    place = folder / "serve.yaml"
    place.write_text(text)
    return read(str(place))


NEEDS_RECORDER = pytest.mark.skipif(
    find_spec("npucompose_replay") is None, reason="is about recordings: pip install 'npucompose[replay]'"
)


def outcomes(recipe: Recipe, asked: Mapping[str, Any], **more: Any) -> dict[str, OptionOutcome]:
    found = requested(recipe, asked, **more)
    return {one.option: one for one in (*found.engine, *found.own)}


@NEEDS_RECORDER
def test_the_page_has_every_option_with_what_acts_and_why(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    recipe = written(tmp_path, FUSED)
    page = Console(file=io.StringIO(), width=140, color_system=None)
    render(requested(recipe, ASKED, most=4), said(recipe), page)
    assert isinstance(page.file, io.StringIO)
    golden("serving/requested.txt", "\n".join(line.rstrip() for line in page.file.getvalue().splitlines()) + "\n")


@NEEDS_RECORDER
def test_what_acts_where_nothing_is_asked(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    lines = [
        f"{kind}: {one.option} = {one.acts!r}{'' if one.why is None else f': {one.why}'}"
        for kind, text in (("fused", FUSED), ("recorded", RECORDED), ("piecewise", PIECEWISE))
        for one in requested(written(tmp_path, text), {}).engine
    ]
    golden("serving/unasked.txt", "\n".join(lines) + "\n")


def test_an_option_acts_as_asked_unless_a_reason_is_given(tmp_path: Path) -> None:
    for text in (FUSED, RECORDED, PIECEWISE):
        for one in requested(written(tmp_path, text), ASKED).engine:
            assert one.asked is None or one.acts == one.asked or one.why, one


def test_passes_for_kernels_of_other_devices_are_off_and_that_is_said(tmp_path: Path) -> None:
    asked = {"pass_config": {name.removeprefix("pass_config."): True for name in FUSIONS}}
    found = outcomes(written(tmp_path, FUSED), asked)
    assert {(found[name].acts, found[name].why) for name in FUSIONS} == {
        (False, "vLLM has its kernels on other devices only")
    }


def test_sizes_that_vllm_never_schedules_are_left_out_and_named(tmp_path: Path) -> None:
    found = outcomes(written(tmp_path, FUSED), {}, most=4)["extensions.vllm.sizes"]
    assert (found.asked, found.acts) == ([1, 2, 4, 8], [1, 2, 4])
    assert found.why == "[8] are above max_num_batched_tokens=4"


def test_a_piecewise_recipe_says_vllms_sizes(tmp_path: Path) -> None:
    found = outcomes(written(tmp_path, PIECEWISE), {"cudagraph_capture_sizes": [16]})
    assert (found["cudagraph_mode"].acts, found["cudagraph_capture_sizes"].acts) == ("PIECEWISE", [1, 2, 4])
    assert found["max_cudagraph_capture_size"].acts == 4
    assert (found["extensions.vllm.general"].asked, found["extensions.vllm.general"].acts) == ("inductor", "eager")
    assert found["inductor_compile_config.dce"].why == "Inductor compiles nothing in mode=reduce-overhead"


@NEEDS_RECORDER
def test_inductors_options_of_the_recipe_win_over_those_of_the_engine(tmp_path: Path) -> None:
    found = outcomes(written(tmp_path, FUSED), ASKED)["inductor_compile_config.max_autotune"]
    assert (found.asked, found.acts, found.why) == (True, False, "inductor.max_autotune of the recipe says it")


@pytest.mark.parametrize("mode", [0, 1, "DYNAMO_TRACE_ONCE"])
def test_a_mode_in_which_the_recipe_does_not_act_is_the_first_thing_said(mode: Any, tmp_path: Path) -> None:
    found = requested(written(tmp_path, FUSED), {"mode": mode})
    assert found.refusal is not None
    assert found.engine == ()
    assert {(one.acts, one.why) for one in found.own} == {(None, found.refusal)}


@NEEDS_RECORDER
def test_every_part_of_an_experiment_acts_or_has_a_reason(tmp_path: Path) -> None:
    """A section that is new has to be put among those that an engine reads, or among those that it does not."""
    own = requested(written(tmp_path, FUSED), {}).own
    acting = {one.option.partition(".")[0] for one in own if one.why is None}
    assert acting == {
        "adapt", "check", "compile", "extensions", "inductor", "mode", "passes", "shapes", "streams", "strict",
        "target",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"backnd": "eager"}, "Did you mean 'backend'"),
        ({"pass_config": {"fuse_all": True}}, "unknown option of vLLM's compilation_config 'pass_config.fuse_all'"),
        ({"mode": 7}, "unknown mode '7'"),
        ({"cudagraph_mode": "HALF"}, "unknown cudagraph_mode 'HALF'"),
    ],
)
def test_an_option_that_vllm_does_not_have_is_refused(asked: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        requested(written(tmp_path, FUSED), asked)


def explained(*words: str) -> int:
    arguments = command_line("explain").parse_args(["explain", *words])
    return arguments.act(arguments)


def test_the_command_prints_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "installed", lambda *_: None)
    recipe = written(tmp_path, PIECEWISE)
    assert explained("--vllm", recipe.path, "--json", "--compilation-config", json.dumps(ASKED)) == 0
    assert answer(capsys.readouterr().out) == facts_of(requested(recipe, ASKED))
    assert explained("--vllm", recipe.path) == 0
    assert capsys.readouterr().out.startswith("serve.yaml in vLLM 0.32.0, as its sources say")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mode=eager"], "'mode=eager' is one argument too many"),
        (["--compilation-config", "[1]"], "must be a JSON object"),
        (["--compilation-config", "{'a"], "--compilation-config"),
        (["--max-num-batched-tokens", "-1"], "must be at least 1"),
    ],
)
def test_what_the_command_cannot_read_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        explained("--vllm", written(tmp_path, FUSED).path, *words)


def test_what_the_page_refuses_by_itself_is_not_asked_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "installed", lambda *_: pytest.fail("vLLM was asked"))
    with pytest.raises(ConfigError, match="Did you mean 'backend'"):
        explained("--vllm", written(tmp_path, FUSED).path, "--compilation-config", '{"backnd": "eager"}')


@pytest.mark.parametrize("option", ["--compilation-config", "--max-num-batched-tokens"])
def test_what_is_asked_of_vllm_is_for_that_page_alone(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is for explain --vllm"):
        explained(option, "1")


def answering(monkeypatch: pytest.MonkeyPatch, out: str, err: str = "") -> Installed | None:
    monkeypatch.setattr(installed, "find_spec", lambda _: object())
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([sys.executable], 0, stdout=out, stderr=err)
    )
    return installed.installed("serve.yaml", {}, 2048)


def test_an_installed_vllm_says_what_acts_where_it_is_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"backend": "npucompose"}
    ours = answering(monkeypatch, f"noise\n{MARK}{json.dumps({'platform': 'RecipePlatform', 'options': options})}\n")
    assert ours is not None
    assert ours.options == options
    assert answering(monkeypatch, f"{MARK}{json.dumps({'platform': 'CudaPlatform', 'options': options})}\n") is None
    with pytest.raises(ConfigError, match="refuses the compilation configuration: no such size"):
        answering(monkeypatch, f"{MARK}{json.dumps({'refused': 'no such size'})}\n")
    with pytest.raises(ConfigError, match="ended while it read the configuration: ImportError: x"):
        answering(monkeypatch, "", "Traceback\nImportError: x\n\n")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="asks a Python without vLLM")
def test_a_vllm_that_cannot_be_imported_is_one_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda _: object())
    with pytest.raises(ConfigError, match="ended while it read the configuration: ModuleNotFoundError"):
        installed.installed("serve.yaml", {}, 2048)


def test_the_page_says_whose_answer_it_is(tmp_path: Path) -> None:
    recipe = written(tmp_path, FUSED)
    there = Installed(version="0.33.0", options=DEFAULTS)
    found = [requested(recipe, {}, installed=one) for one in (None, there)]
    assert [(one.source, one.vllm) for one in found] == [("read", "0.32.0"), ("installed", "0.33.0")]


def test_what_a_recipe_asks_for_in_vain_has_its_own_reason(tmp_path: Path) -> None:
    freezing = outcomes(written(tmp_path, FUSED), {})["inductor.freezing"]
    assert (freezing.asked, freezing.acts) == (True, False)
    assert freezing.why == "weights are inputs of vLLM's graphs, and it packs them itself"


@pytest.mark.parametrize(("general", "has"), [("inductor", None), ("eager", "vLLM's own compiler compiles nothing")])
def test_vllms_own_compiler_compiles_other_sizes_where_the_recipe_leaves_them_to_it(
    general: str, has: str | None, tmp_path: Path
) -> None:
    text = (
        f"{RECORDED.replace('shapes: auto', 'shapes: static')}extensions:\n  vllm: {{sizes: [1], general: {general}}}\n"
    )
    found = without_effect(written(tmp_path, text), "compile_cache_save_format")
    assert (found and has in found) if has else found is None


@pytest.mark.serving
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-serving")
@pytest.mark.parametrize("text", [FUSED, RECORDED, PIECEWISE], ids=["fused", "recorded", "piecewise"])
@pytest.mark.parametrize("asked", [{}, ASKED], ids=["nothing", "much"])
def test_the_table_is_what_the_installed_vllm_says(text: str, asked: Mapping[str, Any], tmp_path: Path) -> None:
    recipe = written(tmp_path, text)
    there = installed.installed(recipe.path, asked, 1024)
    assert there is not None
    assert {*DEFAULTS} <= {*there.options}
    real, table = (outcomes(recipe, asked, most=1024, installed=one) for one in (there, None))
    if "splitting_ops" not in asked and "piecewise" in text:
        assert len(real["splitting_ops"].acts) > 1
        real["splitting_ops"] = attrs.evolve(real["splitting_ops"], acts=None)  # vLLM's own list
    assert real == table
