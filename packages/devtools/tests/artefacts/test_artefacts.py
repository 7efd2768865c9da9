"""Logs and dumps of TorchAir, GE and torch, read as facts; what cannot be read is refused in a sentence.

`genuine/` was written by TorchAir's own Python (a slow test writes it again and compares); `samples/` has the forms
that only a device writes, put together from the phrases and field names of their sources.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.results.artefacts import FileFacts
from npucompose_devtools.artefacts import FORMS, read
from tests.npu.needs import offline
from tests.npu.needs import run as run_offline
from tests.searches import examples

HERE = Path(__file__).parent
SAMPLES, GENUINE = HERE / "samples", HERE / "genuine"
UNKNOWN = "unknown"
CASES: list[tuple[str, tuple[str, ...], tuple[str, str, str], tuple[str, str, str]]] = [
    # file, forms, fx_graph ge_graph ge_build, S0 S6 S7
    ("torchair_cpp.log", ("torchair_verdict", "torchair_options"), (UNKNOWN, "dynamic", "dynamic"),
     ("problem", "skipped", "skipped")),
    ("torchair_bare_options.log", ("torchair_options",), (UNKNOWN,) * 3, ("skipped",) * 3),
    ("torchair_python.log", ("torchair_inputs",), ("dynamic", UNKNOWN, UNKNOWN), ("skipped",) * 3),
    ("plog-4713_20260105100000000.log", ("ge_plog",), (UNKNOWN,) * 3, ("skipped", "problem", "skipped")),
    ("plog_grepped.txt", ("ge_plog",), (UNKNOWN, UNKNOWN, "static"), ("skipped", "ok", "skipped")),
    ("torch_recompiles.log", ("torch_recompiles",), (UNKNOWN,) * 3, ("skipped", "skipped", "problem")),
    ("torch_recompiles_2.6.log", ("torch_recompiles",), (UNKNOWN,) * 3, ("skipped", "skipped", "problem")),
    ("dynamo_optimized_graph_1.py.dump", ("torchair_py",), (UNKNOWN, "dynamic", UNKNOWN),
     ("skipped", "problem", "skipped")),
    ("dynamo_optimized_graph_1.txt", ("torchair_txt",), (UNKNOWN, "dynamic", UNKNOWN),
     ("skipped", "problem", "skipped")),
    ("dynamo_optimized_graph_1.pbtxt", ("torchair_pbtxt",), (UNKNOWN, "dynamic", UNKNOWN),
     ("skipped", "problem", "skipped")),
    ("ge_proto_00000012_graph_1_PreRunAfterBuild.txt", ("ge_proto",), (UNKNOWN, UNKNOWN, "mixed"),
     ("skipped", "problem", "skipped")),
    ("ge_proto_00000013_graph_2_PreRunAfterBuild.txt", ("ge_proto",), (UNKNOWN, UNKNOWN, "static"),
     ("skipped", "ok", "skipped")),
    ("ge_onnx_00000004_graph_1_PreRunBegin.pbtxt", ("ge_onnx",), (UNKNOWN, "dynamic", UNKNOWN),
     ("skipped", "problem", "skipped")),
    ("ge_readable_00000009_graph_1_PreRunBegin.txt", ("ge_readable",), (UNKNOWN,) * 3, ("skipped", "ok", "skipped")),
]  # fmt: skip


def path_of(name: str) -> Path:
    return next(folder / name for folder in (SAMPLES, GENUINE) if (folder / name).is_file())


@pytest.mark.parametrize(("name", "forms", "verdicts", "steps"), CASES, ids=[case[0] for case in CASES])
def test_a_form_is_recognised_and_judged(
    name: str, forms: tuple[str, ...], verdicts: tuple[str, ...], steps: tuple[str, ...]
) -> None:
    found = read(path_of(name))
    assert found.forms == forms
    facts = found.sinking
    assert (facts.fx_graph, facts.ge_graph, facts.ge_build) == verdicts
    assert [(step.id, step.status) for step in found.steps] == list(zip(("S0", "S6", "S7"), steps, strict=True))
    for verdict in ("fx_graph", "ge_graph", "ge_build"):
        assert facts.certainty[verdict] == ("unknown" if getattr(facts, verdict) == UNKNOWN else "proven")
        assert getattr(facts, verdict) == UNKNOWN or facts.evidence[verdict]
    assert all(step.evidence and step.fix for step in found.steps if step.status == "problem" and step.id != "S7")


def test_every_form_has_a_sample() -> None:
    assert {form for _, forms, _, _ in CASES for form in forms} == set(FORMS)
    assert len(FORMS) >= 10
    assert {name for name, *_ in CASES} == {p.name for folder in (SAMPLES, GENUINE) for p in folder.iterdir()}


def test_torchairs_word_names_each_graph_and_the_way_out() -> None:
    found = read(SAMPLES / "torchair_cpp.log")
    step = found.steps[0]
    assert step.evidence == (
        "graph 0: static input shapes, compiled to a dynamic GE graph",
        "graph 1: static input shapes, compiled to a static GE graph",
        "graph 2: dynamic input shapes, compiled to a dynamic GE graph",
    )
    assert "tiling=sink" in (step.fix or "")
    assert "shapes.mark_static" in (step.fix or "")
    assert found.options == {0: {"ge.jit_compile": "2", "ge.tiling_schedule_optimize": "0"}}
    assert read(SAMPLES / "torchair_bare_options.log").options[7]["ge.dynamicDims"] == "2,2;4,4"


def test_the_compiler_inputs_show_which_one_is_symbolic() -> None:
    first, second = read(SAMPLES / "torchair_python.log").fx_inputs
    assert [i.symbols for i in first] == [(), ()]
    assert [(i.size, i.symbols) for i in second] == [(None, ("s2",)), (("s0", "2*s0", "128"), ("s0", "s0"))]
    assert read(SAMPLES / "torchair_python.log").sinking.evidence["fx_graph"] == (
        "FX graph 1: input 0: s2, input 1: (s0, 2*s0, 128)",
    )


def test_a_plog_names_the_nodes_the_rows_and_the_slot() -> None:
    found = read(SAMPLES / "plog-4713_20260105100000000.log")
    assert [(m.node, m.operator, m.row, m.dynamic) for m in found.marks] == [
        ("attention", "IncreFlashAttention", 5, True),
        ("attention_1", None, 5, False),
        ("collect", "HcomAllGather", 6, True),
        ("forced", None, 1, True),
    ]
    assert "(input 5)" in found.marks[0].words
    assert [b.rule for b in found.blame] == ["rule 5", "rule 6", "rule 1"]
    assert "tiling=sink" in (found.steps[1].fix or "")


def test_a_recompile_log_gives_the_reports_entries() -> None:
    first, second = read(SAMPLES / "torch_recompiles.log").recompiles
    assert (first.compile_id, first.argument, first.call) == ("0/1", "x", "forward")
    assert "shapes.mark_dynamic: {x: [0]}" in (first.avoid or "")
    assert (second.compile_id, second.argument) == ("0/2", "lens")
    assert second.reason == "lens[0] == 5  # return x * lens[0] # model.py:3 in forward"
    (older,) = read(SAMPLES / "torch_recompiles_2.6.log").recompiles
    assert (older.compile_id, older.argument, older.reason) == ("1/1", "lens", "lens[0] == 512")


def test_the_three_dumps_of_torchair_tell_the_same() -> None:
    graphs = [read(GENUINE / f"dynamo_optimized_graph_1.{kind}").graphs[0] for kind in ("py.dump", "txt", "pbtxt")]
    assert {graph.stage for graph in graphs} == {"original"}
    inputs = [{d.name: d.shape for d in graph.data if d.name != "arg1_1"} for graph in graphs]
    assert inputs[0] == inputs[1] == inputs[2]
    assert inputs[0]["arg2_1"] == (-1, 64)
    for operator in ("MatMul", "Transpose", "Mul", "Cast", "Add", "NetOutput"):
        assert len({graph.types[operator] for graph in graphs}) == 1


def test_a_build_dump_tells_mixed_from_static_and_sunk_from_forced() -> None:
    mixed = read(SAMPLES / "ge_proto_00000012_graph_1_PreRunAfterBuild.txt")
    (graph,) = [g for g in mixed.graphs if g.name == "graph_1"]
    assert (graph.stage, graph.unknown_flag, graph.static_parts, graph.dynamic_parts) == (
        "build", True, ("graph_1_sub_2_know",), ("graph_1_sub_1_unknow",),
    )  # fmt: skip
    (mark,) = mixed.marks
    assert (mark.node, mark.operator, mark.row, mark.dynamic) == ("attention", "FusedInferAttentionScore", 5, True)
    static = read(SAMPLES / "ge_proto_00000013_graph_2_PreRunAfterBuild.txt")
    (mark,) = static.marks
    assert (mark.row, mark.dynamic) == (5, False)
    assert static.blame == ()


def test_a_build_dump_of_another_stage_proves_nothing_of_the_build(tmp_path: Path) -> None:
    text = (SAMPLES / "ge_proto_00000013_graph_2_PreRunAfterBuild.txt").read_text()
    (tmp_path / "ge_proto_00000005_graph_2_PreRunBegin.txt").write_text(text)
    facts = read(tmp_path / "ge_proto_00000005_graph_2_PreRunBegin.txt").sinking
    assert (facts.ge_graph, facts.ge_build) == ("static", "unknown")


def test_an_onnx_dump_tells_shapes_in_attributes_in_json_and_in_subgraphs() -> None:
    found = read(SAMPLES / "ge_onnx_00000004_graph_1_PreRunBegin.pbtxt")
    assert [(d.name, d.shape, d.unknown) for d in found.graphs[0].data] == [("x", (-1, 64), (0,))]
    assert found.graphs[0].unknown_nodes == 2
    assert [(m.node, m.row) for m in found.marks] == [("relu", 6), ("neg", 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x0a\x07graph_1\x12\x00\x01", "is binary"),
        (b"caf\xe9 au lait", "is no UTF-8 text: byte 3 is 0xe9"),
        (b"import os\nprint(1)\n", "is no artefact that is read here. It begins with 'import os'"),
        (b"name: value\n", "is no artefact that is read here"),
        (b"{\"nodes\": []}", "is no artefact that is read here"),
        (b'op {\n  name: "x"\n', "is cut off: 1 blocks are open at its end, line 3"),
        (b'op { name: "x', "is cut off: a text that begins in line 1 has no end"),
        (b'name: "g"\nop { name: "x" type: "Data" }\n', "is cut off: it has no NetOutput"),
        (b'op { type: "NetOutput" output_desc { shape { dim: two } } }', "looks like a graph dump, but is none"),
        (b"a_0 = ge.Data(index=0, dtype=0, sha", "is cut off: line 1 is no whole statement"),
        (b'a_0 = ge.Data(index=0, shape=[2], node_name="a")\n', "is cut off: it has no ge.NetOutput"),
        (b'graph("g"):\n  %x : [#users=1] = Node[type=Data] (attrs', 'is cut off: graph("g") has no return'),
        (b"[INFO] TORCHAIR(1,python):x [c.cpp:246]1 Static FX graph compiled to sta", "ends inside 'FX graph"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "dump.txt")
    assert words in str(caught.value)
    assert "dump.txt" in str(caught.value)


def test_a_missing_and_a_huge_file_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "none.txt")
    (tmp_path / "huge.log").write_text("x" * 101)
    with pytest.raises(
        ConfigError, match=r"has 101 bytes, and no line of it is of a log that is read here; of a dump at most 100"
    ):
        read(tmp_path / "huge.log", limit=100)


@pytest.mark.parametrize("name", [name for name, *_ in CASES if name.endswith(".log")])
def test_a_long_log_is_read_line_by_line_as_a_short_one_is(name: str) -> None:
    assert read(path_of(name), limit=10) == read(path_of(name))


def test_a_log_takes_no_more_memory_than_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 MB with a sixth of that; what a log of 2 GB takes is the same."""
    said = "[INFO] TORCHAIR(1,p):x [c.cpp:246]1 Static FX graph compiled to static Ascend GE graph, graph id: 0\n"
    failed = "RuntimeError: ACL stream synchronize failed, error code:507057\n"
    noise = "".join(f"INFO step {n} of many took {n} ms on this device\n" for n in range(990))
    noise += "".join(f'INFO step {n}: File "m.py", line {n}, ERR ok, TORCHAIR\n' for n in range(10))
    with (tmp_path / "day.log").open("w") as file:
        file.write(said)
        for _ in range(20):
            file.write(noise)
        file.write("x" * 5_000_000 + "\n" + failed)
    assert (tmp_path / "day.log").stat().st_size > 5 << 20
    monkeypatch.setattr("npucompose_devtools.artefacts.text.BLOCK", 1 << 14)
    tracemalloc.start()
    try:
        found = read(tmp_path / "day.log", limit=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    errors = FileFacts.from_read(found).errors
    assert (found.sinking.ge_build, [error.code for error in errors]) == ("static", [507057])
    assert errors[0].line == 20_003
    assert peak < 1 << 20


@pytest.mark.parametrize("text", [
    "] a" * 400_000, "]a" * 400_000, "]" * 1_000_000, "FakeTensor(" * 100_000, "FakeTensor(size=(" * 100_000,
    "[0/0]" * 200_000, "[0/0] Recompiling function f " * 50_000, "- 0/0: " * 200_000, "Mark node[" * 100_000,
    "Mark node[a," * 100_000, "Collect node a " * 100_000, "node a was " * 100_000, "Input[0] of node: " * 100_000,
    " " * 1_000_000, "Skip dynamic shape partition of graph " * 50_000, "a = " * 300_000,
])  # fmt: skip
@pytest.mark.parametrize("before", ["[INFO] TORCHAIR(1,p):x [c]1 compiler inputs\n[INFO] TORCHAIR [c]1", "[INFO] GE "])
def test_a_line_of_any_kind_is_read_in_one_go(text: str, before: str, tmp_path: Path) -> None:
    """A pattern that goes over it again and again would not end within the limit of a test."""
    again = "V1 [0/0] [__recompiles] Recompiling function f in a.py\n"
    (tmp_path / "a.log").write_text(f"{again}{before}{text} input 0: {text}\n{text}\n")
    assert read(tmp_path / "a.log").steps


def test_a_log_without_the_lines_that_count_says_what_to_switch_on(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[ERROR] TORCHAIR(1,python):2026-01-05 [x.cpp:1]1 out of tea\n")
    found = read(tmp_path / "a.log")
    assert found.forms == ()
    assert [step.status for step in found.steps] == ["skipped"] * 3
    assert "TNG_LOG_LEVEL=1" in (found.steps[0].fix or "")


WHOLE = [path_of(name).read_text() for name, *_ in CASES]


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_no_cut_of_a_file_is_read_as_more_than_it_says(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Every beginning of every sample is read, or refused in a sentence: never another exception."""
    text = data.draw(st.sampled_from(WHOLE))
    cut = text[: data.draw(st.integers(0, len(text)))]
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    path.write_text(cut)
    with contextlib.suppress(ConfigError):
        assert read(path).steps


def test_reading_loads_no_torch() -> None:
    code = f"import sys; from npucompose_devtools.artefacts import read; read({str(SAMPLES / 'torchair_cpp.log')!r}); "
    code += "assert 'torch' not in sys.modules and 'hydra' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@offline
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["py", "txt", "pbtxt"])
def test_the_genuine_samples_are_what_torchair_writes(kind: str, tmp_path: Path) -> None:
    chosen = ("mode=max-autotune", "model=linear_scalar", "shapes=dynamic", f"compiler.debug.graph_dump.type={kind}")
    status, report, error = run_offline(tmp_path, *chosen)
    assert status == 0, error
    (name,) = [n for n in report["npu"]["files"] if "optimized" in n]
    written = read(tmp_path / "out" / "torchair" / name)
    kept = read(GENUINE / f"dynamo_optimized_graph_1.{kind}{'.dump' if kind == 'py' else ''}")
    assert written.forms == kept.forms
    assert [(g.stage, g.nodes, g.types, g.data) for g in written.graphs] == [
        (g.stage, g.nodes, g.types, g.data) for g in kept.graphs
    ]
    assert written.sinking.ge_graph == "dynamic"
