"""Many files from strangers, made at random: `python -m tools.fuzz_strangers [--inputs 50000] [--seed 15]`.

Overrides, YAML, recipes, scripts, ledgers, logs and reports, each a case of `tests/strangers/corpus.py` or values of
it and of `tests/cli/test_fuzz.py`, changed at random; in process, and `--processes` of them through a command line of
their own. None may end in a traceback, in an internal error, in another status than 0, 1 or 2, or take ten seconds.
Chunk number k is made from the seed and k alone and noted when it is done: started again, the script goes on where it
stopped. Exit status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tools import result_file
from tools.layout import CORE, python_path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz_strangers.json"
CHUNK, CHUNK_ALONE = 500, 25
FIRST_ALONE = 1_000_000
"""Numbers of the chunks that go through command lines begin here."""
LONGEST_S = 10.0
KINDS = (
    "override", "configuration", "recipe", "script", "ledger", "log", "report", "recipe", "script", "log", "report",
)  # fmt: skip


MARKS = (
    b"\n", b": ", b"- ", b"{", b"}", b"[", b"]", b'"', b"'", b"\t", b"\\", b"&a ", b"*a", b"<<: ", b"# ", b"\x00",
    b"\xff", b"\x1b[2J", b"${", b"}}", b"config.", b"(", b")", b"def f(c):\n    ", b"nan", b"null",
)  # fmt: skip


def sources() -> str:
    """A digest of what the verdicts depend on."""
    digest = hashlib.sha256()
    folders = [*(ROOT / name for name in (*CORE, "packages")), ROOT / "tests" / "strangers"]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def mutated(text: bytes, chance: random.Random, words: list[bytes]) -> bytes:
    """One to four changes: a word put in, a part dropped, doubled or moved, a byte changed."""
    made = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randint(0, len(made)), chance.choice((1, 1, 4, 20, 200))
        match chance.randint(0, 5):
            case 0 | 1:
                made[at:at] = chance.choice(words)
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = made[at : at + length] * chance.choice((1, 1, 2, 50))
            case 4:
                part = bytes(made[at : at + length])
                del made[at : at + length]
                to = chance.randint(0, len(made))
                made[to:to] = part
            case _ if made:
                made[at % len(made)] = chance.randint(0, 255)
    return bytes(made[:200_000])


class Maker:
    """Inputs of each kind; the same for the same random numbers."""

    def __init__(self, composing: Composing) -> None:
        self.composing = composing
        from tests.cli.test_fuzz import CHOICES, GROUPS, KEYS, ODD
        from tests.strangers import corpus

        self.corpus = corpus
        self.keys, self.groups = [key for key in KEYS if key], GROUPS
        self.values = [*CHOICES, *ODD, *corpus.TEXTS.values(), *corpus.REFERENCES, *map(str, corpus.NUMBERS)]
        self.words = [one.encode("utf-8", "replace")[:300] for one in (*self.values, *self.keys, *corpus.TAGS)]
        self.words += list(MARKS)
        seeds: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for case in corpus.corpus().values():
            kind = case.name.partition("/")[0].replace("dump", "log")
            if kind in seeds and not case.alone:
                seeds[kind].append(case)
        self.seeds = seeds

    def case(self, kind: str, chance: random.Random) -> Any:
        if kind == "override":
            return self._overrides(chance)
        if kind == "ledger":
            return self._ledger(chance)
        while True:
            seed = chance.choice(self.seeds[kind])
            name = next(one for one in seed.files if one.startswith("theirs/"))
            content = seed.files[name]
            if not (isinstance(content, str) and (content == "|" or content.startswith("->") or len(content) > 50_000)):
                break
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        files = {**seed.files, name: mutated(data, chance, self.words)}
        return self.corpus.Case(name=kind, files=files, command=seed.command)

    def _overrides(self, chance: random.Random) -> Any:
        words = ["explain", "--options", "--json"]
        for _ in range(chance.randint(1, 4)):
            sign = chance.choice(("", "", "", "+", "++", "~"))
            key = chance.choice((*self.keys, *self.groups))
            value = chance.choice(self.values)
            if chance.random() < 0.3:
                value = mutated(value.encode("utf-8", "replace"), chance, self.words).decode("utf-8", "replace")
            words.append(f"{sign}{key}={value}".replace("\x00", ""))
        return self.corpus.Case(name="override", files={}, command=tuple(words))

    def _ledger(self, chance: random.Random) -> Any:
        from npucompose.experiment.sweep.run import PointEntry, PointLedger

        with tempfile.TemporaryDirectory() as place:
            with PointLedger.open(Path(place)) as ledger:
                ledger.write(PointEntry(key=f"{n:064x}", status="ok", overrides=(f"seed={n}",)) for n in range(3))
                for _ in range(chance.randint(0, 3)):
                    value = chance.choice((chance.choice(self.values), b"\xff", -1, 2**62, 0.5, None, "[[", "{}"))
                    with contextlib.suppress(Exception):  # what SQLite itself refuses
                        ledger.connection.execute(
                            f"UPDATE points SET {chance.choice(PointLedger.columns())} = ?", (value,)
                        )
            data = (Path(place) / "sweeps.sqlite").read_bytes()
        if chance.random() < 0.5:
            data = mutated(data, chance, self.words)
        shown = chance.choice((["report", "theirs"], ["report", "theirs", "--markdown"], ["report", "theirs", "--csv"]))
        return self.corpus.Case(name="ledger", files={"theirs/sweeps.sqlite": data}, command=tuple(shown))


def problem_of(found: dict[str, Any]) -> str | None:
    """What is wrong with the end of a command; None for nothing."""
    told = found["out"] + found["err"]
    if found["raised"] or found["status"] not in (0, 1, 2):
        return f"status {found['status']}: {found['raised'] or found['err'][-400:]}"
    if "Traceback" in told or "internal error" in told:
        return f"a traceback or an internal error: {found['err'][-400:]}"
    if found["status"] == 2 and not found["err"].strip():
        return "refused without a sentence"
    if not told.replace("\n", "").replace("\t", "").isprintable():
        return "a control character was shown"
    return f"{found['seconds']:.1f} s" if found["seconds"] > LONGEST_S else None


def alone(case: Any) -> dict[str, Any]:
    """The case through a command line of its own."""
    began = time.monotonic()
    program = [sys.executable, "-c", "import sys; from npucompose.cli import main; sys.exit(main())", *case.command]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    ran = subprocess.run(program, capture_output=True, env=environment, check=False, timeout=120)
    out, err = (text.decode(errors="replace") for text in (ran.stdout, ran.stderr))
    seconds = (time.monotonic() - began) / 3  # starting Python is not what is measured, and the machine is shared
    return {"status": ran.returncode, "raised": None, "out": out, "err": err, "seconds": seconds}


class Composing:
    """Overrides and files of a folder, as far as a job, with what the package itself holds read once."""

    def __init__(self, place: Path) -> None:
        from npucompose.compose.tree import Composer
        from npucompose.experiment.job import PlanContext

        self.place, self.around = place, PlanContext()
        (place / "theirs").mkdir()
        self.composer = Composer(config_dirs=[str(place / "theirs")])
        self.number = 0

    def run(self, case: Any) -> dict[str, Any]:
        """As `judge.run`; each file has a name of its own, for what is remembered by name."""
        from npucompose.errors import ConfigError, visible
        from npucompose.experiment.job import Job
        from tests.strangers.judge import prepared

        self.number += 1
        name = f"x{self.number}"
        words = [one.replace("=evil", f"={name}").replace("[evil]", f"[{name}]") for one in case.command[3:]]
        files = {at.replace("/evil.yaml", f"/{name}.yaml"): content for at, content in case.files.items()}
        shutil.rmtree(self.place / "theirs")
        prepared(type(case)(name=case.name, files=files, command=case.command), self.place)
        status, raised, err = 0, None, ""
        began = time.monotonic()
        try:
            overrides = [one for one in words if one not in ("--config-dir", "theirs")]
            Job.from_composed(self.composer.compose(overrides), self.around)
        except ConfigError as error:
            status, err = 2, visible("\n".join(error.problems))
        except BaseException as error:  # noqa: BLE001  the verdict is ours
            status, raised = 3, f"{type(error).__name__}: {error}"[:400]
        return {"status": status, "raised": raised, "out": "", "err": err, "seconds": time.monotonic() - began}


def chunk(maker: Maker, seed: int, number: int) -> dict[str, Any]:
    """What became of the inputs of one chunk: how many of each kind and end, and what was found."""
    from tests.strangers import judge

    chance = random.Random(f"{seed} {number}")
    kinds, ends, found = Counter[str](), Counter[str](), list[dict[str, Any]]()
    longest = 0.0
    is_alone = number >= FIRST_ALONE
    size = CHUNK_ALONE if is_alone else CHUNK
    for n in range(size):
        kind = KINDS[n % len(KINDS)]
        case = maker.case(kind, chance)
        if kind in ("override", "configuration") and not is_alone:
            end = maker.composing.run(case)
        else:
            with tempfile.TemporaryDirectory(prefix="npucompose-fuzz-") as place:
                judge.prepared(case, Path(place))
                before = Path.cwd()
                os.chdir(place)
                try:
                    end = alone(case) if is_alone else judge.run(case)
                finally:
                    os.chdir(before)
        kinds[kind] += 1
        ends[f"status {end['status']}"] += 1
        longest = max(longest, end["seconds"])
        if (problem := problem_of(end)) is not None:
            files = {name: repr(content)[:2000] for name, content in case.files.items()}
            found.append({"input": n, "problem": problem, "command": list(case.command), "files": files})
    head = {"chunk": number, "inputs": size, "processes": size * is_alone, "longest_s": round(longest, 2)}
    return {**head, **kinds, **ends, "found": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--processes", type=int, default=500, help="so many of them through a command line")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--afresh", action="store_true", help="forget what the file holds")
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "cli")]
    head = {"seed": given.seed, "chunk": CHUNK, "sources": sources()}
    chunks: list[dict[str, Any]] = []
    if given.out.is_file() and not given.afresh:
        before = json.loads(given.out.read_text())
        if (before["seed"], before["chunk"]) != (given.seed, CHUNK):
            raise SystemExit(f"{given.out} was made with another seed or chunk: --afresh begins it anew.")
        chunks = before["chunks"]
    place = Path(tempfile.mkdtemp(prefix="npucompose-fuzz-"))
    maker = Maker(Composing(place))
    done = {one["chunk"] for one in chunks}
    inside = range(-(-(given.inputs - given.processes) // CHUNK))
    beside = (FIRST_ALONE + n for n in range(-(-given.processes // CHUNK_ALONE)))
    for number in (n for n in (*inside, *beside) if n not in done):
        own = chunk(maker, given.seed, number)
        chunks.append({**own, "sources": head["sources"]})
        write(given.out, head, chunks)
        print(json.dumps(own)[:3000], flush=True)
    shutil.rmtree(place)
    return int(any(one["found"] for one in chunks))


def write(path: Path, head: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    totals = Counter[str]()
    for one in chunks:
        totals.update({key: value for key, value in one.items() if isinstance(value, int) and key != "chunk"})
    longest = max(one["longest_s"] for one in chunks)
    top = {**head, "totals": {**totals, "found": sum(len(one["found"]) for one in chunks), "longest_s": longest}}
    result_file.write(path, top, chunks=chunks)


if __name__ == "__main__":
    sys.exit(main())
