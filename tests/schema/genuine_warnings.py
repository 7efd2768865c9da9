"""`genuine_warnings.py TREE`: every (option, mode, value) that torchair's own check warns about, each tried live."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from npucompose.targets.npu_offline.option_trees import load_configs


def warned(cls: type[Any], mode: str, path: str, value: Any) -> bool:
    """Whether the genuine check names the option when it has this value."""
    config = cls()
    config.mode = mode
    *groups, name = path.split(".")
    at = config
    for group in groups:
        at = getattr(at, group)
    setattr(at, name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sys.modules[cls.__module__]._check_config_support(config)
    return any(f"config.{path}:" in str(w.message) for w in caught)


def main(tree: str) -> None:
    cls = load_configs(Path(tree))["torchair"]
    module = sys.modules[cls.__module__]
    lists = {"max-autotune": module.unsupport_geconfig_list, "reduce-overhead": module.unsupport_aclgraphconfig_list}
    found: list[tuple[str, str, Any]] = []
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        examples = {
            "fusion_switch_file": file.name,
            "static_model_ops_lower_limit": 7,
            "aicore_num": "24|48",
            "multistream_parallel_mode": "cv",
        }
        examples |= {"optimization_switch": "AddNFusionPass:off"}
        for mode, rows in lists.items():
            for path, values in rows:
                for value in values or [examples.get(path.split(".")[-1], "x")]:
                    if warned(cls, mode, path, value):
                        found.append((path, mode, value))
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
