"""Greedy generation in the summary, the account and the page; the goals of benchmarks/generate.py."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from statistics import median
from typing import get_args

from attrs import evolve
from report_examples import FULL, WRONG, timing
from rich.console import Console

from benchmarks.generate import class_cells, goals_of, row_of, show, write
from npucompose.report.compare import RunLine, as_markdown
from npucompose.report.generation import (
    BAR,
    GAP,
    HEAD,
    LATENCIES,
    NAMES,
    generation_bars,
    generation_cells,
    generation_lines,
    generation_memory,
    generation_sentence,
)
from npucompose.report.html import render
from npucompose.report.terminal import rows
from npucompose.results.measured import GenerateFacts, GenerationPoint, GenerationTime, Way
from npucompose.results.record import Figures


def time(way: Way, first: float, each: float, batch: int = 1) -> GenerationTime:
    per_s = batch * 32 / (first + 31 * each) * 1e6
    eager = batch * 32 / (1000.0 + 31 * 500.0) * 1e6
    return GenerationTime(
        way=way,
        passed=True,
        compile_s=None if way == "eager" else 2.5,
        first=timing(first),
        rest=timing(31 * each),
        per_token_us=each,
        tokens_per_s=per_s,
        speedup=None if way == "eager" else per_s / eager,
    )


WRONG_TOKENS = GenerationTime(way="inductor", passed=False, problem="other tokens than eager's, from token 3 of 32 on")


def point(batch: int, prompt: int, *ways: GenerationTime) -> GenerationPoint:
    size = batch * (prompt + 32) * 1024
    return GenerationPoint(
        batch=batch, prompt=prompt, new_tokens=32, distinct=30, cache_bytes=size, pool_bytes=2048, ways=ways
    )


INDUCTOR = time("inductor", 400, 100)
FACTS = GenerateFacts(
    weights_bytes=2**20,
    peak_rss_bytes=2**28,
    points=(
        point(1, 16, time("replay", 200, 50), time("compiled", 400, 200), INDUCTOR, time("eager", 1000, 500)),
        point(4, 16, time("replay", 300, 60, 4), WRONG_TOKENS, time("eager", 1000, 500, 4)),
    ),
)  # fmt: skip
GENERATED = evolve(FULL, stages=evolve(FULL.stages, generate=FACTS))


def test_every_way_has_a_name() -> None:
    assert set(NAMES) == set(get_args(Way))


def test_a_size_is_one_sentence_of_the_way_that_a_person_would_take() -> None:
    assert [generation_sentence(one) for one in FACTS.points] == [
        "1 x 16: 18,286 tokens/s, 9.43x over eager, 2.00x over torch.compile with Inductor; first token after "
        "200.0 µs, then 50.0 µs per token",
        "4 x 16: 59,259 tokens/s, 7.64x over eager; first token after 300.0 µs, then 60.0 µs per token",
    ]
    assert generation_memory(FACTS) == "weights 1.0 MiB; 4 x 16: cache 192.0 KiB, pool 2.0 KiB"


def test_each_cell_stands_below_its_head() -> None:
    one, ways = FACTS.points[0], FACTS.points[0].ways
    assert dict(zip(HEAD, generation_cells(one, ways[0]), strict=True)) == {
        "batch x prompt": "1 x 16", "run as": "replay without guards", "tokens/s": "18,286", "by eager's": "9.43x",
        "time to first token": "200.0 µs", "time per token": "50.0 µs", "compiled for": "2.50 s",
        "result": "eager's tokens",
    }  # fmt: skip
    assert generation_cells(one, ways[-1])[-2:] == ("", "32 tokens, 30 different ones in the first text")


def test_what_is_wrong_has_no_figure() -> None:
    assert generation_cells(FACTS.points[1], WRONG_TOKENS)[2:] == ("", "", "", "", "", WRONG_TOKENS.problem)
    alone = evolve(FACTS.points[1], ways=(evolve(WRONG_TOKENS, way="compiled"),))
    assert generation_sentence(alone) == f"4 x 16: not measured: {WRONG_TOKENS.problem}"


def test_a_bar_stands_for_each_way_that_was_timed() -> None:
    first, each = generation_bars(FACTS)
    assert [len(first["boxes"]), len(each["boxes"])] == [6, 6]
    assert [name for name, _ in each["names"]] == ["1 x 16", "4 x 16"]
    assert [words for _, words in each["legend"]] == [NAMES[way] for way in ("replay", "compiled", "inductor", "eager")]
    widths = {box[5]: box[2] for box in each["boxes"]}
    replay, eager = (
        widths[f"1 x 16, {NAMES[way]}: {us}"] for way, us in (("replay", "50.0 µs"), ("eager", "500.0 µs"))
    )
    assert eager == 10 * replay
    tops = [box[1] for box in each["boxes"]]
    apart = [below - above for above, below in itertools.pairwise(tops)]
    assert apart == [BAR, BAR, BAR, BAR + GAP, BAR], "a gap between two sizes"
    assert [y for _, y in each["names"]] == [BAR, BAR + tops[4]]


def test_lines_go_through_the_sizes_at_which_a_way_was_timed() -> None:
    first, each = generation_lines(FACTS)
    assert [first["name"], each["name"]] == [f"{name} against batch, prompts of 16" for name in LATENCIES]
    lines = dict(zip([words for _, words in each["legend"]], each["lines"], strict=True))
    assert [len(lines[NAMES[way]][1]) for way in ("replay", "compiled", "inductor", "eager")] == [2, 1, 1, 2]
    (one, low, words), (four, high, _) = lines[NAMES["replay"]][1]
    assert (words, one < four, low > high) == (f"1, {NAMES['replay']}: 50.0 µs", True, True)
    assert [words for words, _, _ in each["axis"]["marks"]] == ["1", "4"]


def test_lines_are_drawn_against_what_varies() -> None:
    ways = (time("replay", 200, 50), time("eager", 1000, 500))
    sizes = [(1, 64), (1, 16), (4, 64), (4, 16)]
    square = evolve(FACTS, points=tuple(point(*size, *ways) for size in sizes))
    drawn = generation_lines(square)
    assert [one["name"].partition(" against ")[2] for one in drawn] == [
        *2 * ["batch, prompts of 64"], *2 * ["tokens of a prompt, batch 1"],
    ]  # fmt: skip
    assert [words for words, _, _ in drawn[-1]["axis"]["marks"]] == ["16", "64"]
    assert generation_lines(evolve(FACTS, points=FACTS.points[:1])) == []
    assert render(evolve(GENERATED, stages=evolve(FULL.stages, generate=square))).count("<polyline") == 8


def test_page_and_terminal_show_it_and_nothing_beside_wrong_results() -> None:
    page = render(GENERATED)
    assert "time per token" in page
    assert "59,259" in page
    account = [str(text) for label, text in rows("terminal.txt", report=GENERATED) if label in ("generate", "")]
    assert any(words.startswith("1 x 16: 18,286 tokens/s") for words in account)
    assert any("other tokens than eager" in words for words in account)
    failed = evolve(WRONG, stages=evolve(WRONG.stages, generate=FACTS))
    assert "59,259" not in render(failed)
    assert not any("59,259" in str(text) for _, text in rows("terminal.txt", report=failed))


def test_a_table_of_runs_has_the_figures_of_the_first_size() -> None:
    table = as_markdown([RunLine(name="a", status="ok", figures=Figures.from_report(GENERATED))])
    assert "| tokens/s | first token | per token |" in table
    assert "| 18285.71 | 200.0 µs | 50.0 µs |" in table
    assert Figures.from_report(evolve(GENERATED, status="numerics_failed")).token_rate is None


def test_goals_are_met_by_every_row_or_missed() -> None:
    named = [("Qwen2ForCausalLM", one) for one in FACTS.points]
    assert [goal.met for goal in goals_of(named)] == [True, True, True, True]
    slow = point(1, 16, time("replay", 1000, 510), time("inductor", 400, 400), time("eager", 1000, 500))
    assert [goal.met for goal in goals_of([("slow", slow)])] == [True, False, False, False]
    wrong = point(1, 16, evolve(WRONG_TOKENS, way="compiled"), time("eager", 1000, 500))
    assert not any(goal.met for goal in goals_of([*named, ("wrong", wrong)]) if "Inductor" not in goal.words)
    out = io.StringIO()
    show([("slow", slow)], goals_of([("slow", slow)]), Console(file=out, width=160))
    assert out.getvalue().count("MISSED") == 3


def test_each_class_has_its_ratios_and_all_of_them_have_theirs() -> None:
    slow = point(1, 16, time("replay", 1000, 510), time("eager", 1000, 500))
    cells = list(class_cells([("fast", FACTS.points[0]), ("slow", slow)]))
    assert [row[:2] for row in cells] == [("fast", "1"), ("slow", "1"), ("all", "2")]
    assert cells[0][2:] == ("9.43x", "9.43x", "2.00x", "0.53x")
    assert cells[1][2:] == ("0.98x", "0.98x", "", "")
    assert cells[2][2:4] == ("3.04x", "0.98x")


def test_results_keep_the_classes_that_were_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "generate.json"
    rows = [row_of(FACTS.points[1], one) for one in FACTS.points[1].ways]
    write({"GPT2LMHeadModel": {"rows": rows}}, goals_of([("GPT2LMHeadModel", FACTS.points[1])]), file)
    write({"Qwen2ForCausalLM": {"rows": []}}, [], file)
    found = json.loads(file.read_text())
    assert list(found["classes"]) == ["Qwen2ForCausalLM", "GPT2LMHeadModel"]
    replay, inductor, _ = found["classes"]["GPT2LMHeadModel"]["rows"]
    samples = timing(300).samples_us
    assert replay["first"]["p50_us"] == median(samples)
    assert replay["first"]["samples"] == len(samples)
    assert replay["per_token"]["p50_us"] == median(samples) / 300 * 60
    assert (inductor["first"], inductor["problem"]) == (None, WRONG_TOKENS.problem)
