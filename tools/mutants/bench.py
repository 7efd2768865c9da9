"""A copy of the tree with a server that has torch loaded: where mutants are put in and tests are run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, frozen

from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler
from npucompose_replay.executor import build
from tools.layout import python_path
from tools.mutants import objects, trees
from tools.mutants.mutation import Mutation

PRELOADED = (
    "torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.export", "torch.fx.passes.graph_drawer", "numpy",
    "sympy", "hydra", "hydra._internal.hydra", "omegaconf", "yaml", "attrs", "cattrs", "rich.console", "rich.table",
    "coverage", "hypothesis.strategies", "unittest.mock",
)  # fmt: skip
"""What takes seconds to import and is not the product's."""
SLACK_S, TIMES = 60.0, 10.0
"""A test may take this long (the first one imports the product), and this many times what it took without a mutant."""


@frozen(kw_only=True)
class Run:
    """What came of a run of tests: the first failure, the test that hung, or neither."""

    failed: str | None
    words: str
    hung: str | None
    ended: Mapping[str, tuple[str, float]]
    """The outcome and the seconds of each test that came to its end."""
    seconds: float
    broken: str | None = None
    """Why no test was run, where that is nobody's verdict."""


@define(kw_only=True)
class Bench:
    tree: Path
    server: subprocess.Popen[str]
    temporary: Path
    numbers: Iterator[int]

    @classmethod
    @contextlib.contextmanager
    def opened(cls, root: Path, place: Path, store: Path, preloaded: Sequence[str] = PRELOADED) -> Iterator[Bench]:
        """A fresh copy of `root` at `place`; C++ objects are kept in `store`, which benches share."""
        place.mkdir(parents=True, exist_ok=True)
        tree = trees.copied(root, place / "tree")
        temporary = place / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            "PYTHONPATH": python_path(tree),
            "TMPDIR": str(temporary),
            CACHE_VARIABLE: str(_cache(place / "cache")),
            **_compiler(place, store),
        }
        command = [sys.executable, "-m", "tools.mutants.server", *preloaded]
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            bench = cls(tree=tree, server=server, temporary=temporary, numbers=itertools.count())
            bench._answer()
            try:
                yield bench
            finally:
                assert server.stdin is not None
                server.stdin.close()

    @contextlib.contextmanager
    def with_mutant(self, mutation: Mutation) -> Iterator[None]:
        with trees.mutated(self.tree, mutation, next(self.numbers)):
            yield

    def run(
        self,
        files: Sequence[str],
        tests: Mapping[str, float] | None = None,
        *,
        trace: Path | None = None,
        all_of_them: bool = False,
    ) -> Run:
        """The tests of `files` that are named in `tests` with the seconds they take; the first failure ends it."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--rootdir={self.tree}", "--tb=short"]
        order = {
            "files": list(files),
            "tests": None if tests is None else list(tests),
            "options": [*options, f"--basetemp={self.temporary / 'pytest'}", *([] if all_of_them else ["-x"])],
            "limits": {test: SLACK_S + TIMES * seconds for test, seconds in (tests or {}).items()},
            "limit": 600.0 if tests is None else SLACK_S,
            "environment": {},
            "trace": str(trace) if trace else None,
            "log": str(self.tree.parent / "output.txt"),
        }
        assert self.server.stdin is not None
        self.server.stdin.write(f"{json.dumps(order)}\n")
        self.server.stdin.flush()
        return _run(self._answer())

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A Python of its own, in the tree."""
        environment = dict(os.environ) | self._environment()
        return subprocess.run(
            [sys.executable, *words], cwd=self.tree, env=environment, capture_output=True, text=True, check=False
        )

    def _environment(self) -> dict[str, str]:
        text = Path(f"/proc/{self.server.pid}/environ").read_text()
        return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)

    def _answer(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        if not line:
            raise RuntimeError(f"the test server of {self.tree} ended with status {self.server.wait()}")
        return json.loads(line)


def _run(answer: dict[str, Any]) -> Run:
    said = answer["said"]
    failures = [word for word in said if "failed" in word]
    failed, words = (failures[0]["failed"], failures[0]["words"]) if failures else (None, "")
    begun = [word["begun"] for word in said if "begun" in word]
    ended = {word["ended"]: (word["outcome"], word["seconds"]) for word in said if "ended" in word}
    broken = None
    if not any("over" in word for word in said) and answer["hung"] is None:
        failed, words = begun[-1] if begun else "collecting", f"the process ended with status {answer['status']}"
    elif failed is None and answer["hung"] is None and answer["status"] not in (0, 5):
        broken = f"pytest ended with status {answer['status']}: {answer['tail'][-600:]}"
    return Run(failed=failed, words=words, hung=answer["hung"], ended=ended, seconds=answer["seconds"], broken=broken)


def _cache(place: Path) -> Path:
    """A cache of its own, for nothing that a mutant made may stay: a copy of what the user once fetched or built.

    A link would do, and is not believed: whoever may write where it leads has the product run his code.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    kept = [Path("torch_npu")]
    if build.state().kind == "built":
        kept.append(build.folder().relative_to(cache_dir()))
    for name in kept:
        if (cache_dir() / name).is_dir():
            (place / name).parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copytree(cache_dir() / name, place / name, symlinks=True)
    return place


def _compiler(place: Path, store: Path) -> dict[str, str]:
    """CXX: the compiler, keeping its objects; nothing where there is none."""
    found = compiler()
    if found is None:
        return {}
    script = place / "g++"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{objects.__file__}" "{found}" "{store}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"CXX": str(script)}
