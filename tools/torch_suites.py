"""PyTorch's own tests, their graphs called through npucompose: `python -m tools.torch_suites FOLDER [--mode …]`.

FOLDER is PyTorch's `test` folder, from a source package or a clone; nothing is fetched, and nothing of it is kept. Each
graph that Dynamo makes in a test is judged by tools/judged_graphs.py, against aot_eager in reduce-overhead (bit for
bit), against eager and Inductor in max-autotune; what the test itself asserts of torch is not looked at.

Tests run one after the other in a process that is started anew when one crashes it or takes too long. What came of each
is noted at once in the cache folder, with a digest of the sources that it was judged with: started again, the script
goes on where it stopped. `--again PATTERN` forgets tests that match, `--failed` those that were not right. The counts
go to benchmarks/results/torch_suites.json. Exit status 1 where any graph was wrong, refused, crashed or hung.

The files may be of another torch: names that they import and that this torch lacks are stood in for, flags by False,
decorators by ones that change nothing. The test files need the package expecttest.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
import unittest
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from npucompose.machine import cache_dir
from tools import result_file

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_suites.json"
SUITES = {
    "inductor": ("inductor.test_torchinductor", "*CpuTests.*"),
    "inductor_dynamic": ("inductor.test_torchinductor_dynamic_shapes", "DynamicShapesC*Tests.*"),
    "aotdispatch": ("test_aotdispatch", "*"),
    "modules": ("dynamo.test_modules", "*"),
    "functions": ("dynamo.test_functions", "*"),
    "misc": ("dynamo.test_misc", "*"),
    "repros": ("dynamo.test_repros", "*"),
    "higher_order_ops": ("dynamo.test_higher_order_ops", "*"),
    "hooks": ("dynamo.test_hooks", "*"),
    "ctx_manager": ("dynamo.test_ctx_manager", "*"),
    "unspec": ("dynamo.test_unspec", "*"),
    "autograd_function": ("dynamo.test_autograd_function", "*"),
    "activation_checkpointing": ("dynamo.test_activation_checkpointing", "*"),
}
"""{name: (module, the tests of it)}."""
LIMIT_S = {"reduce-overhead": 180.0, "max-autotune": 600.0}
STARTS_S = 1200.0
"""Of the first process, which may build the native replayer."""
MEMORY = 10 << 30
GUARDS_HOOK = "guard_manager_clone_hook_fn"
"""With which a suite has Dynamo test the copying of guards."""
OURS = "ours"
BAD = ("wrong", "refused", "crashed", "hung")
"""What ends in exit status 1."""
ORDER = (*BAD, "as inductor", "right", "skipped", "no graph")
"""A test is the first of these that one of its graphs is."""


# -- in the process that runs tests


class _Absent:
    """In the place of a name that this torch lacks."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __enter__(self) -> _Absent:
        return self

    def __exit__(self, *_: object) -> None: ...


def stand_in(folder: Path) -> None:
    """Give torch's modules each name that a test file imports of them and that they lack."""
    for file in sorted({*folder.glob("*/*.py"), *folder.glob("*.py")}):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch") and not node.level:
                _give(str(node.module), [alias.name for alias in node.names])


def _give(module: str, names: Iterable[str]) -> None:
    if not module.startswith(("torch._dynamo", "torch._inductor", "torch.testing._internal", "torch._functorch")):
        return
    try:
        found = importlib.import_module(module)
    except Exception:  # noqa: BLE001 - of another device, or gone
        return
    for name in names:
        if name != "*" and not hasattr(found, name):
            try:
                importlib.import_module(f"{module}.{name}")
            except Exception:  # noqa: BLE001
                setattr(found, name, _Absent())


def loaded(folder: Path, module: str) -> dict[str, unittest.TestCase]:
    sys.path[:0] = [str(folder), str(folder / "functorch"), str(folder / "dynamo"), str(folder / "inductor")]
    stand_in(folder)
    found: dict[str, unittest.TestCase] = {}

    def add(suite: Any) -> None:
        for one in suite:
            if isinstance(one, unittest.TestSuite):
                add(one)
            else:
                found[one.id().removeprefix(f"{module}.")] = one
                if hasattr(one, GUARDS_HOOK):  # of another torch: it takes other arguments
                    setattr(one, GUARDS_HOOK, lambda manager, *_: manager)

    add(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module)))
    return found


def work(folder: Path, suite: str, mode: str, notes: Path) -> None:
    """Run the tests that stdin names, a line each, and note what comes of them."""
    import resource

    import torch
    import torch._dynamo.eval_frame as eval_frame
    import torch._functorch.aot_autograd as aot

    from npucompose_replay.executor import build
    from tools.judged_graphs import Judge

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    out = notes.open("a", encoding="utf-8", buffering=1)

    def note(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    judge = Judge(mode, lambda stage: note(stage=stage))  # type: ignore[arg-type]
    genuine, aot_function = eval_frame.get_compiler_fn, aot.aot_function

    def get_compiler_fn(backend: Any) -> Any:
        found = genuine(backend)
        return found if backend is None else judge.judging(found)

    def judged_aot_function(function: Any, *how: Any, **more: Any) -> Any:
        """What is compiled without Dynamo is judged as Dynamo has it."""
        called, waiting = aot_function(function, *how, **more), True

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal waiting
            if waiting and not kwargs and isinstance(function, type(work)):
                waiting = False
                copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
                try:
                    with torch.no_grad():
                        torch.compile(function, backend="eager")(*copies)
                except Exception:  # noqa: BLE001 - the test's own call says what it thinks of that
                    pass
            return called(*args, **kwargs)

        return call

    eval_frame.get_compiler_fn = get_compiler_fn
    aot.aot_function = judged_aot_function
    tests = loaded(folder, SUITES[suite][0])
    with suppress(build.Unavailable):  # the portable replayer is judged then; no test waits for a compiler
        build.load()
    for module in list(sys.modules.values()):
        if getattr(module, "aot_function", None) is aot_function:
            module.aot_function = judged_aot_function  # type: ignore[attr-defined]
    note(stage="loaded", tests=sorted(tests))
    for line in sys.stdin:
        name, judge.found = line.strip(), []
        note(stage="test", test=name)
        begun = time.monotonic()
        result = unittest.TestResult()
        torch._dynamo.reset()
        tests[name].run(result)
        found = [(one.kind, one.words) for one in judge.found]
        note(test=name, found=found, passed=result.wasSuccessful(), took=round(time.monotonic() - begun, 2))


# -- in the process that watches


def sources() -> str:
    digest = hashlib.sha256()
    package = ROOT / "src" / "npucompose"
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".cpp", ".h")]
    for path in (*sorted(files), *sorted((ROOT / "tools").glob("judged_*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class State:
    """What is known of the tests of a suite in a mode: a line of JSON for each."""

    def __init__(self, suite: str, mode: str) -> None:
        self.file = cache_dir() / "torch_suites" / f"{suite}-{mode}.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.is_file() else []
        self.known: dict[str, dict[str, Any]] = {entry["test"]: entry for entry in map(json.loads, lines)}

    def add(self, entry: dict[str, Any]) -> None:
        self.known[entry["test"]] = entry
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.known.pop(name, None)
        self.file.write_text("".join(json.dumps(entry) + "\n" for entry in self.known.values()), encoding="utf-8")


def kind_of(entry: dict[str, Any]) -> str:
    kinds = {kind for kind, _ in entry["found"]}
    return next((kind for kind in ORDER if kind in kinds), "no graph")


class Worker:
    def __init__(self, folder: Path, suite: str, mode: str, notes: Path) -> None:
        notes.unlink(missing_ok=True)
        self._notes, self._read, self.stage, self.tests = notes, 0, "", [""]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.torch_suites", str(folder), "--work", suite, mode, str(notes)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment,
            text=True,
        )  # fmt: skip

    def lines(self) -> Iterator[dict[str, Any]]:
        """What was noted since the last look."""
        if not self._notes.is_file():
            return
        with self._notes.open(encoding="utf-8") as file:
            file.seek(self._read)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read += len(line.encode())
                yield json.loads(line)

    def wait(self, limit_s: float) -> dict[str, Any] | str:
        """The next entry, or `crashed` or `hung`."""
        deadline = time.monotonic() + limit_s
        while True:
            alive = self.process.poll() is None
            for line in self.lines():
                self.stage = line.get("stage", self.stage)
                if "found" in line or "tests" in line:
                    return line
            if not alive:
                return "crashed"
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                return "hung"
            time.sleep(0.02)

    def run(self, test: str, limit_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{test}\n")
        self.process.stdin.flush()
        entry = self.wait(limit_s)
        if isinstance(entry, dict):
            return entry
        ours = self.stage == OURS
        kind, words = (
            (entry, f"exit status {self.process.returncode}") if ours else ("skipped", f"torch's own: {entry}")
        )
        return {"test": test, "found": [(kind, words)], "passed": False, "took": limit_s if entry == "hung" else 0}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._notes.unlink(missing_ok=True)


def judge_suite(folder: Path, suite: str, mode: str, state: State, pattern: str) -> None:
    now = sources()
    notes = state.file.with_suffix(f".{os.getpid()}.notes")
    worker: Worker | None = None
    left: list[str] | None = None
    try:
        while left is None or left:
            if worker is None or worker.process.poll() is not None:
                worker = Worker(folder, suite, mode, notes)
                begun = worker.wait(STARTS_S)
                if isinstance(begun, str):
                    raise SystemExit(f"{suite}: its tests cannot be loaded ({begun}): python -c 'import expecttest'?")
                if left is None:
                    wanted = fnmatch.filter(begun["tests"], SUITES[suite][1])
                    left = [name for name in fnmatch.filter(wanted, pattern) if name not in state.known]
                    print(f"{suite}, {mode}: {len(wanted)} tests, {len(left)} to do", flush=True)
            if not left:
                break
            entry = worker.run(left.pop(0), LIMIT_S[mode])
            state.add({**entry, "sources": now})
            if kind_of(entry) in BAD:
                print(f"{suite} {entry['test']}: {[one for one in entry['found'] if one[0] in BAD]}", flush=True)
    finally:
        if worker is not None:
            worker.close()


def counts(state: State) -> dict[str, int]:
    kinds = Counter(kind_of(entry) for entry in state.known.values())
    return {kind: kinds[kind] for kind in ORDER if kinds[kind]}


def write(version: str) -> int:
    """The result file; how many tests are bad."""
    import torch

    rows: list[dict[str, Any]] = []
    named: list[dict[str, Any]] = []
    bad = 0
    for mode in LIMIT_S:
        for suite in SUITES:
            state = State(suite, mode)
            if not state.known:
                continue
            graphs = sum(len(entry["found"]) for entry in state.known.values())
            rows.append({"suite": suite, "mode": mode, "graphs": graphs, **counts(state)})
            for entry in state.known.values():
                kind = kind_of(entry)
                bad += kind in BAD
                if kind in (*BAD, "as inductor"):
                    words = next(words for one, words in entry["found"] if one == kind)
                    named.append({"mode": mode, "suite": suite, "test": entry["test"], "is": kind, "why": words})
    head = {"torch": torch.__version__, "tests_of": version, "totals": {mode: _totals(rows, mode) for mode in LIMIT_S}}
    result_file.write(RESULTS, head, suites=rows, differing=named)
    return bad


def _totals(rows: Iterable[dict[str, Any]], mode: str) -> dict[str, int]:
    mine = [row for row in rows if row["mode"] == mode]
    found = {kind: sum(row.get(kind, 0) for row in mine) for kind in ORDER}
    return {"compared": sum(found[kind] for kind in (*BAD, "as inductor", "right")), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=LIMIT_S, action="append")
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--tests", default="*", help="only those that match this pattern")
    parser.add_argument("--again", help="forget what is known of tests that match this pattern")
    parser.add_argument("--failed", action="store_true", help="forget what is known of tests that were not right")
    parser.add_argument("--version", default="", help="of which torch the tests are, for the result file")
    parser.add_argument("--work", nargs=3, metavar=("SUITE", "MODE", "NOTES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.folder, given.work[0], given.work[1], Path(given.work[2]))
        return 0
    if not (given.folder / "dynamo" / "test_misc.py").is_file():
        parser.error(f"{given.folder} holds no dynamo/test_misc.py: it is not PyTorch's test folder")
    for mode in given.mode or LIMIT_S:
        for suite in given.suite or SUITES:
            state = State(suite, mode)
            gone = [name for name, entry in state.known.items() if given.failed and kind_of(entry) in BAD]
            state.forget([*gone, *fnmatch.filter(state.known, given.again or "")])
            judge_suite(given.folder, suite, mode, state, given.tests)
            print(f"{suite}, {mode}: {counts(state)}", flush=True)
    return int(write(given.version) > 0)


if __name__ == "__main__":
    sys.exit(main())
