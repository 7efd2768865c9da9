"""scenario=prefill|decode|generate: what is legal, that tokens are eager's, and that nothing else is timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
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
from npucompose.models.base import GreedyLoop
from npucompose.results.measured import GenerateFacts, GenerationPoint, GenerationTime
from npucompose.schema.experiment import Scenario
from npucompose.table.structure import of_facts

TINY = "hidden_size: 32, intermediate_size: 32, num_hidden_layers: 1, vocab_size: 64, " + VARIED


def choices(scenario: str, architecture: str = "Qwen2ForCausalLM", config: str = TINY) -> list[str]:
    pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")
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


@pytest.mark.parametrize(
    ("mode", "target", "wanted"),
    [
        ("reduce-overhead", "cpu", ["compiled", "inductor", "eager"]),
        ("eager", "cpu", ["inductor", "eager"]),
        ("reduce-overhead", "null_device", ["compiled", "eager"]),
    ],
)
def test_a_step_is_made_in_every_way_that_the_target_has_and_eager_last(
    mode: str, target: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live: Any = SimpleNamespace(
        checked=checked(["model=add", f"mode={mode}", f"target={target}"]),
        materialised=SimpleNamespace(
            compile_keywords={"dynamic": False},
            backend=SimpleNamespace(torch_compile=lambda step, **keywords: ("ours", step, keywords)),
        ),
    )
    live.experiment = live.checked.experiment
    monkeypatch.setattr(torch, "compile", lambda step, **keywords: ("torch", step, keywords))
    found = dict(generate._ways(live))
    assert list(found) == wanted
    step: Any = "step"
    made = {
        "compiled": ("ours", "step", {"dynamic": False}),
        "inductor": ("torch", "step", {"backend": "inductor", "dynamic": False}),
        "eager": "step",
    }
    assert {name: way(step) for name, way in found.items()} == {name: made[name] for name in wanted}


def test_tokens_are_judged_from_the_first_that_is_another() -> None:
    eager = torch.tensor([[1, 2, 3], [4, 5, 6]])
    row = GenerationTime(way="compiled", passed=True)

    def judged(tokens: Any) -> GenerationTime:
        return generate._judged(generate._Made(None, row, tokens), eager).row

    assert judged(None) == judged(eager.clone()) == row
    for at, (line, token) in enumerate([(0, 0), (1, 1), (0, 2)], 1):
        other = eager.clone()
        other[line, token] = 9
        found = judged(other)
        assert (found.passed, found.problem) == (False, f"other tokens than eager's, from token {at} of 3 on")


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
        ("scenario.new_tokens=1", "must be >= 2"),
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
    assert Scenario(name="generate", batch=(1, 4), prompt=(8, 2)).points == ((1, 8), (1, 2), (4, 8), (4, 2))


def test_sizes_of_a_prompt_have_no_effect_on_a_call_as_it_stands() -> None:
    assert "it takes effect with scenario=prefill, decode or generate only" in refused("scenario.batch=4", "model=mlp")
    assert "scenario.new_tokens" in refused("scenario.new_tokens=4", "model=mlp")
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
    enough = Session(checked(choices("decode", "GPT2LMHeadModel", "n_positions: 11, n_layer: 1"))).built
    assert enough.steps == 5, "as many as there are tokens behind the first"


def test_a_step_can_be_repeated_without_end() -> None:
    """The position is an input: the cache does not fill while one call is timed."""
    live = Session(checked(choices("decode")))
    step, inputs = live.built.module, live.inputs(0)
    first = live.call(step, inputs)
    for _ in range(20):
        assert torch.equal(live.call(step, inputs)[1], first[1])


def test_a_step_goes_on_behind_a_prompt_that_was_read() -> None:
    built = Session(checked(choices("decode"))).built
    keys = built.module.cached.layers[0].keys
    assert keys[:, :, :5].abs().amin(-1).gt(0).all()
    assert not keys[:, :, 5:].any()
    assert [int(built.inputs(step)["position"]) for step in range(6)] == [5, 6, 7, 8, 9, 5]


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


@pytest.mark.slow
def test_what_inductor_generates_is_no_verdict_on_this_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(step: Any) -> Any:
        return lambda *args: tuple((result + 1) % 64 for result in step(*args))

    wanted = (("inductor", wrong), ("compiled", as_it_is), ("eager", as_it_is))
    monkeypatch.setattr(generate, "_ways", ways(*wanted))
    assert generated(Session(checked(choices("generate"))))[1]["numerics"]["passed"]
    monkeypatch.setattr(generate, "_ways", ways(("eager", as_it_is)))
    assert "numerics" not in generated(Session(checked(choices("generate"))))[1]


def test_figures_are_those_of_all_prompts_and_of_the_tokens_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts of six tokens: 30 µs to the first, 50 µs for the five others; eager takes twice as long."""

    def timed(live: Any, candidates: dict[str, Any]) -> dict[str, Any]:
        one = 30.0 if "first_token" in str(candidates["eager"]) else 50.0
        took = {name: one * (2 if name == "eager" else 1) for name in candidates}
        return {name: SimpleNamespace(p50=us, timing=lambda us=us: f"{us} µs") for name, us in took.items()}

    monkeypatch.setattr(generate, "as_asked", timed)
    live: Any = SimpleNamespace(experiment=SimpleNamespace(scenario=SimpleNamespace(new_tokens=6)))
    loops = {name: GreedyLoop(as_it_is, as_it_is, torch.ones(1), (), ()) for name in ("compiled", "eager")}
    rows = {name: GenerationTime(way=name, passed=name in loops) for name in ("compiled", "inductor", "eager")}  # type: ignore[arg-type]
    done: list[float] = []
    ours, untimed, eager = generate._timed(live, loops, rows, 3, done.append)  # type: ignore[arg-type]
    assert (ours.first, ours.rest, ours.per_token_us) == ("30.0 µs", "50.0 µs", 10.0)
    assert (ours.tokens_per_s, ours.speedup) == (pytest.approx(18 / 80e-6), pytest.approx(2.0))
    assert (eager.tokens_per_s, eager.speedup) == (pytest.approx(18 / 160e-6), None)
    assert untimed == rows["inductor"]
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_each_size_has_its_share_of_the_progress_and_shared_weights_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def point(live: Any, batch: int, prompt: int, progress: Any) -> Any:
        progress(0.5)
        return GenerationPoint(batch=batch, prompt=prompt, new_tokens=6, distinct=1, cache_bytes=0, ways=()), {}

    resets: list[None] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(None))
    monkeypatch.setattr(generate, "_point", point)
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    scenario = Scenario(name="generate", batch=(1, 4), prompt=8)
    live: Any = SimpleNamespace(experiment=SimpleNamespace(scenario=scenario), built=SimpleNamespace(module=tied))
    seen: list[float] = []
    facts = dict(GenerateStage().run(live, seen.append))["generate"]
    assert seen == [0.25, 0.75]
    assert len(resets) == 2, "no size is compiled with what another has taught Dynamo"
    assert facts["weights_bytes"] == 16
    assert [(one["batch"], one["prompt"]) for one in facts["points"]] == [(1, 8), (4, 8)]


def test_the_first_calls_of_both_steps_are_with_the_prompt_and_the_place_behind_it() -> None:
    made = Session(checked(choices("generate"))).built.generations
    assert made is not None
    generation = made(1, 5, 6)
    loop = GreedyLoop.of(generation, generation.prefill, generation.decode)
    (_, (prompt,)), (_, (token, position)) = loop.steps()
    assert torch.equal(prompt, generation.prompt)
    assert (token.data_ptr(), int(position)) == (loop.rows[0].data_ptr(), generation.first)


def test_the_tokens_that_are_counted_are_those_of_the_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]])
    monkeypatch.setattr(GreedyLoop, "tokens", lambda self: made)
    monkeypatch.setattr(generate, "_ways", ways(("eager", as_it_is)))
    (point,) = generated(Session(checked([*choices("generate"), "scenario.batch=2"])))[0].points
    assert point.distinct == 6


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


@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen2ForCausalLM",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (
            "GPT2LMHeadModel", "T5ForConditionalGeneration", "WhisperForConditionalGeneration",
        )),
    ],
)  # fmt: skip
def test_the_loop_makes_the_tokens_of_the_librarys_own_generation(architecture: str) -> None:
    small = {"Qwen2ForCausalLM": TINY}
    live = Session(checked(choices("generate", architecture, small.get(architecture, CLASSES[architecture]))))
    from transformers import GenerationMixin  # pyright: ignore[reportMissingImports]

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
