"""What differs between two runs: values, what acts, graphs, environment, result, and who said so."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from report_examples import CRASHED, FULL, INDUCTOR

from npucompose.report.comparison import (
    as_json,
    beside_each_other,
    difference_markdown,
    difference_text,
    differences,
)
from npucompose.results.record import Environment
from tests.answers import answer


def test_two_equal_runs_differ_in_nothing() -> None:
    assert differences(FULL, FULL) == ()


def test_each_difference_is_named_and_so_is_who_said_it() -> None:
    assert FULL.environment is not None
    changed = evolve(
        FULL,
        experiment={**FULL.experiment, "mode": {"name": "eager"}, "seed": 3},
        provenance={"mode": "conf/mode/eager.yaml", "seed": "command line"},
        graphs=(evolve(FULL.graphs[0], fingerprint="g"),),
        environment=Environment(**{**_fields(FULL.environment), "versions": {"torch": "2.14.0"}}),
        memory=None,
        effective=(),
        status="expect_failed",
    )
    found = {(d.part, d.name): d for d in differences(FULL, changed)}
    in_effect = {("in effect", f"compiler.ge_config.option_{n}") for n in range(6)}
    assert set(found) == in_effect | {
        ("configuration", "mode.name"),
        ("configuration", "seed"),
        ("graph", "0.fingerprint"),
        ("environment", "versions.torch"),
        ("result", "status"),
        ("result", "pool_bytes"),
        ("result", "peak_rss_bytes"),
    }
    assert found["configuration", "mode.name"].said_by == ("command line", "conf/mode/eager.yaml")
    assert (found["configuration", "seed"].one, found["configuration", "seed"].other) == ("", "3")
    told = difference_text(list(found.values())).plain
    assert "  mode.name  reduce-overhead → eager\n    command line → conf/mode/eager.yaml\n" in told
    assert "| configuration | mode.name | reduce-overhead | eager |" in difference_markdown(list(found.values()))


def _fields(environment: Environment) -> dict[str, object]:
    return {f.name: getattr(environment, f.name) for f in environment.__attrs_attrs__}


def test_long_values_are_compared_whole_and_shown_where_they_differ() -> None:
    one, other = ({**FULL.experiment, "logs": "x" * 500 + end} for end in ("a", "b"))
    (found,) = differences(evolve(FULL, experiment=one), evolve(FULL, experiment=other))
    assert (found.one[-1], found.other[-1]) == ("a", "b")
    assert len(found.one) < 100


@given(st.text(max_size=200), st.text(max_size=200))
def test_what_is_cut_still_differs(one: str, other: str) -> None:
    a, b = beside_each_other(one, other)
    assert (a == b) == (one == other)


def test_a_run_that_ended_early_is_compared_too() -> None:
    found = {(d.part, d.name): d for d in differences(FULL, CRASHED)}
    assert (found["result", "status"].one, found["result", "status"].other) == ("ok", "crashed")
    assert found["graph", "0.fingerprint"].other == ""
    assert "died of SIGKILL" in found["result", "error"].other


def test_sinking_is_part_of_the_graph() -> None:
    found = {(d.part, d.name): (d.one, d.other) for d in differences(FULL, INDUCTOR)}
    assert found["graph", "sinking.ge_build"] == ("", "dynamic")


def test_as_json_it_is_what_it_is_in_words() -> None:
    found = differences(FULL, CRASHED)
    assert [(d["name"], d["one"], d["other"]) for d in answer(as_json(found))] == [
        (d.name, d.one, d.other) for d in found
    ]
