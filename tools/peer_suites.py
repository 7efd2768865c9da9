"""Run public tests of torch_npu and TorchAir on the simulated runtime, and write which pass and why the others do not.

    pip install --target WHERE expecttest             # torch's own tests need it, npucompose does not
    PYTHONPATH=WHERE python -m tools.peer_suites --pytorch REPO --torchair REPO [--out FOLDER] [SUITE…]

A REPO is a clone, or a repository without a work tree, that has the commit which peer_suites.yaml names; the tests are
taken out of it into `--out`, where their output lies afterwards. Written are tools/peer_suites.json, counts and names
alone, and docs/public_suites.md. Exit 1 where a failure has no class.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import frozen

from npucompose.input_safety import load_yaml
from npucompose.table.structure import structure
from npucompose.targets.npu_offline import wheel
from tools.forked_tests import Outcome, forked, outcomes

HERE = Path(__file__).resolve().parent
SUITES, RESULTS, PAGE = HERE / "peer_suites.yaml", HERE / "peer_suites.json", HERE.parent / "docs" / "public_suites.md"
HOURS = 3600.0
GOOD = ("passed", "skipped")
UNKNOWN = "unknown"
"""The class of a failure that no row explains."""


@frozen(kw_only=True)
class Suite:
    """Files of one repository."""

    repository: str
    commit: str
    folder: str
    files: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Further folders that the tests read."""
    own_device: bool = False
    """The tests bring a device and a torch.npu of their own, which are left out."""


@frozen(kw_only=True)
class FailureClass:
    """Failures with one cause; `patterns` are searched in the end of the traceback."""

    because: str
    patterns: tuple[str, ...]


@frozen(kw_only=True)
class PeerSuites:
    """tools/peer_suites.yaml."""

    suites: Mapping[str, Suite]
    classes: Mapping[str, FailureClass]

    def class_of(self, outcome: Outcome) -> str:
        text = outcome.text if outcome.kind == "failed" else f"{outcome.kind}\n{outcome.text}"
        found = (name for name, one in self.classes.items() if any(re.search(p, text) for p in one.patterns))
        return next(found, UNKNOWN)


def peer_suites() -> PeerSuites:
    return structure(PeerSuites, load_yaml(SUITES), SUITES.name)


def take_out(suite: Suite, repository: Path, into: Path) -> Path:
    """The suite's folder of its commit, as files below `into`."""
    into.mkdir(parents=True, exist_ok=True)
    paths = [suite.folder, *suite.needs]
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", suite.commit, *paths], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(into)], input=archive.stdout, check=True)
    return into / suite.folder


def run(suites: Mapping[str, Suite], repositories: Mapping[str, Path], out: Path) -> None:
    """Leaves `out/SUITE.json` for each: {file: {test: (kind, text)}}. This process becomes a device."""
    folders = {name: take_out(one, repositories[one.repository], out / name / "files") for name, one in suites.items()}
    os.chdir(out)  # torch writes what a test lets it dump where the process began
    from tools import alias_device

    for step, error in alias_device.start().items():
        print(f"start of torch_npu: {step}: {error}", file=sys.stderr)
    for name, suite in suites.items():
        found = {file: _outcomes(folders[name] / file, suite, out / name) for file in suite.files}
        (out / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def _outcomes(file: Path, suite: Suite, out: Path) -> dict[str, list[str]]:
    def act() -> dict[str, Any]:
        if suite.own_device:
            from tools.alias_device import without_their_device

            without_their_device(file.parent)
        return {test: [one.kind, one.text[-6000:]] for test, one in outcomes(file, out / file.stem)}

    made = forked(act, out / f"{file.stem}.log", HOURS)
    found = made if isinstance(made, dict) else {"import": [made, ""]}
    counts = Counter(kind for kind, _ in found.values())
    print(f"{out.name} {file.name}: {dict(counts)}", file=sys.stderr, flush=True)
    return found


def summary(found: Mapping[str, Mapping[str, Sequence[str]]], known: PeerSuites) -> dict[str, Any]:
    """What is kept of a suite: counts of each file, and {class: names of its failures}."""
    counts, failures = dict[str, dict[str, int]](), dict[str, list[str]]()
    for file, tests in sorted(found.items()):
        outcomes = {test: Outcome(*said) for test, said in sorted(tests.items())}
        kinds = Counter(one.kind if one.kind in GOOD else "failed" for one in outcomes.values())
        counts[file] = dict(sorted(kinds.items()))
        for test, one in outcomes.items():
            if one.kind not in GOOD:
                failures.setdefault(known.class_of(one), []).append(f"{file}::{test}")
    return {"files": counts, "failures": dict(sorted(failures.items()))}


HEAD = """# Public tests on the simulated runtime

Written by `python -m tools.peer_suites`, which takes these tests out of their repositories and runs them, unchanged, on
the simulated runtime of `target=npu_offline` (torch_npu {torch_npu}, torch {torch}). They ask for an eager device, and
npucompose has none: `tools/alias_device.py` gives CPU memory to whatever is asked for on `npu`. What passes says that
torch_npu's own Python does here what its authors expect; values are the CPU's.

| tests | at | passed | failed | skipped | all |
|---|---|---|---|---|---|
{rows}

## Why the others fail

{classes}
"""


def page(results: Mapping[str, Any], known: PeerSuites) -> str:
    """docs/public_suites.md."""
    rows, classes = list[str](), list[str]()
    for name, suite in known.suites.items():
        if name not in results["suites"]:
            continue
        counted = sum((Counter(one) for one in results["suites"][name]["files"].values()), Counter[str]())
        numbers = [counted[kind] for kind in ("passed", "failed", "skipped")]
        where = f"{suite.repository} `{suite.folder}`, {len(suite.files)} files"
        rows.append(f"| {where} | {suite.commit[:8]} | {' | '.join(map(str, [*numbers, sum(numbers)]))} |")
    for why, one in known.classes.items():
        files = Counter[str]()
        for suite in results["suites"].values():
            files.update(test.partition("::")[0] for test in suite["failures"].get(why, ()))
        if files:
            listed = ", ".join(f"{file} {count}" for file, count in sorted(files.items()))
            classes.append(f"**{why}** ({files.total()}): {one.because}\n{listed}.")
    return HEAD.format(rows="\n".join(rows), classes="\n\n".join(classes), **results["versions"])


def written(results: Mapping[str, Any]) -> str:
    """The text of tools/peer_suites.json."""
    return json.dumps(results, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", help="suites of peer_suites.yaml (default: all); of others nothing changes")
    parser.add_argument("--pytorch", type=Path, help="Ascend/pytorch")
    parser.add_argument("--torchair", type=Path, help="Ascend/torchair")
    parser.add_argument("--out", type=Path, help="a folder for the tests and their output (default: a temporary one)")
    parser.add_argument(
        "--judge", action="store_true", help="run nothing: judge anew what an earlier run left in --out"
    )
    given = parser.parse_args(arguments)
    known = peer_suites()
    if wrong := sorted(set(given.suite) - set(known.suites)):
        parser.error(f"no suite {', '.join(wrong)}; there are: {', '.join(known.suites)}")
    chosen = {name: one for name, one in known.suites.items() if not given.suite or name in given.suite}
    out = (given.out or Path(tempfile.mkdtemp(prefix="peer_suites_"))).resolve()
    repositories = {"Ascend/pytorch": given.pytorch, "Ascend/torchair": given.torchair}
    if not given.judge:
        if missing := sorted({one.repository for one in chosen.values() if repositories[one.repository] is None}):
            parser.error(f"where is {', '.join(missing)}? Give --pytorch and --torchair.")
        run(chosen, {name: place.resolve() for name, place in repositories.items() if place}, out)
    return write(chosen, out, known)


def write(chosen: Mapping[str, Suite], out: Path, known: PeerSuites) -> int:
    """Both files, from what lies in `out`; 1 where a failure has no class."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"suites": {}}
    for name in chosen:
        found = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        kept["suites"][name] = summary(found, known)
    versions = {"torch": version("torch").partition("+")[0], "torch_npu": wheel.version(wheel.locate())}
    results = {"versions": versions, "suites": dict(sorted(kept["suites"].items()))}
    RESULTS.write_text(written(results), encoding="utf-8")
    PAGE.write_text(page(results, known), encoding="utf-8")
    unknown = [test for name in chosen for test in results["suites"][name]["failures"].get(UNKNOWN, ())]
    for test in unknown:
        print(f"no class: {test}")
    print(f"{out} has the output of each test")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
