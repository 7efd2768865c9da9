"""Many random programs against eager: `python -m tools.fuzz_programs [--programs 20000] [--seed 14] [--workers 2]`.

`--mode max-autotune` sends them through Inductor and the replay of its kernels, into a result file of its own.

The programs are those of replay_tests/semantics/programs.py, in chunks; chunk k is made from the seed and k alone, in a
process of its own, and noted in the result file when it is done, with a digest of the sources that it was judged with:
started again, the script goes on where it stopped. A program that fails is shrunk and printed, and its source is kept
in the file until its chunk is judged with other sources. The file belongs to one seed and one torch; with others it is
begun anew only when `--afresh` says so. Exit status 1 where any program failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tools import result_file

ROOT = Path(__file__).resolve().parents[1]
RESULTS = {
    "reduce-overhead": ROOT / "benchmarks" / "results" / "fuzz_programs.json",
    "max-autotune": ROOT / "benchmarks" / "results" / "fuzz_programs_fused.json",
}
CHUNK = {"reduce-overhead": 100, "max-autotune": 20}
"""Programs of a chunk: minutes of work."""
LOADED = [
    "torch._dynamo.guards",
    "torch._dynamo.convert_frame",
    "torch._functorch.aot_autograd",
    "hypothesis",
    "npucompose.api",
    "npucompose.targets.cpu",
    "replay_tests.semantics.fuzzing",
    "replay_tests.semantics.programs",
]
"""By the process of which those of the chunks are forked: seconds, once."""


def sources() -> str:
    """A digest of what the verdicts depend on: the library, and what writes and judges programs."""
    digest = hashlib.sha256()
    folders = [ROOT / "src" / "npucompose", ROOT / "packages/replay/tests/replay_tests/semantics"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".h")]
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def chunk(task: tuple[int, int, str]) -> dict[str, Any]:
    """What became of the programs of one chunk: how many, how many different ones, the verdicts, the first failure."""
    seed, number, mode = task
    import torch._dynamo.guards
    from hypothesis import given, settings
    from hypothesis import seed as seeded

    from npucompose import api, ops
    from npucompose.compose.tree import Composer
    from replay_tests.semantics.fuzzing import SETTINGS, judged
    from replay_tests.semantics.programs import FUSED_WAYS, WAYS, Program, programs

    ops.define()
    # Dynamo empties the caches of the machine to time its new guards, for a log: a tenth of all the time, for nothing.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # pyright: ignore[reportPrivateImportUsage]
    # A Composer for all programs: the choices are few, and composing is not what is looked at.
    composer = Composer()
    api.compose = lambda choices, **_: composer.compose(choices)
    verdicts: Counter[str] = Counter()
    different: set[str] = set()
    failed: list[dict[str, str]] = []

    @seeded(seed * 1_000_003 + number)
    @settings(SETTINGS, max_examples=CHUNK[mode])
    @given(program=programs(FUSED_WAYS if mode == "max-autotune" else WAYS))
    def check(program: Program) -> None:
        found = judged(program)
        if not failed:  # once one has failed, Hypothesis is shrinking it
            verdicts[found.kind] += 1
            different.add(repr(program))
        if found.kind == "wrong":
            failed[:] = [{"words": found.words, "source": repr(program)}]
        assert found.kind != "wrong"

    try:
        check()
    except AssertionError:
        assert failed, "the harness itself failed"
    counted = {"programs": verdicts.total(), "different": len(different), **verdicts}
    return {"chunk": number, **counted, "failed": failed, "sources": sources()}


def begun(path: Path, seed: int, afresh: bool, mode: str = "reduce-overhead") -> dict[str, Any]:
    """The result file so far; SystemExit where it belongs to another seed, torch or mode."""
    import torch

    head = {"seed": seed, "chunk": CHUNK[mode], "torch": torch.__version__, "mode": mode}
    if afresh or not path.is_file():
        return {**head, "chunks": []}
    found = json.loads(path.read_text())
    found.setdefault("mode", "reduce-overhead")
    other = [key for key in head if found[key] != head[key]]
    if other:
        raise SystemExit(f"{path} was made with another {', '.join(other)}: --afresh begins it anew.")
    now = sources()
    return {**head, "chunks": [done for done in found["chunks"] if not done["failed"] or done["sources"] == now]}


def totals(chunks: list[dict[str, Any]]) -> dict[str, int]:
    counted = ("programs", "different", "right", "as traced", "as inductor", "refused", "wrong")
    found = {name: sum(done.get(name, 0) for done in chunks) for name in counted}
    return {name: number for name, number in found.items() if number or name != "as inductor"}


def write(path: Path, results: dict[str, Any]) -> None:
    results["chunks"].sort(key=lambda done: done["chunk"])
    head = {key: value for key, value in results.items() if key != "chunks"} | {"totals": totals(results["chunks"])}
    result_file.write(path, head, chunks=results["chunks"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--mode", choices=RESULTS, default="reduce-overhead")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="default: the mode's file in benchmarks/results")
    parser.add_argument("--afresh", action="store_true", help="forget what the file holds")
    given = parser.parse_args()
    given.out = given.out or RESULTS[given.mode]
    results = begun(given.out, given.seed, given.afresh, given.mode)
    done = {entry["chunk"] for entry in results["chunks"]}
    tasks = [(given.seed, k, given.mode) for k in range(-(-given.programs // CHUNK[given.mode])) if k not in done]
    # A process for each chunk: what torch.compile keeps of a thousand programs would be memory for nothing.
    os.environ["OMP_NUM_THREADS"] = "1"
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(LOADED)
    with processes.Pool(given.workers, maxtasksperchild=1) as pool:
        for finished in pool.imap_unordered(chunk, tasks):
            results["chunks"].append(finished)
            write(given.out, results)
            print(f"{totals(results['chunks'])}", flush=True)
            for failure in finished["failed"]:
                print(f"\nchunk {finished['chunk']}: {failure['words']}\n{failure['source']}\n", flush=True)
    return int(totals(results["chunks"])["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
