"""What each tuning of the CPU engine is worth: `python -m benchmarks.tunings [model …] [--seconds 30]`.

One process for each model, one thread. In it the model is made with everything switched on, twice (what two makings of
the same differ by is the noise of the table), and once more for each tuning with only that one switched off; each
making has Inductor measure its products anew, in a cache of its own. All of them are then called in turns. A figure is
the median of the ratios of each round: the time without the tuning over the time with it, so that 1.05 says that the
tuning is worth 5 %. Results are compared with eager's before anything is timed.

Six of the models are those of the table of docs/performance.md, six were never used for tuning. Results go to
benchmarks/results/tunings.json; `--page` writes the table of them into docs/tunings.md and measures nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from attrs import frozen

from benchmarks.compact import compact

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "tunings.json"
PAGE = HERE.parent / "docs" / "tunings.md"
SOURCES = HERE.parent / "packages" / "replay" / "src" / "npucompose_replay"
REPLAY = "npucompose_replay"
TABLED = ("tiny_ops", "gpt_decode", "gpt_prefill", "minilm", "resnet18", "t5_step")
SMALL = "hidden_size: 192, num_hidden_layers: 4, num_attention_heads: 6, intermediate_size: 512"
TEXT = "model.tokens=32"


def _of_transformers(architecture: str, configuration: str, *more: str) -> list[str]:
    return ["model=transformers", f"model.architecture={architecture}", f"model.config={{{configuration}}}", *more]


UNTUNED = {
    "vit": _of_transformers("ViTForImageClassification", f"{SMALL}, image_size: 64, patch_size: 8"),
    "mobilenet_v2": _of_transformers("MobileNetV2ForImageClassification", "image_size: 64, depth_multiplier: 0.5"),
    "regnet": _of_transformers(
        "RegNetForImageClassification", "hidden_sizes: [32, 64, 128, 256], depths: [1, 2, 2, 1], groups_width: 16"
    ),
    "qwen2": _of_transformers("Qwen2ForCausalLM", f"{SMALL}, num_key_value_heads: 2, vocab_size: 2048", TEXT),
    "distilbert": _of_transformers(
        "DistilBertForSequenceClassification",
        "dim: 256, n_layers: 4, n_heads: 8, hidden_dim: 768, vocab_size: 4096",
        TEXT,
    ),
    "gpt_neox": _of_transformers("GPTNeoXForCausalLM", f"{SMALL}, vocab_size: 2048", TEXT),
}
"""{a model that no tuning was made for: its overrides}."""
ALL, AGAIN = "all", "all, made again"


# -- what stands in the place of a tuning that is switched off


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _left(*_: Any, **__: Any) -> int:
    """A graph is left as it is, and nothing is moved or handed back."""
    return 0


@frozen
class Switch:
    """One function of a module, and what is called in its place; `wraps` makes that of the function."""

    where: str
    name: str
    instead: Callable[..., Any] | None = None
    wraps: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def found(self) -> tuple[Any, str, Any]:
        """(the module or class that has it, its name there, what it is)."""
        owner: Any = importlib.import_module(self.where)
        *path, last = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, last, vars(owner)[last]

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        owner, last, known = self.found()
        setattr(owner, last, self.wraps(known) if self.wraps is not None else self.instead)
        try:
            yield
        finally:
            setattr(owner, last, known)


def _never_direct(init: Callable[..., Any]) -> Callable[..., Any]:
    def made(self: Any, *given: Any, **more: Any) -> None:
        init(self, *given, **{**more, "direct": False})

    return made


def _made_by_torch(where_wanted: Callable[..., Any]) -> Callable[..., Any]:
    """Results of oneDNN's operators lie where torch makes them, so that no kept primitive can put them elsewhere."""

    def asked(self: Any, node: Any, traits: Any, *more: Any) -> Any:
        return None if traits.op.namespace == "mkldnn" else where_wanted(self, node, traits, *more)

    return asked


KERNELS, PRODUCTS = f"{REPLAY}.inductor.kernels", f"{REPLAY}.products"
GROUPS: Mapping[str, Mapping[str, tuple[Switch, ...]]] = {
    "text of Inductor's templates, all": {
        "flags of the compiler (sums in registers)": (Switch(KERNELS, "_registers_used", _nothing),),
        "sums in parts, compensated": (Switch(KERNELS, "sums_in_parts", _nothing),),
        "prefetch of packed weights": (Switch(KERNELS, "fetching_ahead", _nothing),),
        "blocks of a Zen 5, small products on one thread": (
            Switch(KERNELS, "_larger_blocks", _nothing),
            Switch(KERNELS, "_small_ones_on_one_thread", _nothing),
        ),
    },
    "forms of operators, all": {
        "known forms": (
            Switch(f"{PRODUCTS}.known_forms", "in_known_forms", _left),
            Switch(f"{PRODUCTS}.known_forms", "without_tanh", _left),
        ),
        "sums over rows": (Switch(f"{PRODUCTS}.known_forms", "sums_in_two", _left),),
        "folded scales": (Switch(f"{PRODUCTS}.folded_scales", "fold_scales", _left),),
        "in-place scatter": (Switch(f"{REPLAY}.inductor.in_place", "scatter_in_place", _left),),
    },
}
"""{related tunings: {one of them: what is switched off for it}}."""
ALONE: Mapping[str, tuple[Switch, ...]] = {
    "huge pages": (Switch(f"{REPLAY}.captured_graph", "move_weights", _left),),
    "kept primitives of oneDNN (native)": (
        Switch(f"{REPLAY}.capture.calls", "Calls._where_wanted", wraps=_made_by_torch),
    ),
    "held kernels (native)": (Switch(f"{REPLAY}.executor.native", "Native.__init__", wraps=_never_direct),),
}
WHOLE = {group: tuple(chain(*members.values())) for group, members in GROUPS.items()}
TUNINGS: Mapping[str, tuple[Switch, ...]] = {**WHOLE, **dict(chain(*(one.items() for one in GROUPS.values()))), **ALONE}
"""{a tuning, the groups first: what is switched off for it}."""
MODULES: Mapping[str, tuple[str, ...]] = {
    "text of Inductor's templates, all": ("inductor/kernels",),
    "sums in parts, compensated": ("inductor/sums",),
    "prefetch of packed weights": ("inductor/prefetch",),
    "known forms": ("products/known_forms",),
    "folded scales": ("products/folded_scales",),
    "in-place scatter": ("inductor/in_place",),
    "huge pages": ("memory/huge_pages",),
    "kept primitives of oneDNN (native)": ("executor/onednn_functions",),
}
"""{a tuning: the modules that are there for it, of a group beside those of its members}."""
GONE: Mapping[str, int | None] = {
    "contests of libraries, all": 355,
    "linears": 139,
    "batched products": 46,
    "attention by oneDNN": 61,
    "a template's GELU": 33,
    "cold contests": 57,
    "fused against recorded (whole graphs)": 208,
}
"""{what was measured and then taken out, on GONE_ON: its statements}."""
GONE_ON = "2026-11-29"


# -- one model, in a process of its own


def _own_cache(folder: Path, native: Path) -> None:
    """What is measured from here on is remembered in `folder`; the native replayer stays as it was built."""
    folder.mkdir()
    (folder / "native").symlink_to(native)
    os.environ["NPUCOMPOSE_CACHE"] = str(folder)


def measure(model: str, seconds: float, tunings: Sequence[str]) -> dict[str, Any]:
    """The ratios of one model: what each tuning is worth here, or why there is no figure."""
    import torch

    sys.path.insert(0, str(HERE))
    import performance
    from candidates import detached

    from npucompose.machine import cache_dir
    from npucompose.measure.timing import interleaved, paired_ratio
    from npucompose_replay.executor import build

    build.load()
    torch._dynamo.config.recompile_limit = 4 * (len(tunings) + 2)
    subject, inputs = performance.subject_of(UNTUNED.get(model) or performance.MODELS[model], 1)
    calls: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Any] = {}

    def ours(subject: Any) -> Any:
        return detached(subject, "mode=max-autotune")

    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        expected = performance.Expected.of(subject, inputs)
        native = cache_dir() / "native"
        for number, name in enumerate((ALL, AGAIN, *tunings)):
            print(f"{model}: {name}", file=sys.stderr, flush=True)
            _own_cache(Path(folder) / str(number), native)
            with contextlib.ExitStack() as off:
                for switch in TUNINGS.get(name, ()):
                    off.enter_context(switch.off())
                torch._dynamo.reset()
                row, made = performance._made(ours, subject.apart(), expected)
            rows[name] = row
            if made is not None:
                calls[name] = performance._bound(made.call, tuple(performance._copied(list(inputs[0]))))
        samples = interleaved(calls, warmup=4, min_calls=25, min_seconds=seconds, max_calls=20_000, uncounted=1)
    for name, taken in samples.items():
        rows[name] |= {"p50_us": round(taken.p50, 2), "without": round(paired_ratio(taken, samples[ALL]), 4)}
    return {"model": model, "rows": rows, **performance.surroundings(1)}


def run(model: str, seconds: float, tunings: Sequence[str]) -> None:
    """In a process of its own; the result file has it then."""
    command = [sys.executable, "-m", "benchmarks.tunings", "--here", model, "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for tuning in tunings:
        command += ["--tuning", tuning]
    done = subprocess.run(command, env=environment, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{model}: exit status {done.returncode}", file=sys.stderr)
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    known[model] = json.loads(done.stdout.splitlines()[-1])
    RESULTS.write_text(compact(known) + "\n")
    page()


# -- the table


def statements_of(tuning: str) -> int | None:
    """Statements of the modules of a tuning; None where it has none of its own."""
    from tools.budgets import statements_of as counted

    modules = [module for one in (tuning, *GROUPS.get(tuning, ())) for module in MODULES.get(one, ())]
    texts = [(SOURCES / f"{module}.py").read_text(encoding="utf-8") for module in modules]
    return sum(counted(ast.parse(text)) for text in texts) if texts else None


def page() -> None:
    known: dict[str, Any] = json.loads(RESULTS.read_text())
    models = [model for model in (*TABLED, *UNTUNED) if model in known]
    heading = [
        f"| switched off | statements | geometric mean | {' | '.join(models)} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in models)} |",
    ]
    lines = [
        "# What each tuning of the CPU engine is worth", "",
        "Written by `python -m benchmarks.tunings --page` from benchmarks/results/tunings.json. The time without",
        "the tuning over that with it, medians of calls in turns, one thread, `max-autotune` detached. The row",
        f"`{AGAIN}` is the same made twice: the noise. Never used for tuning: {', '.join(UNTUNED)}.", "",
        *heading,
        *(_row(known, models, tuning, statements_of(tuning)) for tuning in (AGAIN, *TUNINGS)), "",
        f"## Taken out on {GONE_ON}", "",
        "What is worth less than 3 % in the geometric mean and less than 10 % in the best cell goes, related ones as",
        "one group first; single members of a group are noisy, because they stand in for one another.",
        "A template's GELU was met only behind products that a contest had given to oneDNN.", "",
        *heading,
        *(_row(known, models, tuning, statements) for tuning, statements in GONE.items()), "",
    ]  # fmt: skip
    PAGE.write_text("\n".join([line for line in lines if line is not None]), encoding="utf-8")


def _row(known: Mapping[str, Any], models: Sequence[str], tuning: str, statements: int | None) -> str | None:
    """None for what was not measured."""
    figures = [known[model]["rows"].get(tuning, {}).get("without") for model in models]
    found = [figure for figure in figures if figure is not None]
    if not found:
        return None
    cells = " | ".join("–" if figure is None else f"{figure:.2f}" for figure in figures)
    return f"| {tuning} | {statements or '–'} | {geometric_mean(found):.3f} | {cells} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join((*TABLED, *UNTUNED)))
    parser.add_argument("--seconds", type=float, default=30.0, help="of counted calls, all makings of a model together")
    parser.add_argument("--tuning", action="append", choices=list(TUNINGS), help="only this one; several times")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the table anew")
    parser.add_argument("--here", metavar="model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tunings = options.tuning or list(TUNINGS)
    if options.here:
        print(json.dumps(measure(options.here, options.seconds, tunings)))
    elif options.page:
        page()
    else:
        models = options.models or [*TABLED, *UNTUNED]
        if wrong := [model for model in models if model not in (*TABLED, *UNTUNED)]:
            parser.error(f"unknown model {', '.join(wrong)}; choose from {', '.join((*TABLED, *UNTUNED))}")
        for model in models:
            run(model, options.seconds, tunings)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
