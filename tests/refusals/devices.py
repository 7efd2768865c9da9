"""Cases of result files that a stranger's device sends back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose.results import premises
from tests.refusals.case import Case

PREMISES = "npucompose.results.premises"
WHOLE: dict[str, Any] = {"schema": premises.SCHEMA, "device": {}, "claims": []}


def results(text: str) -> Callable[[Path], Any]:
    return lambda folder: premises.read(Path("results.json"), text)


CASES = (
    Case(PREMISES, "is not JSON", results("{"), "results.json is not JSON", "JSONDecodeError"),
    Case(PREMISES, "is no result file", results("{}"), "is no result file of a device", "results.json has schema None"),
    Case(PREMISES, "has schema", results(json.dumps({**WHOLE, "schema": 1})), "has schema 1, and this version reads"),
    Case(
        PREMISES,
        "needs a name",
        results(json.dumps({**WHOLE, "claims": [{"name": "x", "verdict": "ok"}]})),
        "each claim needs a name and a verdict",
    ),
)
