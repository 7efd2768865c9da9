"""The table of lengths on every path: page, results and code hold together, and no row disagrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.npu.needs import in_a_process, offline

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def stored() -> list[dict[str, Any]]:
    from fa_lengths import results

    return results()


def test_every_way_on_every_path_has_a_row() -> None:
    from fa_lengths import OPS, PATHS, WAYS

    wanted = [(op, way, path) for op in OPS for way in WAYS for path in PATHS]
    assert [(one["op"], one["lengths"], one["path"]) for one in stored()] == wanted


def test_no_row_disagrees() -> None:
    from fa_lengths import disagreements

    assert [(one["op"], one["lengths"], one["path"], wrong) for one in stored() for wrong in disagreements(one)] == []


def test_the_page_is_made_from_the_results() -> None:
    from fa_lengths_page import PAGE, page

    assert PAGE.read_text() == page(stored())


GIVEN: dict[str, Any] = {"unknown_sizes": False, "lengths": ["Data"], "forced": False, "sink": "1", "gears": False}
SINKS = {"path": 4, "fx_graph": "dynamic", "ge_graph": "static", "ge_build": "static"}
TOLIST = {"operator": "aten._local_scalar_dense.default", "source": "m.py:1 in forward: x", "words": "no"}


@pytest.mark.parametrize(
    ("handed_over", "failure", "verdict", "wrong"),
    [
        ({}, None, {}, []),
        ({"forced": True}, None, {}, ["ge_build is static, and not dynamic", "path is 4, and not None"]),
        ({"sink": "0"}, None, {}, ["ge_build is static, and not dynamic", "path is 4, and not None"]),
        ({"lengths": ["Const"]}, None, {"path": 1, "fx_graph": "static"}, []),
        ({"unknown_sizes": True}, None, {"path": None, "ge_graph": "dynamic"}, ["ge_build is static, and not dynamic"]),
        ({"unknown_sizes": True, "gears": True}, None, {"path": None, "ge_graph": "dynamic"}, []),
        ({"unknown_sizes": True, "gears": True}, None, {"ge_graph": "dynamic"}, ["path is 4, and not None"]),
        ({}, TOLIST, {}, [
            "path is 4, and not None", "ge_graph is static, and not failed", "ge_build is static, and not failed",
        ]),
        ({}, TOLIST, {"path": None, "ge_graph": "failed", "ge_build": "failed"}, []),
        ({}, {**TOLIST, "operator": None}, {"path": None, "ge_graph": "unknown", "ge_build": "unknown"}, []),
    ],
)  # fmt: skip
def test_a_verdict_is_held_against_what_was_handed_over(
    handed_over: dict[str, Any], failure: Any, verdict: dict[str, Any], wrong: list[str]
) -> None:
    from fa_lengths import disagreements

    said = {**SINKS, **verdict}
    one = {"path": 4, "converted": [{**GIVEN, **handed_over}], "failure": failure, "explain": said, "derived": said}
    assert disagreements(one) == [f"{name}: {words}" for name in ("explain", "derived") for words in wrong]


@offline
@pytest.mark.slow
@pytest.mark.parametrize(("op", "way", "path"), [("fia", "computed", 4), ("ifa", "gears", 3), ("fia", "tensor", 4)])
def test_a_row_comes_out_as_it_is_stored(op: str, way: str, path: int) -> None:
    made = in_a_process(Path(__file__).with_name("fa_row.py"), op, way, str(path))
    assert made == next(one for one in stored() if (one["op"], one["lengths"], one["path"]) == (op, way, path))
