"""Hugging Face classes through TorchAir: every row is an answer, and page, results and code hold together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


CAPTURED: dict[str, Any] = {
    "class": "AlbertModel", "mode": "npugraph_ex", "outcome": "captured", "graphs": 1, "nodes": 7, "difference": 0.0,
    "explain": {"ge_graph": "static", "failure": None},
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "class": "AlbertModel", "mode": "max-autotune", "outcome": "not taken", "operator": "aten.softplus.default",
    "source": "m.py:3 in forward: F.softplus(x)", "fix": "adapt=ascend", "words": "not implemented!",
    "explain": {"ge_graph": "failed", "failure": "no converter"},
}  # fmt: skip


def test_twenty_classes_take_part_in_three_modes() -> None:
    from huggingface import CLASSES as ALL
    from huggingface_npu import CLASSES, MODES

    assert len(set(CLASSES)) >= 20
    assert set(CLASSES) < set(ALL)
    assert len(MODES) == 3


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (CAPTURED, []),
        (REFUSED, []),
        ({**CAPTURED, "difference": 0.5}, ["it differs from eager by 0.5"]),
        ({**CAPTURED, "outcome": "neither"}, ["it is neither: "]),
        ({**CAPTURED, "outcome": "error", "words": "KeyError: x"}, ["it is error: KeyError: x"]),
        ({**CAPTURED, "explain": REFUSED["explain"]}, ["explain says otherwise"]),
        ({**REFUSED, "explain": CAPTURED["explain"]}, ["explain says otherwise"]),
        ({**REFUSED, "source": None}, ["the operator or its line is missing"]),
        ({**REFUSED, "operator": None}, ["the operator or its line is missing"]),
    ],
)
def test_what_makes_a_row_no_answer(row: dict[str, Any], wrong: list[str]) -> None:
    from huggingface_npu import problems

    assert problems(row) == wrong


def test_the_page_names_each_operator_with_its_line_and_its_rows() -> None:
    from huggingface_npu_page import page

    text = page([REFUSED, CAPTURED])
    assert "| AlbertModel | `aten.softplus.default` | captured, 7 kernels | - |" in text
    line = "`m.py:3 in forward: F.softplus(x)`"
    assert f"| `aten.softplus.default` | {line} | adapt=ascend | AlbertModel max-autotune |" in text


def test_every_row_that_is_stored_is_an_answer_and_the_page_is_made_of_them() -> None:
    from huggingface_npu import CLASSES, MODES, problems, results
    from huggingface_npu_page import PAGE, page

    stored = results()
    assert [(one["class"], one["mode"]) for one in stored] == [(name, mode) for name in CLASSES for mode in MODES]
    assert {f"{one['class']} {one['mode']}": found for one in stored if (found := problems(one))} == {}
    assert PAGE.read_text() == page(stored)
