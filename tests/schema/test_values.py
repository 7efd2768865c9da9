"""The small values of a report and of a plan: what is added, compared, cut and said of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import attrs
import pytest

from npucompose.errors import ConfigError
from npucompose.experiment.tracking import TRACKERS
from npucompose.npu.static_graph.records import (
    KINDS,
    STEP_IDS,
    UNKNOWN,
    Blame,
    DiagnosisStep,
    SinkingFacts,
    SinkingVerdict,
)
from npucompose.results.effective import DEFAULT, Effective, origin, settings
from npucompose.results.graphs import (
    Adaptation,
    DryRun,
    Outside,
    Partition,
    PassRecord,
    RuleFacts,
    counted,
    named,
    npu_words,
    refused_on_npu,
    rules_together,
)
from npucompose.results.measured import (
    EXACT,
    TOLERANCES,
    CallStatistics,
    MemoryFacts,
    NumericTolerance,
    Overwrites,
    tolerance_of,
)
from npucompose.results.record import (
    CHOICES,
    EXIT_STATUS,
    MEASURED,
    STATUSES,
    BenchmarkFacts,
    CompileTimes,
    Figures,
    Report,
    Stages,
    figure_stage,
)
from npucompose.results.streams import StreamFacts
from npucompose.schema.capabilities import Clocked
from npucompose.schema.experiment import PATHS, Operator, call_text, dimension_of
from npucompose.schema.streams import fits
from npucompose.table.structure import facts_of, flat, of_facts
from npucompose.vendor.devices import ATLAS_A2, Calibration, DeviceModel, cpu
from npucompose.version import torch_warning

# Calls.

ONE = CallStatistics(hits=1, captures=20, replacements=300, eager=4000)
OTHER = CallStatistics(hits=5, captures=60, replacements=700, eager=8000)


def test_calls_are_what_was_replayed_captured_or_ran_eagerly() -> None:
    assert ONE.calls == 4021, "a replacement is a capture, too"
    assert CallStatistics(hits=6, captures=80, replacements=1000, eager=12000) == ONE + OTHER
    assert (ONE + OTHER).since(ONE) == OTHER


def test_statistics_of_nothing_are_none() -> None:
    assert CallStatistics().if_any() is None
    for some in (CallStatistics(hits=1), CallStatistics(captures=1), CallStatistics(eager=1)):
        assert some.if_any() is some


# Partitions.

COND = Outside(node="c", operator="cond", reason="r", source="src/model.py:41: y = torch.cond(a: b)")
WINDOWS = Outside(node="n", operator="nonzero", reason="r", source="C\\x\\model.py:50")
NOWHERE = Outside(node="n", operator="item", reason="r")


def test_an_operator_outside_is_named_with_its_file_and_line() -> None:
    assert [one.words for one in (COND, WINDOWS, NOWHERE)] == ["cond at model.py:41", "nonzero at model.py:50", "item"]


def test_a_partition_counts_its_segments_and_names_three_operators() -> None:
    assert Partition().words == "1 segment"
    assert Partition(segments=3).words == "3 segments"
    assert Partition(segments=2, outside=(COND,)).words == (
        "2 segments, 1 operator outside recordings: cond at model.py:41"
    )
    many = [attrs.evolve(NOWHERE, operator=f"o{n}") for n in range(5)]
    assert named(many[:3]) == "o0, o1, o2"
    assert named(many) == "o0, o1, o2 and 2 more"
    assert named([COND, *many[:2], COND]) == "cond at model.py:41, o0, o1", "what stands on one line is named once"
    assert Partition(segments=1, outside=(COND, COND)).words == (
        "1 segment, 2 operators outside recordings: cond at model.py:41"
    )
    assert [counted(n, "stream") for n in (0, 1, 2)] == ["0 streams", "1 stream", "2 streams"]


def test_what_an_npu_would_refuse_is_an_option_that_does_not_take_effect() -> None:
    assert refused_on_npu("npu_offline", []) == ()
    why = npu_words([COND])
    assert why == "target=npu refuses this graph: cond at model.py:41"
    assert refused_on_npu("npu_offline", iter([COND])) == (
        Effective(option="target", requested="npu_offline", effective="npu_offline", why=why),
    )


# Passes.


def rule(name: str, **counts: Any) -> RuleFacts:
    return RuleFacts(rule=name, kind="k", op="o", **counts)


def test_what_a_rule_did_to_several_graphs_is_added_and_its_largest_error_kept() -> None:
    one = rule("a", matches=1, casts=2, permutes=3, unchecked=4, max_abs_err=0.5, rtol=0.1)
    other = rule("a", matches=10, casts=20, permutes=30, unchecked=40, max_abs_err=0.25, rtol=0.1)
    alone = rule("b", matches=7)
    found = rules_together([(one, alone), (), (other,)])
    assert found == (rule("a", matches=11, casts=22, permutes=33, unchecked=44, max_abs_err=0.5, rtol=0.1), alone)
    assert rules_together([(other,), (one,)])[0].max_abs_err == 0.5
    assert rules_together([(alone,), (alone,)]) == (rule("b", matches=14),)
    assert rules_together([(rule("b", matches=1, max_abs_err=0.0),), (alone,)])[0].max_abs_err == 0.0


def test_the_record_of_a_pass_is_plain() -> None:
    record = PassRecord(
        name="n",
        stage="pre",
        matches=1,
        nodes_before=3,
        nodes_after=2,
        seconds=0.5,
        exact=True,
        rules=(rule("a", matches=1),),
    )
    assert facts_of(record)["rules"][0]["rule"] == "a"


# Tolerances.


def test_the_tolerances_are_those_of_the_table() -> None:
    """The table stands in the module's own words: they are the contract."""
    from npucompose.results import measured as tolerance

    rows = [line.split() for line in (tolerance.__doc__ or "").splitlines() if "e-" in line]
    written = {name.removesuffix("_*"): NumericTolerance(float(rtol), float(atol)) for name, rtol, atol in rows}
    assert len(written) == 5
    of_parts = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
    assert {**written, **{whole: written[part] for whole, part in of_parts.items()}} == TOLERANCES


def test_a_dtype_s_tolerance_is_found_by_its_name() -> None:
    assert tolerance_of("torch.float32") == tolerance_of("float32") == NumericTolerance(1e-4, 1e-5)
    assert tolerance_of("torch.float8_e4m3fn") == TOLERANCES["float8"]
    assert tolerance_of("int64") == tolerance_of("torch.bool") == EXACT == NumericTolerance(0.0, 0.0)


def test_a_tolerance_is_widened_by_what_allows_more_and_what_is_exact_stays_so() -> None:
    assert NumericTolerance(0.1, 2.0).widened(NumericTolerance(1.0, 0.2)) == NumericTolerance(1.0, 2.0)
    assert EXACT.widened(NumericTolerance(1.0, 1.0)) == EXACT
    assert facts_of(NumericTolerance(0.1, 2.0)) == {"rtol": 0.1, "atol": 2.0}


# Options and who set them.


def test_a_tree_is_flattened_down_to_lists_and_empty_mappings() -> None:
    tree = {"a": {"b": 1, "c": {}, "d": {"e": [1, {"f": 2}]}}, "g": {}, "h": None}
    assert flat(tree) == {"a.b": 1, "a.c": {}, "a.d.e": [1, {"f": 2}], "g": {}, "h": None}


def test_a_value_s_origin_is_its_own_or_that_of_what_it_lies_in() -> None:
    provenance = {"mode": "conf/mode/eager.yaml", "compiler.ge_config.oo_level": "command line"}
    assert origin(provenance, "mode.name") == "conf/mode/eager.yaml"
    assert origin(provenance, "compiler.ge_config.oo_level") == "command line"
    assert origin(provenance, "compiler.ge_config") == DEFAULT == "default"
    off = Effective(option="mode.name", requested=1, effective=2, why="because")
    listed = settings({"seed": 0, "mode.name": "eager"}, provenance, (off,))
    assert [(one.option, one.value, one.said_by, one.why_not) for one in listed] == [
        ("seed", 0, "default", None),
        ("mode.name", "eager", "conf/mode/eager.yaml", "because"),
    ]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("x", "x", True), ("x", "xx", False), ("cache_*", "cache_k", True), ("Cache_*", "cache_k", False),
        ("a[0]", "a[0]", True), ("a[0]", "a0", True), ("re:a.", "ab", True), ("re:a.", "abc", False),
        ("a.", "ab", False),
    ],
)  # fmt: skip
def test_a_pattern_is_text_a_glob_or_a_regular_expression(pattern: str, text: str, found: bool) -> None:
    assert fits(pattern, text) is found


def test_a_key_of_a_call_names_an_input_or_one_dimension_of_it() -> None:
    keys = ["x", "x.0", "x.12", "x.y", "a.b.1", ".3", "x.-1"]
    wanted = [("x", None), ("x", 0), ("x", 12), ("x.y", None), ("a.b", 1), (".3", None), ("x.-1", None)]
    assert [dimension_of(key) for key in keys] == wanted
    assert call_text({"x.0": 6, "lens": (513, 301), "y": "transposed"}) == "x.0: 6, lens: [513, 301], y: transposed"
    assert call_text({}) == "the example inputs"


def test_a_verified_torch_is_told_of_whatever_its_build() -> None:
    assert torch_warning("2.13.0+cpu") is None
    assert torch_warning("2.11.0") is None
    assert torch_warning("2.9.1") == (
        "torch 2.9.1 was not verified with this version of npucompose; 2.11.0, 2.13.0, 2.14.0 were."
    )
    assert str(torch_warning(None)).startswith("torch ? was not verified")


def test_an_overwritten_result_is_told_with_the_option_that_makes_copies() -> None:
    words = Overwrites(runs=3, option="compiler.x").words("graph 0")
    assert words.startswith("graph 0 runs 3 times in one call")
    assert words.endswith("compiler.x=true makes copies")


def test_each_tracker_is_an_extra_of_its_own_name() -> None:
    """What pyproject.toml says; an environment knows the trackers of the day on which it was installed."""
    toml = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = toml.loads((Path(__file__).parents[2] / "packages" / "extras" / "pyproject.toml").read_text())["project"]
    named = {
        name: EntryPoint(name, where, TRACKERS.group).load()
        for name, where in project["entry-points"][TRACKERS.group].items()
    }
    assert {name: tracker.package for name, tracker in named.items()} == {
        "mlflow": "mlflow",
        "tensorboard": "tensorboard",
        "wandb": "wandb",
    }
    assert all(tracker.name == name and name in project["optional-dependencies"] for name, tracker in named.items())


# Devices.


def test_the_nominal_devices_are_those_that_predictions_were_made_with() -> None:
    """Figures of a device move every prediction: a change is reviewed here, and with the golden plans."""
    cores, latencies, rates = (24, 48), (2.0, 2.0, 2.0), (13_000.0, 200.0, 1600.0)
    l2, link = (192 * 2**20, 7000.0), (20.0, 100.0, 48)
    assert attrs.astuple(ATLAS_A2) == ("Atlas A2, nominal", *cores, *latencies, *rates, *l2, 2, None, *link)
    assert attrs.astuple(cpu(6)) == (
        "CPU with 6 cores, nominal", 0, 6, 0.1, 0.1, 2.0, 60.0, 4.0, 20.0, 0.0, 0.0, None, 5.0, 150.0, 2.0, 0,
    )  # fmt: skip


def test_a_calibration_replaces_the_figures_that_it_has() -> None:
    assert Calibration().onto(ATLAS_A2) is ATLAS_A2
    zero = Calibration(event_us=0.0).onto(ATLAS_A2)
    assert zero == attrs.evolve(ATLAS_A2, event_us=0.0, name="Atlas A2, nominal, calibrated")
    every = {f.name: n + 1 for n, f in enumerate(attrs.fields(Calibration))}
    assert attrs.asdict(Calibration(**every).onto(ATLAS_A2)) == {
        **attrs.asdict(ATLAS_A2), **every, "name": "Atlas A2, nominal, calibrated",
    }  # fmt: skip


def test_a_clock_replaces_what_it_measured() -> None:
    clocked = Clocked(kernel_us={}, together_us={}, stream_us=7.0, event_us=3.0)
    assert clocked.onto(cpu(4)) == attrs.evolve(
        cpu(4), name="CPU with 4 cores, measured", launch_us=0.0, event_us=3.0, stream_us=7.0
    )
    none: DeviceModel = attrs.evolve(cpu(4), vector=0)
    assert clocked.onto(none).name == "CPU with 1 cores, measured"


# Reports.


def report(**more: Any) -> Report:
    return Report(**{"key": "k", "status": "ok", "experiment": {}, **more})


def test_each_status_has_its_exit_status() -> None:
    assert {status: report(status=status).exit_status for status in STATUSES} == EXIT_STATUS
    assert EXIT_STATUS == {
        "ok": 0, "uncompiled": 0, "expect_failed": 1, "numerics_failed": 1, "illegal": 2, "failed": 3, "timeout": 3,
        "memory_limit": 3, "crashed": 3,
    }  # fmt: skip


def test_a_report_comes_back_from_its_plain_form() -> None:
    streams = StreamFacts(streams=2, events=1, nodes={"a": "s1"}, busy={"s1": 0.5}, threads=2)
    made = report(streams=streams, stages=Stages(compile=CompileTimes(total_s=1)), rejected=("no",))
    data = made.as_dict()
    assert data["rejected"] == ["no"]
    assert Report.from_dict(data) == made
    assert Report.from_dict({**data, "of a later version": 3}) == made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, r"'schema' is 2; this version of npucompose reads schema 1\."),
        ({"schema": None}, "'schema' is None"),
        ({"status": "fine"}, "unknown status 'fine'"),
        ({"key": 3}, "'key' must be text: 3 @ report"),
        ({"reused": 1}, "'reused' must be true or false: 1 @ report"),
        ({"log_cut_bytes": 1.0}, "'log_cut_bytes' must be an integer.*: 1.0 @ report"),
        ({"log_cut_bytes": True}, "'log_cut_bytes' must be an integer.*: true @ report"),
        ({"error": 5}, "'error' must be text or null: 5 @ report"),
        ({"experiment": []}, r"'experiment' must be a mapping: \[\] @ report"),
        ({"graphs": "abc"}, "'graphs' must be a list: 'abc' @ report"),
        ({"graphs": {}}, "'graphs' must be a list: {} @ report"),
        ({"rejected": [1]}, r"'rejected\[0\]' must be text: 1 @ report"),
        ({"memory": []}, r"'memory' must be a mapping.*: \[\] @ report"),
        ({"streams": {"streams": 1}}, "'events' is missing @ report.streams"),
    ],
)
def test_a_report_that_we_did_not_write_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Report.from_dict({**report().as_dict(), **changes})


def test_every_wrong_field_of_a_report_is_a_problem_of_its_own() -> None:
    with pytest.raises(ConfigError) as refused:
        Report.from_dict({**report().as_dict(), "key": 1, "reused": "no", "provenance": {"a": 1}})
    assert len(refused.value.problems) == 3
    with pytest.raises(ConfigError, match="this must be a mapping: 3 @ here"):
        of_facts(MemoryFacts, 3, where="here")


def test_a_number_of_a_report_may_be_a_whole_one_and_is_none_of_text_or_truth() -> None:
    found = of_facts(CompileTimes, {"total_s": 2}, where="here")
    assert found == CompileTimes(total_s=2.0)
    assert type(found.total_s) is float
    for wrong in (True, "2", None):
        with pytest.raises(ConfigError, match=r"'total_s' must be a number: .* @ here"):
            of_facts(CompileTimes, {"total_s": wrong}, where="here")
    assert facts_of(found) == {
        "dynamo_s": None, "aot_s": None, "passes_s": None, "backend_s": None, "total_s": 2.0,
    }  # fmt: skip


def test_recordings_take_what_they_share_where_that_is_less() -> None:
    assert MemoryFacts(pool_bytes=5, shared_pool_bytes=3).taken_bytes == 3
    assert MemoryFacts(pool_bytes=2, shared_pool_bytes=3).taken_bytes == 2
    assert MemoryFacts(pool_bytes=5).taken_bytes == 5
    assert MemoryFacts(shared_pool_bytes=3).taken_bytes is None


def timed() -> BenchmarkFacts:
    return BenchmarkFacts(
        samples_us=(1.0,), p50_us=2.0, p90_us=3.0, p99_us=4.0, mean_us=5.0, speedup={"eager": 6.0, "compiled": 7.0}
    )


def test_a_run_is_one_row_of_choices_and_figures() -> None:
    experiment = {
        "model": {"name": "mlp"}, "target": {"name": "cpu"}, "mode": {"name": "eager"}, "shapes": {"name": "static"},
        "passes": {"a": {}, "b": {}}, "streams": {"name": "auto"},
    }  # fmt: skip
    stages = Stages(compile=CompileTimes(total_s=8.0), benchmark=timed())
    memory = MemoryFacts(pool_bytes=9, peak_rss_bytes=10)
    whole = report(experiment=experiment, stages=stages, memory=memory, streams=StreamFacts(streams=1, events=0))
    assert attrs.astuple(Figures.from_report(whole)) == (
        "mlp", "cpu", "eager", "static", "a,b", "auto", 2.0, 4.0, 6.0, 8.0, 9, 10, None, None, None,
    )  # fmt: skip
    wrong = Figures.from_report(attrs.evolve(whole, status="numerics_failed"))
    assert (wrong.p50_us, wrong.p99_us, wrong.speedup) == (None, None, None), "no time of wrong results"
    assert wrong.compile_s == 8.0
    assert Figures.from_report(attrs.evolve(whole, streams=None)).streams is None
    nothing = Figures.from_report(report(experiment={"model": "mlp", "target": {"name": 3}}))
    assert attrs.asdict(nothing) == {**dict.fromkeys(attrs.asdict(nothing)), "passes": ""}


def test_every_figure_is_a_choice_or_measured_by_a_stage() -> None:
    assert CHOICES == ("model", "target", "mode", "shapes", "passes", "streams")
    assert {figure: figure_stage(figure) for figure in MEASURED} == {
        "p50_us": "benchmark", "p99_us": "benchmark", "speedup": "benchmark", "compile_s": "compile",
        "pool_bytes": "capture", "peak_rss_bytes": "benchmark",
        "token_rate": "generate", "first_token_us": "generate", "per_token_us": "generate",
    }  # fmt: skip


# Sinking and adaptation.


def test_three_verdicts_become_flat_facts_and_come_back() -> None:
    verdicts = {
        "fx_graph": SinkingVerdict(value="static", certainty="proven", evidence=("a",)),
        "ge_graph": SinkingVerdict(value="mixed", certainty="derived", evidence=("b", "c")),
        "ge_build": UNKNOWN,
    }
    blame = (Blame(node="n", operator="o", reason="r"),)
    steps = (DiagnosisStep(id="S1", title="t", status="ok"),)
    facts = SinkingFacts.from_verdicts(**verdicts, path=3, product="p", blame=blame, steps=steps, failure=None)
    assert facts.verdicts() == verdicts
    assert (facts.fx_graph, facts.ge_graph, facts.ge_build) == ("static", "mixed", "unknown")
    assert (facts.path, facts.product, facts.blame, facts.steps) == (3, "p", blame, steps)
    assert SinkingFacts().verdicts() == dict.fromkeys(verdicts, UNKNOWN)


def test_the_vocabulary_of_a_diagnosis() -> None:
    assert PATHS == (1, 2, 3, 4, 5, 6)
    assert tuple(f"S{n}" for n in range(9)) == STEP_IDS
    assert KINDS == ("static", "mixed", "dynamic", "unknown", "failed")


def test_a_slot_has_the_name_of_torch_and_that_of_ge_where_they_differ() -> None:
    slots = Operator(ge="Op", slots=("lens/actual_lens", "size"), source="s").ge_slots()
    assert slots == {"lens": "actual_lens", "size": "size"}


def test_the_rejections_of_a_dry_run_are_those_with_a_reason() -> None:
    kept = Adaptation(graph="g", rule="r", kind="k", op="o", node="n", before="b")
    gone = attrs.evolve(kept, rejected="no")
    assert DryRun(asked={}, adaptations=(kept, gone)).rejections == (gone,)
