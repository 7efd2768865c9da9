"""Where the unpacked torch_npu wheel lies, if it lies anywhere; tests that need it skip and say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def torch_npu_tree() -> Path:
    """The folder that holds `torch_npu/`: the target npu_offline's own search where it is there, else the variable."""
    try:
        from npucompose.targets.npu_offline.wheel import locate  # pyright: ignore[reportMissingImports]
    except ImportError:
        given = os.environ.get("NPUCOMPOSE_TORCH_NPU")
        tree = Path(given) if given else None
    else:
        from npucompose.errors import ConfigError

        try:
            tree = locate()
        except ConfigError as error:
            pytest.skip(f"needs the torch_npu wheel: {error}")
    if tree is None or not (tree / "torch_npu" / "dynamo" / "torchair" / "configs").is_dir():
        pytest.skip("needs the torch_npu wheel: set NPUCOMPOSE_TORCH_NPU to the folder of its unpacked torch_npu/")
    return tree
