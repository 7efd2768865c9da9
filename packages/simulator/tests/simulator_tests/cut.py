"""Run in a process of its own: which of the programs that a CPU cuts TorchAir refuses in one mode."""

from __future__ import annotations

import json
import os
import sys
import warnings

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"

import torch

import npucompose
from npucompose.errors import NpuComposeError
from tests.cut_programs import PROGRAMS

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found: dict[str, str] = {}
    for name, program in PROGRAMS.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        try:
            with torch.no_grad(), torch._dynamo.config.patch(**program.config):
                npucompose.compile(program.function, "target=npu_offline", f"mode={sys.argv[1]}")(*program.inputs())
            found[name] = ""
        except (NpuComposeError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
