"""The page of what GPUs said is made from the files of the claims, failures and all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_page_is_made_from_the_results() -> None:
    from cuda_page import PAGE, files, page

    assert PAGE.read_text() == page(files())


def test_every_claim_held_but_for_models_that_need_an_installed_package() -> None:
    from cuda_page import files

    lost = {name: one["error"] for found in files() for name, one in found["claims"].items() if not one["held"]}
    assert all("ConfigError: unknown model" in error for error in lost.values()), lost


def way(p50: float) -> dict[str, Any]:
    return {"p25_us": p50 - 1, "p50_us": p50, "p75_us": p50 + 1, "calls": 9, "made_s": 0.25, "max_abs_err": 0.0}


def device(name: str, **claims: Any) -> dict[str, Any]:
    environment = {"versions": {"torch": "2.11.0", "python": "3.12.3"}, "cpu": {"usable": 16}}
    return {"device": name, "cuda": "13.0", "environment": environment, "claims": claims}


def test_a_row_has_the_ratio_to_eager_and_the_time_of_its_graph_alone() -> None:
    from cuda_page import page

    ways = {"eager": way(300), "npucompose max-autotune": way(100), "torch max-autotune": way(120)}
    ways["npucompose max-autotune, graph alone"] = {"p50_us": 80.4}
    said = page([device("GPU", **{"microseconds side by side: mlp": {"held": True, "found": ways}})]).splitlines()
    assert "torch 2.11.0, CUDA 13.0, Triton unknown, Python 3.12.3; 16 cores." in said
    assert [line for line in said if line.startswith("| mlp")] == [
        "| mlp | eager | 300 | 299 to 301 | 1.00 |  | 0.2 |",
        "| mlp | npucompose max-autotune | 100 | 99 to 101 | 3.00 | 80 | 0.2 |",
        "| mlp | torch max-autotune | 120 | 119 to 121 | 2.50 |  | 0.2 |",
    ]


def test_a_claim_that_did_not_hold_says_with_which_words() -> None:
    from cuda_page import page

    failed = {"held": False, "error": "Traceback\n  File x\nRuntimeError: an illegal | access. And more"}
    said = page([device("GPU", **{"results live on": failed, "microseconds side by side: mlp": failed})]).splitlines()
    assert "| results live on | no | RuntimeError: an illegal / access |" in said
    assert "| mlp | RuntimeError: an illegal / access | | | | | |" in said
    held = {"held": True, "found": {"max_abs_err": 1.25e-7, "bitwise": False, "p50_us": {"eager": 2.5}}}
    (row,) = [line for line in page([device("GPU", claim=held)]).splitlines() if line.startswith("| claim | yes")]
    assert row == "| claim | yes | max abs err 1.25e-07, bitwise no, p50 us eager 2.5 |"


def test_the_newest_file_of_each_device_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda_page

    monkeypatch.setattr(cuda_page, "RESULTS", tmp_path)
    for name, day in (("A", "2026-11-28"), ("A", "2026-12-01"), ("B", "2026-11-01")):
        (tmp_path / f"cuda-{name}-{day}.json").write_text(json.dumps(device(name, day=day)))
    assert {one["device"]: one["claims"]["day"] for one in cuda_page.files()} == {"A": "2026-12-01", "B": "2026-11-01"}
