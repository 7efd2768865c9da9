"""Cases of descriptions of what a server captures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose_devtools.capture_sizes.deployment import read_deployment
from tests.refusals.case import Case

WHOLE = "soc: a2\nsizes: [1, 8]\ngraphs:\n  main: {layers: 4, communicators: [tp]}\ncommunicators:\n  tp: {ranks: 8}\n"


def deployment(old: str = "", new: str = "") -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "d.yaml").write_text(WHOLE.replace(old, new, 1) if old else new or WHOLE)
        return read_deployment(folder / "d.yaml")

    return read


READING = "npucompose_devtools.capture_sizes.deployment"
SIZES = f"[{', '.join(map(str, range(1, 1002)))}]"
CASES = (
    Case(
        READING,
        "describes no deployment",
        deployment(new="- 1\n"),
        "d.yaml describes no deployment: it has to be",
        "must be a mapping",
    ),
    Case(READING, "from None", deployment("layers", "layer"), "d.yaml: unknown key 'layer' @ graphs.main", "unknown"),
    Case(READING, "at most {MOST", deployment("[1, 8]", SIZES), "d.yaml: at most 1,000 sizes, and 62 graphs"),
    Case(READING, "the least and the most", deployment("layers: 4", "kernels: [9, 8]"), "graphs.main.kernels: one"),
    Case(READING, "must be a number of bytes", deployment("soc", "memory: 2x\nsoc"), "memory: '2x'; must be a number"),
)
