"""Every way to run a model, side by side: `python benchmarks/performance.py [model …] [--threads 1 2] [--seconds 6]`.

One process for each model and number of threads, so that nobody's thread pool serves another number. In it the
candidates are made one after the other (made: compile, capture, load and a first call), compared with eager on eight
steps, and then called in turns; a share is the median of the ratios of each round. In one pass each is called three
times in its turn and the last is counted, as a loop of a program finds the caches; in another once, when all others
have used them since (after_others). What cannot take a model, or gives other results, says so in its cell. Results go
to benchmarks/results/performance/, into a folder for this processor, and docs/performance.md and its pages are written
anew from everything that lies there; `--page` does only that. A candidate whose library is missing has its reason in
its cells.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from attrs import frozen
from compact import compact

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "performance"
SAMPLES = HERE.parent / "build" / "performance"
"""Every call, as long as somebody wants to look at them."""
MEMORY = HERE / "results" / "memory.json"
MODELS = {
    "tiny_ops": ["model=tiny_ops"],
    "gpt_decode": ["model=gpt_decode"],
    "gpt_prefill": ["model=gpt_prefill"],
    "moe_shared_expert": ["model=moe_shared_expert"],
    "minilm": ["model=minilm"],
    "transformers": ["model=transformers", "model.tokens=1", "model.config.attn_implementation=eager"],
    "resnet18": ["model=resnet18"],
    "unet": ["model=unet"],
    "gpt2": [
        "model=transformers",
        "model.architecture=GPT2LMHeadModel",
        "model.config={n_embd: 384, n_layer: 6, n_head: 6, vocab_size: 8192}",
        "model.tokens=64",
    ],
    "whisper_encoder": [
        "model=transformers",
        "model.architecture=WhisperForAudioClassification",
        "model.config={d_model: 384, encoder_layers: 4, encoder_attention_heads: 6, encoder_ffn_dim: 1536, "
        "num_mel_bins: 80, max_source_positions: 200}",
    ],
    "t5_step": [
        "model=transformers",
        "model.architecture=T5ForConditionalGeneration",
        "scenario=decode",
        "model.config={d_model: 256, d_kv: 32, num_heads: 8, d_ff: 1024, num_layers: 4, num_decoder_layers: 4, "
        "vocab_size: 4096}",
    ],
}
"""{name in the table: the overrides that make it}."""
STEPS = 8
"""Calls with other inputs each, on which results are compared: a classifier of two logits gives sixteen numbers."""
IN_A_ROW = 3
"""Calls of a candidate in its turn, of which the last is counted."""
TOO_SLOW = 5.0
"""Times eager: what takes longer is not called in turns with the others, of which it would take the time."""
FLOOR_ROUNDS = 7
LIBRARIES = (
    "torch",
    "transformers",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "executorch",
    "iree-turbine",
    "apache-tvm",
)


def measure(model: str, threads: int, seconds: float, without: Mapping[str, str], now: Path) -> dict[str, Any]:
    """One model at one number of threads, in this process; the file `now` has the name of the candidate that is made.

    `without` are {candidate: why it is left out}.
    """
    import torch

    sys.path.insert(0, str(HERE))
    from candidates import CANDIDATES, EAGER
    from subject import Ready

    from npucompose.measure.timing import interleaved

    # All candidates share the code of one `forward`, of which Dynamo makes eight versions and then no more.
    torch._dynamo.config.recompile_limit = 4 * len(CANDIDATES)
    subject, inputs = subject_of(MODELS[model], threads)
    ready: dict[str, Ready] = {}
    rows: dict[str, dict[str, Any]] = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Expected.of(subject, inputs)
        for name, make in CANDIDATES.items():
            print(f"{model}, {threads} threads: {name}", file=sys.stderr, flush=True)
            now.write_text(name)
            rows[name], made = (
                ({"why_not": without[name]}, None) if name in without else _made(make, subject.apart(), expected)
            )
            if made is not None:
                ready[name] = made
        now.write_text("")
        calls = {name: _bound(r.call, tuple(_copied(list(inputs[0])))) for name, r in ready.items()}
        often = partial(interleaved, calls, warmup=4, min_calls=15, min_seconds=seconds, max_calls=4000)
        samples, after_others = often(uncounted=IN_A_ROW - 1), often()
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        for name, one in ready.items():
            if one.floor is not None:
                rows[name]["floor_us"] = median(one.floor() for _ in range(FLOOR_ROUNDS))
    for name, taken in samples.items():
        rows[name] |= _figures(taken, samples[EAGER])
        rows[name]["after_others"] = _figures(after_others[name], after_others[EAGER])
    return {"model": model, "threads": threads, "load": load, "candidates": rows, **surroundings(threads)}


def subject_of(overrides: Sequence[str], threads: int) -> tuple[Any, list[Any]]:
    """(the Subject, the inputs of each step), in this process, which has so many threads from now on."""
    import torch
    from subject import Subject

    from npucompose.api import checked
    from npucompose.compose.session import Session

    torch.set_num_threads(threads)
    live = Session(checked([*overrides, "mode=eager"]))
    inputs = [live.bind(live.inputs(step)).args for step in range(STEPS)]
    return Subject(module=live.reference, inputs=inputs[0], threads=threads), inputs


@frozen(kw_only=True, eq=False)
class Expected:
    """What eager gives, step by step, and what the same model gives in double precision."""

    inputs: Sequence[Any]
    eager: Sequence[Any]
    double: Sequence[Any]
    seconds: float
    """Of an eager call."""

    @classmethod
    def of(cls, subject: Any, inputs: Sequence[Any]) -> Expected:
        from accuracy import in_double

        module = subject.own()
        seconds, eager = _timed(module, inputs)
        return cls(inputs=inputs, eager=eager, double=in_double(subject.module, inputs), seconds=seconds)

    def compared(self, call: Callable[..., Any]) -> tuple[dict[str, Any], str | None]:
        """(what a call of each step is found to be, why there is no figure of them where there is none)."""
        from accuracy import error

        from npucompose.measure.numerics import compare

        seconds, got = _timed(call, self.inputs)
        found = [compare(e, g) for e, g in zip(self.eager, got, strict=True)]
        largest = [one.max_abs_err for one in found]
        wrong = [problem for one in found if not one.passed for problem in one.problems]
        facts = {
            "bitwise": all(one.bitwise for one in found),
            "max_abs_err": None if None in largest else max(filter(None, largest), default=0.0),
        }
        if not wrong:
            facts["fp64_error"] = error(self.double, got)
        if wrong:
            return facts, f"other results than eager's: {wrong[0]}"
        slower = seconds / self.seconds
        return facts, f"{slower:.0f} times eager's time: not called in turns" if slower > TOO_SLOW else None


def _made(make: Callable[..., Any], subject: Any, expected: Expected) -> tuple[dict[str, Any], Any]:
    """(what is known of a candidate before it is timed, the candidate or None with the reason in the former)."""
    from subject import Unavailable

    gc.collect()
    begun = perf_counter()
    try:
        made = make(subject)
        first = made.call(*expected.inputs[0])
        took = perf_counter() - begun
        del first
        _rewind(made.module, subject.module)
        compared, why_not = expected.compared(made.call)
    except Unavailable as why:
        return {"why_not": str(why)}, None
    except Exception as error:  # noqa: BLE001  whatever a library raises is why it has no figure
        return {"why_not": reason_of(error)}, None
    gc.collect()
    row = {"made_s": took, **compared}
    return (row, made) if why_not is None else ({**row, "why_not": why_not[:160]}, None)


def reason_of(error: Exception) -> str:
    """Why there is no figure, in one line for a cell."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]


def _timed(call: Callable[..., Any], inputs: Sequence[Any]) -> tuple[float, list[Any]]:
    """(seconds of the quickest call, the results), one call for each of `inputs`."""
    seconds, results = [], []
    for given in inputs:
        begun = perf_counter()
        found = call(*given)
        seconds.append(perf_counter() - begun)
        results.append(_copied(found))
    return min(seconds), results


def _rewind(module: Any, start: Any) -> None:
    """The buffers as they were before the first call; what has not changed is not written: it may be frozen."""
    if module is not None:
        for buffer, value in zip(module.buffers(), start.buffers(), strict=True):
            if not buffer.equal(value):
                buffer.copy_(value)


def _copied(value: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, torch.clone, value)


def _bound(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: call(*arguments)


def _figures(taken: Any, eager: Any) -> dict[str, Any]:
    from npucompose.measure.timing import paired_ratio

    return {
        "p50_us": taken.p50,
        "p25_us": taken.percentile(25),
        "p75_us": taken.percentile(75),
        "calls": len(taken.us),
        "as_fast_as_eager": paired_ratio(eager, taken),
        "samples_us": [round(us, 2) for us in taken.us[:: max(1, len(taken.us) // 100)]],
    }


def surroundings(threads: int) -> dict[str, Any]:
    import torch

    from npucompose.machine import cpu_model, installed_version, usable_cores

    machine = {
        "cpu": cpu_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": usable_cores(),
        "threads": threads,
    }
    versions = {name: version for name in LIBRARIES if (version := installed_version(name))}
    return {
        "date": datetime.date.today().isoformat(),
        "environment": {**machine, "versions": versions},
    }


def run(model: str, threads: int, seconds: float) -> None:
    """Measure in a process of its own and keep the result."""
    from performance_page import machine_of, slug_of

    result = _measured(model, threads, seconds)
    machine = slug_of(machine_of(result))
    (SAMPLES / machine).mkdir(parents=True, exist_ok=True)
    (SAMPLES / machine / f"{model}-{threads}.json").write_text(json.dumps(result, indent=1) + "\n")
    keep(RESULTS / f"{machine}.json", without_samples(result))


def keep(file: Path, result: Mapping[str, Any]) -> None:
    """In the place of what the file of a machine has of the same model and threads."""
    before = json.loads(file.read_text()) if file.is_file() else []
    rows = {(one["model"], one["threads"]): one for one in (*before, result)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(compact([rows[which] for which in sorted(rows)]) + "\n")


def without_samples(value: Any) -> Any:
    """What is committed: figures with the digits that mean something, and none of the single calls."""
    if isinstance(value, dict):
        return {name: without_samples(item) for name, item in value.items() if name != "samples_us"}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _measured(model: str, threads: int, seconds: float) -> dict[str, Any]:
    """Without a candidate that ends the process while it is made: then once more."""
    command = [sys.executable, __file__, model, "--threads", str(threads), "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    without: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "now"
        while True:
            here = ["--here", str(now), "--without", json.dumps(without)]
            done = subprocess.run([*command, *here], env=environment, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0:
                return json.loads(done.stdout.splitlines()[-1])
            name = now.read_text() if now.exists() else ""
            if done.returncode > 0 or not name or name in without:
                raise SystemExit(f"{model}, {threads} threads: exit status {done.returncode}, {name or 'when timed'}")
            without[name] = f"it ends the process: {signal.Signals(-done.returncode).name}"


def refuse_unknown(parser: argparse.ArgumentParser, models: Sequence[str]) -> None:
    if wrong := [model for model in models if model not in MODELS]:
        parser.error(f"unknown model {', '.join(wrong)}; choose from {', '.join(MODELS)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of counted calls, all candidates together, in each of two passes"
    )
    parser.add_argument("--page", action="store_true", help="measure nothing, write the pages anew")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    refuse_unknown(parser, arguments.models)
    if arguments.here:
        model, threads = arguments.models[0], arguments.threads[0]
        print(json.dumps(measure(model, threads, arguments.seconds, arguments.without, arguments.here)))
        return 0
    sys.path.insert(0, str(HERE))
    for model in [] if arguments.page else arguments.models or MODELS:
        for threads in arguments.threads:
            run(model, threads, arguments.seconds)
    return written()


def written() -> int:
    """The pages, from all results; 1 where a goal is missed."""
    from performance_goals import goals
    from performance_page import by_machine, write

    machines = by_machine([one for file in sorted(RESULTS.glob("*.json")) for one in json.loads(file.read_text())])
    reached = {machine: goals(its) for machine, its in machines.items()}
    memory = json.loads(MEMORY.read_text()) if MEMORY.exists() else {}
    write(machines, list(MODELS), reached, memory)
    for machine, its in reached.items():
        for goal in its:
            verdict = "" if goal.met is None else "met" if goal.met else "MISSED"
            print(f"{machine}: {goal.words}: {goal.figure} {verdict}")
    return int(any(goal.met is False for its in reached.values() for goal in its))


if __name__ == "__main__":
    sys.exit(main())
