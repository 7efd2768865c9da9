"""Environment variables that torch_npu, TorchAir and CANN read: families of names, and each name with its source.

The names stand in `variables.json`, which `tools/read_variables.py` reads from a wheel and from public repositories.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import cast

DATA = Path(__file__).with_name("variables.json")
FAMILIES = (
    "ASCEND_*", "CANN_*", "NPU_*", "HCCL_*", "GE_*", "TBE_*", "TE_*", "ACL_*", "ACLNN_*", "ATB_*", "RT_*", "LCAL_*",
    "DUMP_*", "PROFILING_*", "TNG_*", "TORCHAIR_*", "TORCH_NPU_*", "AUTOFUSE_*", "INDUCTOR_*", "ANIR_*",
)  # fmt: skip
"""Of Ascend's software; a variable of a later version that has such a name is one of these, too."""


@cache
def variables() -> Mapping[str, str]:
    """{name: "WHEEL torch_npu/x.py:12"}, where `sources` of the data file says what WHEEL is."""
    return cast("Mapping[str, str]", json.loads(DATA.read_text(encoding="utf-8"))["variables"])


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these names and globs."""
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)


def read_by_ascend(name: str) -> bool:
    """Whether Ascend's software reads a variable of this name."""
    return name in variables() or fits(name, FAMILIES)
