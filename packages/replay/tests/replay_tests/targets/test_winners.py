"""Who computes a part of a graph: what wins, what is remembered on the machine, what is pinned and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import CompileError
from npucompose.results.graphs import LEAST_GAIN, Winner, of_samples
from npucompose_replay.products import winners
from npucompose_replay.products.winners import Winners

WAYS = ("mkl", "onednn")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measured(winner: str = "onednn") -> Winner:
    return Winner(
        key="k", winner=winner, by="measured", times_us={"mkl": 2.0, "onednn": 1.0}, gain=(1.9, 2.1), rounds=8
    )


def refusing() -> Winner:
    raise AssertionError("nothing is to be measured")


# -- which one wins


@pytest.mark.parametrize(
    ("other", "winner"),
    [([5.0] * 8, "b"), ([9.6] * 8, "a"), ([9.4] * 8, "b"), ([20.0] * 8, "a"), ([5.0] * 5 + [11.0] * 3, "a")],
)
def test_another_way_wins_by_more_than_noise_and_in_three_rounds_of_four(other: list[float], winner: str):
    found = of_samples("k", {"a": [10.0] * 8, "b": other})
    assert (found.winner, found.by, found.rounds) == (winner, "measured", 8)
    assert found.gain is not None


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=5, max_size=20), st.randoms())
def test_the_order_of_rounds_and_a_disturbance_of_both_decide_nothing(rounds: list[tuple[float, float]], random):
    found = of_samples("k", {"a": [a for a, _ in rounds], "b": [b for _, b in rounds]})
    slowed = [(a * 4, b * 4) for a, b in rounds]
    random.shuffle(slowed)
    again = of_samples("k", {"a": [a for a, _ in slowed], "b": [b for _, b in slowed]})
    assert again.winner == found.winner
    if found.winner == "b":
        assert sum(b < a for a, b in rounds) >= len(rounds) / 2


def test_of_several_the_fastest_wins_and_is_compared_with_the_next():
    found = of_samples("k", {"a": [10.0] * 8, "b": [5.0] * 8, "c": [4.0] * 8})
    assert (found.winner, found.rival, found.gain) == ("c", "b", (1.25, 1.25))
    assert found.words == "k: c, 1.25x as fast as b (quartiles 1.25x to 1.25x of 8), measured"


def test_a_way_without_a_rival_is_the_winner():
    found = of_samples("k", {"a": [1.0, 2.0]})
    assert (found.winner, found.gain, found.rival) == ("a", None, None)
    assert 0 < LEAST_GAIN < 0.1


# -- what is remembered


def test_what_was_measured_once_is_remembered_by_other_compilations_and_measured_no_more():
    first = Winners(threads=2).chosen("k", WAYS, measured)
    again = Winners(threads=2).chosen("k", WAYS, refusing)
    assert first.by == "measured"
    assert again == attrs.evolve(first, by="remembered")
    assert "remembered" in again.words


def test_who_computes_a_product_in_code_that_was_kept_is_told_as_it_came_about():
    Winners(threads=2).chosen("k", WAYS, measured)
    of_code = Winners(threads=2, pinned={"p": "mkl"})
    for key, winner in (("k", "onednn"), ("p", "mkl"), ("new", "mkl")):
        of_code.compiled(key, winner)
    assert of_code.found["k"] == evolve(measured(), by="remembered")
    assert of_code.found["p"] == Winner(key="p", winner="mkl", by="pinned")
    assert of_code.found["new"] == Winner(key="new", winner="mkl", by="remembered")
    of_code.compiled("k", "mkl")  # another than what is remembered now
    assert of_code.found["k"] == Winner(key="k", winner="mkl", by="remembered")
    of_code.compiled("p", "onednn")  # another than what is pinned now
    assert of_code.found["p"] == Winner(key="p", winner="onednn", by="remembered")


@pytest.mark.parametrize("other", [Winners(threads=1), Winners(threads=2, measuring="always")])
def test_another_number_of_threads_and_who_wants_it_measures_anew(other: Winners):
    Winners(threads=2).chosen("k", WAYS, measured)
    assert other.chosen("k", WAYS, lambda: measured("mkl")).winner == "mkl"
    assert other.chosen("k", WAYS, refusing).winner == "mkl"


def test_who_wants_nothing_measured_gets_the_first_way_and_keeps_nothing(own_cache: Path):
    found = Winners(measuring="never").chosen("k", WAYS, refusing)
    assert (found.winner, found.by, found.why) == ("mkl", "default", "target.measuring=never")
    assert not own_cache.exists()


def test_what_nobody_could_measure_is_not_remembered(own_cache: Path):
    nobody = Winner(key="k", winner="mkl", by="default", why="it draws random numbers")
    assert Winners().chosen("k", WAYS, lambda: nobody) is nobody
    assert not own_cache.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "other", "winner": "mkl", "by": "measured"}', '{"key": 3}'])
def test_a_file_that_is_none_is_measured_anew_and_replaced(text: str):
    Winners().keep(measured())
    (file,) = winners.folder().glob("*.json")
    file.write_text(text)
    assert winners.read("k", 1) is None
    assert Winners().chosen("k", WAYS, measured).by == "measured"
    assert json.loads(file.read_text())["winner"] == "onednn"


def test_a_file_that_others_could_have_written_is_not_believed():
    Winners().keep(measured())
    (file,) = winners.folder().glob("*.json")
    file.chmod(0o666)
    assert winners.read("k", 1) is None


def test_a_way_that_is_remembered_and_is_not_to_be_had_now_is_chosen_anew():
    Winners().keep(measured())
    assert Winners().chosen("k", ("mkl",), lambda: measured("mkl")).winner == "mkl"


# -- what is pinned


def test_a_pinned_way_computes_whatever_is_faster_and_says_what_would_be_chosen():
    Winners().keep(measured())
    found = Winners(pinned={"k": "mkl"}).chosen("k", WAYS, refusing)
    assert (found.winner, found.by, found.here) == ("mkl", "pinned", "onednn")
    assert found.words.endswith("pinned, this machine would choose onednn")
    assert Winners(pinned={"k": "onednn"}).chosen("k", WAYS, refusing).here is None


def test_a_pinned_way_that_is_not_to_be_had_is_refused_by_name():
    with pytest.raises(CompileError, match=r"kernels\.k: cublas cannot compute this here\. Possible: mkl, onednn"):
        Winners(pinned={"k": "cublas"}).chosen("k", WAYS, refusing)


def test_the_shortest_rounds_are_those_below_the_first_decile() -> None:
    """One lucky round of the holder's is not its shortest: of eleven, the second shortest is."""
    samples = {"mkl": [9.0, *[10.0] * 10], "onednn": [9.45] * 11}
    assert of_samples("x", samples).winner == "onednn"
    assert of_samples("x", {**samples, "mkl": [9.0, 9.0, *[10.0] * 9]}).winner == "mkl"
