"""Names of an NPU's kernels: the operator type that a name holds, and the operator of torch that a type computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from npucompose.input_safety import load_yaml

FILE = Path(__file__).with_name("kernels.yaml")
_WAYS = re.compile(r"(?:AiCore|Aicore|Common|WithImplMode)$")


@cache
def _types() -> Mapping[str, str]:
    """{operator type: operator of torch}."""
    table: Mapping[str, Any] = load_yaml(FILE)["operators"]
    return {type: operator for operator, types in table.items() for type in types}


def torch_operator(type: str) -> str | None:
    """`torch_operator("MatMulV3")` is "mm"; None for a type that the table does not have."""
    return _types().get(type) or _types().get(_WAYS.sub("", type))


def operator_type(kernel: str) -> str | None:
    """`aclnnMatmul_MatMulV3Common_MatMulV3` and `MatMulV3_1f2e3d_mix_aic` are both of "MatMulV3"; None where the name
    holds no known type. aclnn's names end in the type, all others begin with it."""
    parts = kernel.split("_")
    order = reversed(parts) if parts[0].startswith("aclnn") else parts
    return next((part for part in order if part in _types()), None)
