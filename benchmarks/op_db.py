"""torch's operators through mode=max-autotune: `python -m benchmarks.op_db` writes docs/op_db.md.

Each operator of torch's own samples (`op_db`) in a process of its own, one after the other, with a limit on time and
memory: up to `--samples` samples, compiled, recorded, replayed on other values and compared
(`fused_operators.py` of packages/replay says with what). What is known of an operator is written at once into
benchmarks/results/op_db.json: started again, the script goes on where it stopped, and with more samples it judges those
anew that had fewer; `--again wrong crashed` judges the operators of these kinds anew, `--only nn_functional_linear`
some by their names. Nothing is timed but how long it took.
Exit status 1 where a result was wrong or a process died.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools import result_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "packages" / "replay" / "tests"))  # whose samples of operators these are
RESULTS = ROOT / "benchmarks" / "results" / "op_db.json"
FAILED = ("wrong", "crashed", "out of time")
SAMPLES, SECONDS, GIBIBYTES = 3, 300, 12


def found_of(name: str, most: int) -> dict[str, Any]:
    """What is known of an operator after up to `most` samples, from this process."""
    from replay_tests.targets.cpu.fused_operators import dtype_of, overall, verdicts

    samples = verdicts(name, most)
    found = overall(samples)
    kinds = Counter(sample.kind for sample in samples)
    entry = {"operator": name, "kind": found.kind, "dtype": dtype_of(name), "most": most, "samples": dict(kinds)}
    if found.words:
        entry["words"] = found.words
    errors = {"error": found.error, "eager_error": found.eager_error}
    return entry | {key: float(f"{value:.3g}") if value < float("inf") else None for key, value in errors.items()}


def _in_the_child(name: str, most: int, answers: Any) -> None:
    os.setsid()  # so that the compilers it starts can be ended with it
    limit = GIBIBYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    answers.send(found_of(name, most))


def judged(name: str, most: int, seconds: float = SECONDS) -> dict[str, Any]:
    """The same from a process forked off this one; one that dies or takes too long is a verdict too."""
    processes = multiprocessing.get_context("fork")
    receiving, sending = processes.Pipe(duplex=False)
    begun = time.monotonic()
    child = processes.Process(target=_in_the_child, args=(name, most, sending))
    child.start()
    sending.close()
    entry: dict[str, Any] = {"operator": name, "kind": "out of time", "most": most}
    entry["words"] = f"more than {seconds:g} s"
    try:
        if receiving.poll(seconds):
            entry = receiving.recv()
    except EOFError:
        child.join()
        entry |= {"kind": "crashed", "words": _end_of(child.exitcode)}
    _end(child)  # what Python and torch do at their end takes seconds
    return entry | {"seconds": round(time.monotonic() - begun, 1)}


def _end_of(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"


def _end(child: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()


def prepare() -> list[str]:
    """Load what every operator needs, compile once, so that the processes forked off begin where this ends; the
    operators' names."""
    import warnings

    import torch
    import torch._inductor.config as inductor

    import npucompose
    from replay_tests.op_samples import BY_NAME
    from replay_tests.targets.cpu.fused_operators import CHOICES

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    inductor.compile_threads = 1  # pools of compilers do not outlive a fork
    with torch.no_grad():
        npucompose.compile(lambda x: x.sin() @ x, *CHOICES)(torch.ones(4, 4))
    return sorted(BY_NAME)


def begun(path: Path) -> dict[str, Any]:
    """The result file so far; SystemExit where it was made with another torch."""
    import torch

    if not path.is_file():
        return {"torch": torch.__version__, "all": 0, "operators": []}
    found = json.loads(path.read_text())
    if found["torch"] != torch.__version__:
        raise SystemExit(f"{path} was made with torch {found['torch']}; remove it to begin anew.")
    return {key: found[key] for key in ("torch", "all", "operators")}


def write(path: Path, results: dict[str, Any]) -> None:
    results["operators"].sort(key=lambda entry: entry["operator"])
    kinds = Counter(entry["kind"] for entry in results["operators"])
    head = {"torch": results["torch"], "all": results["all"], "totals": dict(sorted(kinds.items()))}
    result_file.write(path, head, operators=results["operators"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="OPERATOR", help="these, also with a result")
    parser.add_argument("--again", nargs="+", default=[], metavar="KIND", help="also those that were of these kinds")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="up to so many of each operator")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from what is stored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    results = begun(given.out)
    if not given.page:
        _judge(results, given)
    from benchmarks.op_db_page import PAGE, page

    if given.out == RESULTS:
        PAGE.write_text(page(results))
    return int(any(entry["kind"] in FAILED for entry in results["operators"]))


def _judge(results: dict[str, Any], given: argparse.Namespace) -> None:
    names = prepare()
    results["all"] = len(names)
    known = {entry["operator"]: entry for entry in results["operators"]}

    def is_due(name: str) -> bool:
        before = known.get(name)
        return before is None or before["kind"] in given.again or before["most"] < given.samples

    wanted = given.only or list(filter(is_due, names))
    for name in wanted:
        entry = judged(name, given.samples)
        results["operators"] = [one for one in results["operators"] if one["operator"] != name] + [entry]
        write(given.out, results)
        print(f"{name}: {entry['kind']} {entry.get('words', '')} ({entry['seconds']} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
