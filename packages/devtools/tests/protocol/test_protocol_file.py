"""A protocol's file is read as what somebody else wrote, and the command says what it found and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose_devtools.protocol.command import page_of, summary_of
from npucompose_devtools.protocol.explore import check
from npucompose_devtools.protocol.model import MOST_STEPS, Step
from npucompose_devtools.protocol.reading import read_protocol
from tests.answers import answer

SOUND = """
streams: [main]
threads: {host: {steps: [run a on main writes x, synchronise main, read x]}}
"""
STALE = SOUND.replace("synchronise main, ", "")


def written(folder: Path, text: str) -> Path:
    file = folder / "protocol.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_first_32_places_at_which_something_goes_wrong_are_kept(tmp_path: Path) -> None:
    readers = (f"run k{name} on side reads x" for name in range(33))
    steps = json.dumps(["run k on main writes x", *readers])
    file = written(tmp_path, f"streams: [main, side]\nthreads: {{host: {{steps: {steps}}}}}\n")
    verdict = check(read_protocol(file))
    assert verdict.complete
    read = {finding.trace[-1].text for finding in verdict.findings}
    assert len(verdict.findings) == len(read) == 32


@pytest.mark.parametrize(
    "text",
    [
        "run a on main reads x, y writes z", "replay decode on main", "begin update g.k on side", "end update on side",
        "synchronise main", "write x", "acquire lock", "run k",
    ],
)  # fmt: skip
def test_a_step_is_written_as_it_was_read(text: str) -> None:
    assert str(Step.from_text(text)) == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("read x", "raed x"), "threads.host.steps[2]: 'raed x' is no step: it begins with run, replay"),
        (("on main", "on mian"), "threads.host.steps[0]: unknown stream 'mian'. Did you mean 'main'?"),
        (("synchronise main", "wait e on main"), "threads.host.steps[1]: unknown event 'e'"),
        (("synchronise main", "reset e on main"), "threads.host.steps[1]: unknown event 'e'"),
        (("synchronise main", "synchronise e"), "unknown stream or ordinary event 'e'"),
        (("synchronise main", "acquire s"), "unknown semaphore 's'"),
        (("synchronise main", "replay g on main"), "unknown graph 'g'"),
        (("synchronise main", "update g.k on main"), "unknown task 'g.k'"),
        (("run a on main", "run a"), "'run a writes x' has to say on which stream"),
        (("read x", "read x on main"), "'read x on main' takes no stream"),
        (("read x", "read x writes x"), "only `run` reads and writes"),
        (("read x", "read"), "'read' has to say what"),
        (("read x", "end update x on main"), "'end update x on main' takes no name"),
        (("threads:", "graphs: {g: [read x]}\nthreads:"), "graphs.g[0]: 'read x' cannot be captured"),
        (("threads:", "events: {e: ordinary}\ngraphs: {g: [wait e]}\nthreads:"), "declare e external"),
        (("threads:", "events: {e: sometimes}\nthreads:"), "sometimes"),
        (("threads:", "depth: {man: 2}\nthreads:"), "unknown stream 'man' @ depth"),
        (("threads:", "depth: {main: 0}\nthreads:"), "depth.main: 0; a stream holds at least one task"),
        (("threads:", "semaphores: {s: -1}\nthreads:"), "semaphores.s: -1"),
        (("threads:", "colour: red\nthreads:"), "unknown key 'colour'"),
        (("steps:", "repeat: 9999, steps:"), f"at most {MOST_STEPS:,} are explored"),
        (("steps:", "repeat: 0, steps:"), "must be >= 1"),
        (("[main]", str([f"s{n}" for n in range(65)])), "streams: 65 names; at most 64 are explored"),
        (("[main]", "&a [main]"), "anchors and aliases are not read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_no_protocol_is_refused_with_its_place(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    file = written(tmp_path, SOUND.replace(*change))
    with pytest.raises(ConfigError) as refused:
        read_protocol(file)
    assert said in str(refused.value)
    assert all(problem.startswith(str(file)) for problem in refused.value.problems)


def test_a_list_is_no_protocol(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has to be a mapping"):
        read_protocol(written(tmp_path, "- 1\n"))


def test_the_command_ends_with_0_where_the_protocol_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocol", str(written(tmp_path, SOUND)), "--waits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("holds: ")
    assert lines[1] == "without 'synchronise main' (threads.host.steps[1]): stale result"


def test_the_command_ends_with_1_where_something_goes_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocol", str(written(tmp_path, STALE)), "--json"]) == 1
    found = answer(capsys.readouterr().out)
    assert not found["holds"]
    assert found["findings"][0]["kind"] == "stale result"
    assert found["findings"][0]["trace"][-1] == {"process": "host", "text": "read x", "iteration": 0}


UPDATED = """
streams: [main, update]
events: {parameters_set: external}
graphs: {decode: [wait parameters_set, reset parameters_set, run attention reads tokens writes logits]}
threads:
  host:
    steps:
      - run prepare on main writes tokens
      - replay decode on main
      - begin update decode.attention on update
      - update decode.attention on update
      - end update on update
      - record parameters_set on update
      - synchronise main
"""


SMALL = {
    "an update that was not begun": (
        UPDATED.replace("      - begin update decode.attention on update\n", "")
    ),
    "an end of no update": (
        "streams: [main]\nthreads: {host: {steps: [end update on main, run a on main]}}"
    ),
    "a kernel while an update is open": (
        UPDATED.replace("      - end update on update\n", "      - run b on update\n      - end update on update\n")
    ),
    "another task's update": """
        streams: [main, update]
        graphs: {g: [run a reads x, run b reads x]}
        threads: {host: {steps: [replay g on main, begin update g.a on update, update g.b on update]}}""",
    "two threads that take two locks in other orders": """
        streams: [main]
        semaphores: {one: 1, two: 1}
        threads:
          first: {steps: [acquire one, acquire two, release two, release one]}
          second: {steps: [acquire two, acquire one, release one, release two]}""",
    "two threads that take two locks in one order": """
        streams: [main]
        semaphores: {one: 1, two: 1}
        threads:
          first: {steps: [acquire one, acquire two, release two, release one]}
          second: {steps: [acquire one, acquire two, release two, release one]}""",
    "streams that wait for each other": """
        streams: [main, side]
        events: {a: external, b: external}
        threads: {host: {steps: [wait a on main, record b on main, wait b on side, record a on side]}}""",
    "a record behind a wait": """
        streams: [main, side]
        events: {never: external, done: ordinary}
        threads: {host: {steps: [wait never on main, record done on main, wait done on side, synchronise done]}}""",
    "a record that was not made yet is not waited for": """
        streams: [main, side]
        events: {done: ordinary}
        threads: {host: {steps: [wait done on side, record done on main, wait done on side, synchronise done]}}""",
    "an event that is taken back": """
        streams: [main, side]
        events: {set: external}
        threads: {host: {steps: [record set on main, reset set on main, synchronise main, wait set on side]}}""",
    "a queue that is full": """
        streams: [main]
        events: {set: external}
        depth: {main: 1}
        threads: {host: {steps: [wait set on main, run a on main, record set on main]}}""",
    "a queue of two": """
        streams: [main, side]
        events: {set: external}
        depth: {main: 2}
        threads: {host: {steps: [wait set on main, run a on main, record set on side]}}""",
    "two writers of one buffer": """
        streams: [main, side]
        threads:
          first: {repeat: 2, steps: [write x, run a on main reads x, synchronise main]}
          second: {repeat: 2, steps: [write x, run b on side reads x, synchronise side]}""",
    "a buffer of another thread": """
        streams: [main]
        semaphores: {full: 0}
        threads:
          writer: {repeat: 2, steps: [write x, release full]}
          reader: {repeat: 2, steps: [acquire full, read x]}""",
    "a buffer that nobody writes": """
        streams: [main]
        threads: {host: {steps: [read x, run a on main reads y writes z, synchronise main, read z]}}""",
    "a result that is read before it is there": """
        streams: [main, side]
        threads: {host: {repeat: 2, steps: [run a on main writes x, run b on side reads x, synchronise side]}}""",
}  # fmt: skip


def test_small_protocols_are_judged_like_this(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    def page(about: str, text: str) -> str:
        verdict = check(read_protocol(written(tmp_path, dedent(text))))
        whole = check(read_protocol(written(tmp_path, dedent(text))), reduced=False)
        assert {(one.kind, one.process) for one in whole.findings} == {(o.kind, o.process) for o in verdict.findings}
        counted = (
            f"{verdict.states} states, {verdict.turns} turns, {verdict.ends} ends; without reduction {whole.states}"
        )
        return "\n".join([f"# {about}", summary_of(verdict), counted, *map(page_of, verdict.findings), ""])

    golden("protocol/small_protocols.txt", "\n".join(page(about, text) for about, text in SMALL.items()))


def test_the_host_may_write_while_an_update_is_open(tmp_path: Path) -> None:
    text = UPDATED.replace("      - end update", "      - write prompt\n      - end update")
    assert check(read_protocol(written(tmp_path, text))).findings == ()


def test_whoever_waits_before_recording_what_is_waited_for_is_named(tmp_path: Path) -> None:
    late = UPDATED.replace("      - record parameters_set on update\n      - synchronise main\n",
                           "      - synchronise main\n      - record parameters_set on update\n")  # fmt: skip
    deadlock = next(f for f in check(read_protocol(written(tmp_path, late))).findings if f.kind == "deadlock")
    assert set(deadlock.why) == {
        "host: main does not get so far.", "main: host, which would record parameters_set next, waits itself.",
    }  # fmt: skip


def test_a_protocol_of_the_package_is_known_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocol", "kit", "--waits"]) == 0
    assert "without 'wait replayed on update' (threads.kit.steps[2]): no difference" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["0", "1000001"])
def test_how_many_states_are_explored_has_a_bound(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocol", "kit", "--most-states", number]) == 2
    assert f"--most-states {number}: must be from 1 to 1,000,000." in capsys.readouterr().err


def test_a_search_that_is_given_up_is_no_proof(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocol", "kit", "--most-states", "5"]) == 1
    assert capsys.readouterr().out.startswith("not decided: ")


def test_only_an_ordinary_event_can_be_synchronised_with(tmp_path: Path) -> None:
    text = """
streams: [main]
events: {e: external}
threads: {host: {steps: [record e on main, synchronise e]}}
"""
    with pytest.raises(ConfigError, match="unknown stream or ordinary event 'e'"):
        read_protocol(written(tmp_path, text))
    read_protocol(written(tmp_path, text.replace("external", "ordinary")))
