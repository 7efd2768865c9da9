"""`npucompose sizes plan`: what it reads, what it answers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose_devtools.capture_sizes.trace import Trace
from tests.answers import answer


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("rows,steps\n1,400\n2,300\n3,250\n5,200\n8,90\n13,60\n21,30\n34,12\n55,5\n")
    return path


def answered(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["sizes", "plan", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["sizes", "plan", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_the_answer_reads_like_this(trace: Path, capsys, golden) -> None:
    text = answered(trace, "--most", 5, "--largest", 40, "--against", "vllm", capsys=capsys)
    golden("capture_sizes/planned.txt", text)


def test_as_json_it_is_the_same(trace: Path, capsys) -> None:
    told = answer(answered(trace, "--most", 5, "--largest", 40, "--against", "8,16,40", "--json", capsys=capsys))
    assert told["sizes"] == [1, 3, 5, 13, 34]
    assert told["against"] == {"sizes": [8, 16, 40], "padding": 7272}
    assert told["unrecorded_steps"] == 5
    as_many = json.loads(answered(trace, "--largest", 40, "--against", "8,16,40", "--json", capsys=capsys))
    assert len(as_many["sizes"]) == 3
    assert dict(told["curve"])[5] == told["padding"] == Trace.from_csv(trace).up_to(40).padding(told["sizes"])


def test_memory_and_streams_bound_the_sizes(trace: Path, capsys) -> None:
    few = answered(trace, "--streams", 100, "--streams-each", 33, capsys=capsys)
    assert "sizes       3: " in few
    held = answered(trace, "--most", 5, "--memory", "8MiB", "--recording", "1=1MiB,55=4MiB", capsys=capsys)
    assert "MiB of 8.0 MiB" in held
    assert "sizes       4: " in held


def test_one_recording_may_take_all_streams(trace: Path, capsys) -> None:
    assert "sizes       1: 55\n" in answered(trace, "--streams", 3, "--streams-each", 3, capsys=capsys)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ("1,2,3,5,8,13,21,34,55", "against     9 sizes with 0 rows of padding\n"),
        ("3,8,55", "against     3 sizes with 5,492 rows of padding; the plan pads 86.5% more\n"),
        ("8,55", "against     2 sizes with 10,242 rows of padding; the plan pads 0.0% less\n"),
        ("55", "against     1 sizes with 68,522 rows of padding; the plan pads 85.1% less\n"),
    ],
)
def test_another_list_pads_more_or_less_than_the_plan(trace: Path, other: str, line: str, capsys) -> None:
    assert line in answered(trace, "--most", 2, "--against", other, capsys=capsys)


def test_a_line_may_be_one_step_and_a_heading_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("batch size\n3\n\n1\n 3 \n7,0\n")
    assert Trace.from_csv(path).steps == {1: 1, 3: 2}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--most", "0"], "--most 0: must be at least 1."),
        (["--largest", "-1"], "--largest -1: must be at least 1."),
        (["--memory", "8MiB"], "--memory and --recording go together"),
        (["--memory", "8", "--recording", "1=1MiB"], "--memory 8: must be a number of bytes with its unit"),
        (["--memory", "2x", "--recording", "1=1MiB"], "--memory 2x: must be a number of bytes with its unit"),
        (["--memory", "8MiB", "--recording", "1=1MiB,1=2MiB"], "--recording 1=1MiB,1=2MiB: must be SIZE=BYTES"),
        (
            ["--memory", "1MiB", "--recording", "1=2MiB"],
            "the recording of size 55 alone is beyond the budget; --largest",
        ),
        (["--streams", "4"], "--streams and --streams-each go together"),
        (["--streams", "4", "--streams-each", "5"], "--streams-each 5: is more than --streams 4."),
        (["--against", "vlm"], "--against vlm: must be vllm or sizes with commas"),
        (["--against", "1,2"], "--against 1,2: has no size for steps of 55 rows; --largest 2 leaves them."),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, trace: Path, capsys) -> None:
    error = refused(trace, *words, capsys=capsys)
    assert said in error
    assert error.count("\n") == 1


def test_a_trace_whose_steps_are_all_larger_has_nothing_to_plan(tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("9\n")
    assert "--largest 8: each step of" in refused(path, "--largest", 8, capsys=capsys)
    path.write_text("nine\n")
    with pytest.raises(ConfigError, match="has no step"):
        Trace.from_csv(path)
