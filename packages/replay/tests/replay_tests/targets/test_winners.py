"""Who computes a product: what is remembered on the machine, what is pinned and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from npucompose.errors import CompileError
from npucompose.results.graphs import Winner
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


# -- what is remembered


def test_what_was_measured_once_is_remembered_by_other_compilations_and_measured_no_more():
    first = Winners(threads=2).keep(measured())
    again = Winners(threads=2).known("k", WAYS)
    assert again is not None
    assert again == evolve(first, by="remembered")
    assert "remembered" in again.words


def test_who_computes_a_product_in_code_that_was_kept_is_told_as_it_came_about():
    Winners(threads=2).keep(measured())
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


def test_another_number_of_threads_measures_anew():
    Winners(threads=2).keep(measured())
    other = Winners(threads=1)
    assert other.known("k", WAYS) is None
    assert other.keep(measured("mkl")) == other.known("k", WAYS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "other", "winner": "mkl", "by": "measured"}', '{"key": 3}'])
def test_a_file_that_is_none_is_measured_anew_and_replaced(text: str):
    Winners().keep(measured())
    (file,) = winners.folder().glob("*.json")
    file.write_text(text)
    assert winners.read("k", 1) is None
    assert Winners().known("k", WAYS) is None
    Winners().keep(measured())
    assert json.loads(file.read_text())["winner"] == "onednn"


def test_a_file_that_others_could_have_written_is_not_believed():
    Winners().keep(measured())
    (file,) = winners.folder().glob("*.json")
    file.chmod(0o666)
    assert winners.read("k", 1) is None


def test_a_way_that_is_remembered_and_is_not_to_be_had_now_is_chosen_anew():
    Winners().keep(measured())
    assert Winners().known("k", ("mkl",)) is None


# -- what is pinned


def test_a_pinned_way_computes_whatever_is_faster_and_says_what_would_be_chosen():
    Winners().keep(measured())
    found = Winners(pinned={"k": "mkl"}).known("k", WAYS)
    assert found is not None
    assert (found.winner, found.by, found.here) == ("mkl", "pinned", "onednn")
    assert found.words.endswith("pinned, this machine would choose onednn")
    same = Winners(pinned={"k": "onednn"}).known("k", WAYS)
    assert same is not None
    assert same.here is None


def test_a_pinned_way_that_is_not_to_be_had_is_refused_by_name():
    with pytest.raises(CompileError, match=r"kernels\.k: cublas cannot compute this here\. Possible: mkl, onednn"):
        Winners(pinned={"k": "cublas"}).known("k", WAYS)
