"""The table of Hugging Face classes: what counts as exact, what the page says, and a sample of how it was made."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from nursery import command

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def _with_transformers() -> None:
    pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")


def result(**ways: str) -> dict[str, Any]:
    from huggingface import DTYPES, EXACT, WAYS

    row: dict[str, Any] = {"graphs": 1, "segments": 2, "kernels": 7, "outside": ["cond at m.py:4"], "tracing": 0.0}
    row["ways"] = dict.fromkeys(WAYS, EXACT)
    rows = {dtype: {**row, "ways": {**row["ways"], **ways}} for dtype in DTYPES}
    return {"class": "AlbertModel", "rows": rows, "generated": None, "versions": {"torch": "2.13.0"}}


def test_thirty_classes_of_every_kind_take_part() -> None:
    from huggingface import CLASSES, GENERATING, KINDS

    assert len(set(CLASSES)) >= 30
    assert set(GENERATING) < set(KINDS["decoder"])
    assert len(GENERATING) == 5


@pytest.mark.parametrize(
    ("wanted", "given", "verdict"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], "exact"),
        ([1.0, 2.0], [1.0, 2.5], "step 0, output 0: differs by 0.5"),
        ([0.0], [-0.0], "step 0, output 0: differs by 0"),
    ],
)
def test_exact_is_bit_for_bit(wanted: list[float], given: list[float], verdict: str) -> None:
    from huggingface import judged

    assert judged([(torch.tensor(wanted),)], [(torch.tensor(given),)]) == verdict


def test_a_missing_tensor_is_not_exact() -> None:
    from huggingface import judged

    assert judged([(torch.ones(1), torch.ones(1))], [(torch.ones(1),)]) == "step 0: 1 tensors, not 2"


def test_the_page_names_what_is_not_exact() -> None:
    from huggingface import WAYS
    from huggingface_page import page, wrong

    assert not wrong([result()])
    assert "| AlbertModel | encoder | float32 | exact | exact | exact | 0 | 1 | 2 | 7 | cond at m.py:4 |" in page(
        [result()]
    )
    bad = result(**{WAYS[0]: "step 3, output 0: differs by 0.1"})
    assert len(wrong([bad])) == 2
    assert "ways that are not exact: 2." in page([bad])


def test_the_page_that_is_stored_is_made_from_the_results_that_are_stored() -> None:
    from huggingface import CLASSES, results
    from huggingface_page import PAGE, page, wrong

    stored = results()
    assert {result["class"] for result in stored} == set(CLASSES)
    assert PAGE.read_text() == page(stored)
    assert not wrong(stored)


@pytest.mark.slow
@pytest.mark.usefixtures("_with_transformers")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "T5ForConditionalGeneration", "SwinForImageClassification", "Qwen2MoeForCausalLM"]
)
def test_a_class_is_exact_through_the_yaml_and_both_fronts(name: str, dtype: str) -> None:
    from huggingface import EXACT, WAYS, row_of

    row = row_of(name, dtype)
    assert row["ways"] == dict.fromkeys(WAYS, EXACT)
    assert (row["graphs"], row["segments"], row["outside"]) == (1, 1, [])


@pytest.mark.slow
@pytest.mark.usefixtures("_with_transformers")
def test_generating_into_a_static_cache_gives_eager_s_tokens() -> None:
    from huggingface import GENERATING, TOKENS, tokens_of

    for name in GENERATING:
        made = tokens_of(name, TOKENS)
        assert made["tokens"] == 128, name
        assert made["distinct"] > 16, name
        assert made["same"] == [True, True], name


@pytest.mark.slow
@pytest.mark.usefixtures("_with_transformers")
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("GPT2LMHeadModel", ["model.config={n_embd: 32, n_layer: 3}"]),
        ("WhisperForConditionalGeneration", ["model.outputs=all", "model.dtype=bfloat16"]),
        ("Mamba2ForCausalLM", ["model.config.num_hidden_layers=1", "model.tokens=9"]),
    ],
)
def test_a_class_runs_from_the_command_line(architecture: str, overrides: list[str], tmp_path: Path) -> None:
    words = ["model=transformers", f"model.architecture={architecture}", "pipeline=check", *overrides]
    done = subprocess.run(
        command("run.py", *words),
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(next(tmp_path.glob("outputs/*/*/report.json")).read_text())
    assert report["numerics"], done.stdout + done.stderr
    assert report["graphs"]
    assert report["stages"]["capture"]["captures"] >= 1
