"""What a configuration may name, whoever wrote it: identifiers, and closed lists of what could read or load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

LONGEST = 100
INT64_MAX = 2**63 - 1

CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

NAME = re.compile(r"\w[\w.+-]*")
"""A choice or a label: `stream_plan`, `max-autotune`, `torch-2.13`."""

WORD = re.compile(r"[\w.+-]*")
"""A text in another library's configuration: `gelu_new`, `post_attention`. No address and no path."""

OPERATOR = re.compile(r"\w+\.\w+\.\w+")

CLOSED: Mapping[str, tuple[str, ...]] = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}
"""Where transformers would load a kernel from its hub by any other name, flash_attention_2 among them."""

DOWNLOADING = frozenset(
    {"auto_map", "trust_remote_code", "quantization_config", "use_pretrained_backbone", "kernel_config", "use_kernels"}
)
"""Keys by which transformers imports or fetches what is not in the package."""

WITH_FILES = frozenset({"aten.from_file", "aten.save"})

INTERNAL = frozenset(
    {
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "debug_mode_ops", "debugprims", "export",
        "inductor", "load_library", "prim", "profiler", "symm_mem",
    }
)  # fmt: skip
"""Namespaces of torch.ops that compute nothing: they talk to other processes, read files, record."""


def is_name(text: str, pattern: re.Pattern[str] = NAME) -> bool:
    return len(text) <= LONGEST and pattern.fullmatch(text) is not None


def operator_problem(name: str) -> str | None:
    """Why an operator that a configuration has called is refused."""
    if not is_name(name, OPERATOR):
        return f"'{name[:LONGEST]}' is no operator: write namespace.name.overload, as in aten.mul.Tensor"
    packet = name.rpartition(".")[0]
    if packet in WITH_FILES or packet.partition(".")[0] in INTERNAL:
        return f"'{name}' is no operator of a model: it reads or writes files, or talks to other processes"
    return None


def foreign_config_problems(config: Mapping[str, Any], path: str) -> Iterator[str]:
    """What another library's configuration holds beside numbers, words, and lists and mappings of them."""
    for key, value in config.items():
        here = f"{path}.{key}"
        if not is_name(str(key)) or str(key).startswith("_") or key in DOWNLOADING:
            yield f"'{here[:LONGEST]}' is no key of a model's shape and is not handed on"
        elif key in CLOSED and value is not None:
            yield from _not_in(CLOSED[str(key)], value, here)
        else:
            yield from _value_problems(value, here)


def _value_problems(value: Any, here: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from foreign_config_problems(cast("Mapping[str, Any]", value), here)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _value_problems(item, f"{here}.{index}")
    elif isinstance(value, (int, float)) and not abs(value) < 2**63:
        yield f"'{here}' must be a finite number of at most 64 bits"
    elif isinstance(value, str) and not is_name(value, WORD):
        yield f"'{here}' must be a plain word, no address and no path: {value[:LONGEST]!r}"


def _not_in(choices: tuple[str, ...], value: Any, here: str) -> Iterator[str]:
    """The one value, or one for each configuration inside."""
    for one in cast("Mapping[str, Any]", value).values() if isinstance(value, Mapping) else [value]:
        if one not in choices:
            yield f"'{here}' must be one of {', '.join(choices)}: {str(one)[:LONGEST]!r}"
