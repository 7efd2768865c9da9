"""Materialises one experiment and prints which leaves of the genuine configuration object differ from its defaults."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

import npucompose
from npucompose.npu.torchair.config import package, read
from npucompose.vendor.compiler import LEAVES

ASKED = {
    "max-autotune": {
        "experimental_config.frozen_parameter": "true",
        "ge_config.oo_level": "O1",
        "debug.graph_dump.type": "py",
        "experimental_config.topology_sorting_strategy": "BFS",
    },
    "npugraph_ex": {"npugraph_ex.clone_output": "true", "npugraph_ex.use_graph_pool": "shared"},
}


def main(mode: str, target: str = "npu_offline") -> None:
    logging.getLogger("torchair" if mode != "npugraph_ex" else "npugraph_ex").setLevel(logging.DEBUG)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asked = ASKED[mode]
    made = npucompose.materialize(
        f"target={target}", f"mode={mode}", *(f"compiler.{path}={value}" for path, value in asked.items())
    )
    assert made.genuine is not None
    config: Any = made.genuine.config
    name = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
    fresh = package(name).CompilerConfig()
    leaves = [
        leaf
        for path, leaf in LEAVES.items()
        if path.startswith("npugraph_ex.") == (name == "npugraph_ex") and leaf.set_by == "compiler"
    ]
    differs = [leaf.path for leaf in leaves if read(config, leaf) != read(fresh, leaf)]
    hooks = [getattr(config, f"post_grad_custom_{which}_pass").value for which in ("pre", "post")]
    print(
        json.dumps(
            {
                "asked": sorted(asked),
                "differs": sorted(differs),
                "hooks": [type(hook.__self__).__name__ for hook in hooks],
                "signals_kept": before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
                "level": package(name).logger.level,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
