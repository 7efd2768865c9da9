"""How long `npucompose explain` takes beside the compilation that it needs, both from start to end of the command.

python benchmarks/explain.py model=gpt_prefill        prints JSON: seconds of each round, medians, their ratio
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from time import perf_counter

ROUNDS = 5
CLI = "import sys; from npucompose.cli import main; sys.exit(main())"


def seconds(*arguments: str) -> float:
    """Of one command in a folder of its own, so that no record of an earlier one is found."""
    with tempfile.TemporaryDirectory() as folder:
        begun = perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CLI, *arguments],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        took = perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return took


def main(overrides: Sequence[str]) -> None:
    """Rounds of both, interleaved; the first of each warms the disk and is not counted."""
    commands = {"compile": ("run", *overrides, "pipeline=compile_only"), "explain": ("explain", *overrides)}
    took: dict[str, list[float]] = {name: [] for name in commands}
    for counted in range(ROUNDS + 1):
        for name, command in commands.items():
            one = seconds(*command)
            if counted:
                took[name].append(one)
    medians = {name: statistics.median(samples) for name, samples in took.items()}
    ratio = medians["explain"] / medians["compile"]
    print(json.dumps({"overrides": list(overrides), "seconds": took, "median_s": medians, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:] or ["model=gpt_prefill"])
