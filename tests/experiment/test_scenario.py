"""scenario=prefill|decode|generate: what is legal, that tokens are eager's, and that nothing else is timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import sweep

from benchmarks.generate import CLASSES, VARIED
from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.compose.tree import Composer, compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.stages import generate
from npucompose.experiment.stages.generate import GenerateStage
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.results.generation import GenerateFacts
from npucompose.table.structure import of_facts

TINY = "hidden_size: 32, intermediate_size: 32, num_hidden_layers: 1, vocab_size: 64, " + VARIED


def choices(scenario: str, architecture: str = "Qwen2ForCausalLM", config: str = TINY) -> list[str]:
    model = ["model=transformers", f"model.architecture={architecture}", f"model.config={{{config}}}"]
    quick = ["benchmark.warmup=0", "benchmark.min_calls=1", "benchmark.min_seconds=0"]
    return [f"scenario={scenario}", "scenario.prompt=5", "scenario.new_tokens=6", *model, *quick]


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        Job.from_composed(compose(overrides))
    return str(error.value)


def generated(live: Session) -> tuple[GenerateFacts, dict[str, Any]]:
    facts = dict(GenerateStage().run(live, lambda _: None))
    return of_facts(GenerateFacts, facts["generate"], where="generate"), facts


def ways(*wanted: tuple[Any, Any]) -> Any:
    def found(live: Session) -> Iterator[tuple[Any, Any]]:
        yield from wanted

    return found


def as_it_is(step: Any) -> Any:
    return step


def test_a_model_without_a_prompt_is_refused() -> None:
    assert "scenario=decode: model=mlp has no prompt to go on from" in refused("scenario=decode", "model=mlp")


def test_generation_is_part_of_a_pipeline_that_measures_and_of_no_other() -> None:
    stages = [stage.name for stage in Job.from_composed(compose(choices("generate"))).order]
    assert stages[-1] == "generate"
    assert "which pipeline=bench brings" in refused(*choices("generate"), "pipeline=check")
    assert "write scenario=generate" in refused("model=mlp", "pipeline.stages=[generate]")
    assert "generate" not in [stage.name for stage in Job.from_composed(compose(choices("decode"))).order]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.batch=2", "write scenario.batch and scenario.prompt"),
        ("scenario.batch=[1,1]", "names a size twice"),
        ("scenario.batch=[0]", "must be >= 1"),
        ("scenario.prompt=[]", "must be >= 1"),
        ("compile.training=true", "remove compile.training=true"),
        ("model.sequence=[{token.0: 2}]", "makes its own"),
    ],
)
def test_what_does_not_go_with_generation_is_said(override: str, words: str) -> None:
    assert words in refused(*choices("generate"), override)


def test_every_size_is_looked_at_before_the_first_is_compiled() -> None:
    overrides = choices("generate", "GPT2LMHeadModel", "n_positions: 16")
    with pytest.raises(ConfigError, match=r"scenario.prompt=12 with scenario.new_tokens=6 ends at position 18"):
        _ = Session(checked([*overrides, "scenario.prompt=[5,12]"])).built


def test_a_sweep_over_batch_and_prompt_is_a_point_for_each_size_with_a_key_of_its_own() -> None:
    sizes = ("scenario.batch=1,2,0", "scenario.prompt=4,6")
    found = SweepPlan.from_overrides((*choices("decode"), *sizes), Composer())
    assert [found.name(point) for point in found.illegal] == [
        "scenario.batch=0 scenario.prompt=4",
        "scenario.batch=0 scenario.prompt=6",
    ]
    jobs = [point.job for point in found.points if point.job is not None]
    assert len({job.key for job in jobs}) == 4


def test_a_list_of_sizes_is_for_generation_alone() -> None:
    assert "only scenario=generate measures each" in refused(*choices("decode"), "scenario.batch=[1,4]")
    points = checked([*choices("generate"), "scenario.batch=[1,4]"]).experiment.scenario.points
    assert points == ((1, 5), (4, 5))


def test_sizes_of_a_prompt_have_no_effect_on_a_call_as_it_stands() -> None:
    assert "it takes effect with scenario=prefill, decode or generate only" in refused("scenario.batch=4", "model=mlp")
    listed = checked(["scenario.batch=4", "model=mlp", "strict=off"]).effective
    assert [one.option for one in listed] == ["scenario.batch"]


def test_a_class_that_generates_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="generates no text"):
        _ = Session(checked(choices("decode", "BertModel", "num_hidden_layers: 1"))).built


def test_a_cache_that_counts_in_python_is_refused() -> None:
    with pytest.raises(ConfigError, match="StaticSlidingWindowLayer"):
        _ = Session(checked(choices("decode", "Gemma2ForCausalLM", "num_hidden_layers: 2"))).built


def test_positions_that_the_class_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="ends at position 11, and 'GPT2LMHeadModel' has 8"):
        _ = Session(checked(choices("decode", "GPT2LMHeadModel", "n_positions: 8"))).built


def test_a_step_can_be_repeated_without_end() -> None:
    """The position is an input: the cache does not fill while one call is timed."""
    live = Session(checked(choices("decode")))
    step, inputs = live.built.module, live.inputs(0)
    first = live.call(step, inputs)
    for _ in range(20):
        assert torch.equal(live.call(step, inputs)[1], first[1])


def test_a_copy_of_the_step_has_a_cache_of_its_own() -> None:
    live = Session(checked(choices("decode")))
    before = [keys.clone() for keys in live.reference.buffers()]
    live.call(live.built.module, live.inputs(3))
    assert all(map(torch.equal, before, live.reference.buffers()))
    assert live.reference.cached.cache.layers[0].keys is live.reference.get_buffer("cached.keys_0")


def test_other_tokens_than_eagers_are_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(step: Any) -> Any:
        return lambda *args: tuple((result + 1) % 64 for result in step(*args))

    monkeypatch.setattr(generate, "_ways", ways(("inductor", wrong), ("compiled", wrong), ("eager", as_it_is)))
    point, facts = generated(Session(checked(choices("generate"))))
    rows = {one.way: one for one in point.points[0].ways}
    assert rows["compiled"].problem == "other tokens than eager's, from token 1 of 6 on"
    assert not rows["inductor"].passed
    assert (rows["inductor"].first, rows["inductor"].tokens_per_s) == (None, None)
    assert rows["eager"].passed
    assert rows["eager"].tokens_per_s
    assert not facts["numerics"]["passed"]


def test_recordings_of_both_steps_generate_eagers_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Session(checked(choices("generate")))
    compile_step = live.materialised.backend.torch_compile
    compiled = ("compiled", lambda step: compile_step(step, fullgraph=True, dynamic=False))
    monkeypatch.setattr(generate, "_ways", ways(compiled, ("eager", as_it_is)))
    found, facts = generated(live)
    (point,) = found.points
    assert [one.way for one in point.ways] == ["replay", "compiled", "eager"]
    assert all(one.passed and one.tokens_per_s for one in point.ways)
    assert facts["numerics"]["bitwise"]
    assert point.distinct > 1
    assert point.cache_bytes == 2 * 4 * point.batch * 11 * 32 // 2  # two heads of four, 11 places
    assert point.pool_bytes


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CLASSES)
def test_every_kind_of_class_generates_eagers_tokens(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = choices("generate", architecture, CLASSES[architecture])
    live = Session(checked([*overrides, "scenario.batch=2", "scenario.new_tokens=24"]))
    keywords = {"fullgraph": True, "dynamic": False}
    compiled = ("compiled", lambda step: live.materialised.backend.torch_compile(step, **keywords))
    monkeypatch.setattr(generate, "_ways", ways(compiled, ("eager", as_it_is)))
    (point,) = generated(live)[0].points
    assert [(one.way, one.passed, one.problem) for one in point.ways] == [
        (way, True, None) for way in ("replay", "compiled", "eager")
    ]
    assert point.distinct > 2


@pytest.mark.slow
def test_a_sweep_runs_every_size_and_its_memory_is_told(tmp_path: Path) -> None:
    overrides = (*choices("decode"), "scenario.batch=1,2", "scenario.prompt=4,6", "pipeline=check")
    done = sweep(tmp_path, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads(file.read_text()) for file in tmp_path.rglob("report.json")]
    found = {
        (r["experiment"]["scenario"]["batch"], r["experiment"]["scenario"]["prompt"]): r["memory"] for r in reports
    }
    assert sorted(found) == [(1, 4), (1, 6), (2, 4), (2, 6)]
    for (batch, prompt), memory in found.items():
        cache = 2 * 4 * batch * (prompt + 6) * 32 // 2  # keys and values of two heads of eight
        assert cache <= memory["buffers_bytes"] < cache + 256
    assert len({memory["weights_bytes"] for memory in found.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    ["Qwen2ForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "WhisperForConditionalGeneration"],
)
def test_the_loop_makes_the_tokens_of_the_librarys_own_generation(architecture: str) -> None:
    live = Session(checked(choices("generate", architecture, CLASSES[architecture])))
    from transformers import GenerationMixin  # pyright: ignore[reportMissingImports]

    from npucompose.models.generation import GreedyLoop

    assert live.built.generations is not None
    made = live.built.generations(2, 5, 6)
    inner: Any = made.decode.cached.inner
    with torch.no_grad():
        ours = GreedyLoop.of(made, made.prefill, made.decode).tokens()
        options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        if inner.config.is_encoder_decoder:  # a configuration made here names no token to begin with
            begin = made.prefill.get_buffer("begin")
            options |= {"decoder_input_ids": begin, "decoder_start_token_id": int(begin[0, 0])}
        theirs = GenerationMixin.generate(inner, made.prompt, max_new_tokens=6, min_new_tokens=6, **options)
    assert torch.equal(theirs[:, -6:], ours)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["prefill", "decode"])
@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "WhisperForConditionalGeneration"])
def test_each_half_of_generation_is_compared_with_eager(scenario: str, architecture: str) -> None:
    from npucompose.compose.comparison import every_step

    live = Session(checked([*choices(scenario, architecture, CLASSES[architecture]), "pipeline=check"]))
    found = every_step(live, lambda _: None).numerics
    assert found.passed, found.problems
    assert live.detached is not None, live.why_attached
