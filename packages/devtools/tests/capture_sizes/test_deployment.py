"""`npucompose sizes budget`: a server's captures from a description, as text and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.cli.arguments import command_line
from npucompose.errors import ConfigError
from npucompose.npu.capture.budget import Interval, capture_budget
from npucompose_devtools.capture_sizes.deployment import act, read_deployment
from npucompose_devtools.capture_sizes.planner import sizes_for
from npucompose_devtools.capture_sizes.trace import Trace
from tests.answers import answer
from tests.capture.test_budget import QWEN3_235B, VLLM_SIZES

QWEN = f"""
about: Qwen3-235B-A22B on 8 NPUs (vllm-ascend #1168, 2025-06)
soc: Ascend910B1
many_streams: false
sizes: {list(VLLM_SIZES)}
graphs:
  main: {{layers: 94, pieces: true, communicators: [tp, ep]}}
communicators:
  tp: {{ranks: 8}}
  ep: {{ranks: 8}}
"""


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    path = tmp_path / "qwen.yaml"
    path.write_text(QWEN)
    return path


def test_the_file_asks_the_question_of_94_layers_on_8_ranks(qwen: Path) -> None:
    assert read_deployment(qwen) == QWEN3_235B


def test_the_answer_holds_the_public_observation(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert act(command_line("sizes").parse_args(["sizes", "budget", str(qwen)])) == 0
    said = capsys.readouterr().out
    assert said.splitlines() == list(capture_budget(QWEN3_235B).lines())
    assert "at best 1, 88, 192, 304, 408, 512" in said


def test_programs_get_the_same(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    act(command_line("sizes").parse_args(["sizes", "budget", str(qwen), "--json"]))
    found = answer(capsys.readouterr().out)
    assert found["possible"] == [1, 88, 192, 304, 408, 512]
    assert found["available"] == {"low": 1720, "high": 1920}
    assert len(found["each"]) == 67


def test_a_trace_is_padded_least_by_as_many_sizes_as_certainly_fit(
    qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "steps.csv"
    trace.write_text("4,50\n30,20\n31,1\n59,10\n")
    parse = command_line("sizes").parse_args
    assert act(parse(["sizes", "budget", str(qwen), "--trace", str(trace)])) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == list(capture_budget(QWEN3_235B).lines())
    assert last == "of trace    4, 31, 59 pad least, 1.39% of all rows, among as many as certainly fit"
    act(parse(["sizes", "budget", str(qwen), "--trace", str(trace), "--json"]))
    assert json.loads(capsys.readouterr().out)["of_trace"] == {"sizes": [4, 31, 59], "padding": 20}


def test_a_server_of_which_no_size_is_certain_gets_no_list(tmp_path: Path) -> None:
    path, trace = tmp_path / "d.yaml", tmp_path / "steps.csv"
    path.write_text("soc: a2\nsizes: [1]\ngraphs: {main: {layers: 9000, pieces: true}}\n")
    trace.write_text("1\n")
    with pytest.raises(ConfigError, match="no size fits for certain"):
        act(command_line("sizes").parse_args(["sizes", "budget", str(path), "--trace", str(trace)]))


def test_bytes_kernels_and_graphs_with_sizes_of_their_own_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "soc: a2\nsizes: [1, 8]\nmemory: 1GiB\nbytes: {1: 1MiB, 8: 2MiB}\n"
        "graphs: {main: {layers: 2, kernels: [10, 20]}, encoder: {sizes: [4], kernels: [7]}}\n"
    )
    found = read_deployment(path)
    assert found.memory == 2**30
    assert found.nbytes == {1: Interval(2**20, 2**20), 8: Interval(2**21, 2**21)}
    assert [graph.tasks for graph in found.graphs] == [Interval(10, 20), Interval(7, 7)]
    assert [graph.sizes for graph in found.graphs] == [None, (4,)]


@pytest.mark.parametrize(
    ("sizes", "own", "says"),
    [("[0, 8]", "[4]", "'sizes' must be >= 1: 0"), ("[1]", "[4, -1]", "'sizes' must be >= 1: -1 @ graphs.main")],
)
def test_a_size_is_a_number_of_tokens(sizes: str, own: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(f"soc: a2\nsizes: {sizes}\ngraphs: {{main: {{sizes: {own}}}}}\n")
    with pytest.raises(ConfigError, match=says):
        read_deployment(path)


def test_a_server_has_at_most_a_hundred_thousand_layers(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("soc: a2\nsizes: [1]\ngraphs: {main: {layers: 100000}}\n")
    assert [graph.layers for graph in read_deployment(path).graphs] == [100_000]
    path.write_text("soc: a2\nsizes: [1]\ngraphs: {main: {layers: 100001}}\n")
    with pytest.raises(ConfigError, match="100001"):
        read_deployment(path)


def test_the_sizes_of_a_trace_are_chosen_within_what_certainly_fits() -> None:
    found = capture_budget(QWEN3_235B)
    trace = Trace({rows: 100 - rows for rows in range(1, 60)})
    chosen = sizes_for(trace, found)
    assert len(chosen.sizes) == len(found.certain) == 3
    assert chosen.sizes[-1] == 59
