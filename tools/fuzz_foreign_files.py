"""SQLite files and tensors changed at random: `python -m tools.fuzz_foreign_files [--ledgers 20000] [--tensors 50000]`.

Of a ledger bytes are flipped, pages exchanged, schemas rewritten, journals and write-ahead logs put beside it; then it
is read and opened. Of `.npy`, `.pt` and `.safetensors` the heads are changed. None may end otherwise than in an answer
or in a sentence (exit status 0 or 2), take two seconds, take 64 MiB more than its file, start anything, or write, take
away or ask for anything outside: all runs under strace, the witness. Exit status 1 where one did, 2 without strace.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.strangers import trace
from tools.layout import python_path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S, MOST_BYTES = 2.0, 64 << 20
HANGS_S = 60
"""Of any time: what waits takes no time of the processor."""
ITS_OWN = ("in/sweeps.sqlite", "tmp/")
"""What a round may write in its place: the ledger with its companions, private copies."""
WARM = 20
"""Rounds before the first that counts: what is imported on demand is imported then."""


def changed(data: bytes, chance: random.Random, head: int) -> bytes:
    """One to eight changes, most of them in the first bytes."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(min(head, len(made)) if chance.random() < 0.7 else len(made))
        match chance.randrange(5):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at : at + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", chance.randbytes(4)))
            case 2:
                del made[at : at + chance.choice((1, 8, 512))]
            case 3:
                made[at:at] = chance.randbytes(chance.choice((1, 8, 64)))
            case _:
                size = chance.choice((16, 4096))
                to = chance.randrange(len(made))
                made[to : to + size] = made[at : at + size]
        if not made:
            return b"\0"
    return bytes(made)


def ledgers(chance: random.Random) -> Iterator[dict[str, bytes]]:
    from tests.strangers import folders

    seeds = [folders.ledger(), *map(folders.ledger, folders.MORE), *map(folders._with_table, folders.TABLES)]
    while True:
        data = chance.choice(seeds)
        files = {"sweeps.sqlite": changed(data, chance, 200) if chance.random() < 0.9 else data}
        if chance.random() < 0.3:
            named = folders.journal(chance.choice(("victim", "../victim", "/tmp/of-nobody")))
            files["sweeps.sqlite-journal"] = changed(named, chance, 40) if chance.random() < 0.5 else named
        if chance.random() < 0.2:
            files["sweeps.sqlite-wal"] = changed(b"\x37\x7f\x06\x82\0\x2d\xe2\x18" + bytes(4200), chance, 60)
        yield files


def tensors(chance: random.Random) -> Iterator[dict[str, bytes]]:
    import numpy as np
    import torch

    from tests.strangers import folders

    out = io.BytesIO()
    torch.save(torch.arange(12.0).view(3, 4), out)
    npy = io.BytesIO()
    np.save(npy, np.arange(12.0).reshape(3, 4))
    head = b'{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    safe = len(head).to_bytes(8, "little") + head + bytes(16)
    seeds = [("x.pt", out.getvalue())] * 8 + [("x.npy", npy.getvalue())] * 8 + [("x.safetensors", safe)] * 4
    seeds += [(f"x.{name.rpartition('.')[2]}", data) for name, data in folders._tensor_files()]
    while True:
        name, data = chance.choice(seeds)
        if name.endswith("pt") and chance.random() < 0.7 and zipfile.is_zipfile(io.BytesIO(data)):
            yield {name: _with_other_parts(data, chance)}
        else:
            yield {name: changed(data, chance, 400)}


def _with_other_parts(data: bytes, chance: random.Random) -> bytes:
    """The archive with right sums of a content that was changed: what describes the tensor, or its bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(out, "w") as after:
        for part in before.infolist():
            content = before.read(part)
            is_changed = content and (part.filename.endswith("data.pkl") or chance.random() < 0.1)
            after.writestr(part.filename, changed(content, chance, 400) if is_changed else content)
    return out.getvalue()


def read(folder: Path, files: dict[str, bytes]) -> Iterator[str]:
    """What each way of reading came to: a word, or a problem that begins with '!'."""
    from airflow_free.errors import OrchestratorError
    from npucompose.errors import ConfigError
    from npucompose.experiment.sweep.run import PointLedger
    from npucompose_devtools.device_files.tensors import load

    def of_ledger(open_it: Any) -> object:
        with open_it(folder) as there:
            return there.entries(), there.counts()

    def of_tensor(name: str) -> object:
        if not name.endswith("safetensors"):
            return load(folder / name)
        from safetensors import SafetensorError, safe_open  # pyright: ignore[reportMissingImports]  an extra

        try:
            with safe_open(folder / name, framework="pt") as there:
                return [there.get_tensor(key) for key in there.keys()]  # noqa: SIM118  it is no mapping
        except SafetensorError as error:
            raise ConfigError(str(error)) from None

    for name in files:
        if name == "sweeps.sqlite":
            ways = [lambda: of_ledger(PointLedger.read), lambda: of_ledger(PointLedger.open)]
        elif name.startswith("x."):
            ways = [lambda name=name: of_tensor(name)]
        else:
            continue
        for way in ways:
            try:
                way()
                yield "read"
            except (OrchestratorError, ConfigError):
                yield "refused"
            except BaseException as error:  # noqa: BLE001  the verdict is ours
                yield f"! {type(error).__name__}: {error}"[:200]


def rounds(kind: str, count: int, seed: int) -> int:
    """In the working folder, which holds nothing else; how many had a problem."""
    from tests.strangers.judge import mark

    chance = random.Random(f"{kind} {seed}")
    made = (ledgers if kind == "ledgers" else tensors)(chance)
    ends, longest, most, found = Counter[str](), 0.0, 0, 0
    signal.signal(signal.SIGALRM, _ring)
    folder, before_kb = Path("in").resolve(), 0
    for number in range(-WARM, count):
        folder.mkdir()
        files = next(made)
        for name, data in {**files, "victim": b"mine"}.items():
            (folder / name).write_bytes(data)
        signal.alarm(HANGS_S)
        mark(number)
        began = time.process_time()
        ended = list(read(folder, files))
        took = time.process_time() - began
        mark(-1)
        signal.alarm(0)
        after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grew, before_kb = (after_kb - before_kb) << 10, after_kb
        shutil.rmtree(folder)
        if number < 0:
            continue
        problems = [one for one in ended if one.startswith("!")]
        problems += [f"! {took:.1f} s"] if took > LONGEST_S else []
        problems += [f"! {grew >> 20} MiB more"] if grew > MOST_BYTES + sum(map(len, files.values())) else []
        for problem in problems:
            print(f"{kind} {number}: {problem}", flush=True)
        found += bool(problems)
        ends.update(one for one in ended if not one.startswith("!"))
        longest, most = max(longest, took), max(most, grew)
    figures = f"longest {longest:.2f} s of processor time, at most {most >> 20} MiB more"
    print(f"{kind}: {count:,} rounds, {dict(ends)}, {figures}, {found} found", flush=True)
    return found


def _ring(number: int, frame: object) -> None:
    raise TimeoutError(f"it hangs: {HANGS_S} s")


def touched(acts: Iterable[tuple[int, trace.Did]], place: Path) -> Iterator[tuple[int, str]]:
    """(round, what it did) of all that no round may do."""
    own = (*(str(place / one) for one in ITS_OWN), "/dev/null")
    for number, act in acts:
        at_home = act.kind == "writes" and os.path.join(place, act.what).startswith(own)
        harmless = act.kind == "reads" and not act.what.endswith("victim")
        if number >= 0 and not at_home and not harmless:
            yield number, f"it {act.kind} {act.what}"


def witnessed(kind: str, count: int, seed: int) -> int:
    """The rounds in a process under strace; how many problems it and the witness found."""
    with tempfile.TemporaryDirectory(prefix="npucompose-fuzz-") as scratch:
        place, pipe = Path(scratch, "place"), Path(scratch, "trace")
        (place / "tmp").mkdir(parents=True)
        os.mkfifo(pipe)
        words = [sys.executable, "-m", "tools.fuzz_foreign_files", "--inside", kind, str(count), str(seed)]
        path = python_path()
        variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(place / "tmp")}
        process = subprocess.Popen(trace.command(words, pipe), cwd=place, env=variables)
        with pipe.open(errors="replace") as lines:
            problems = list(touched(trace.done(lines), place))
        for number, what in problems[:40]:
            print(f"{kind} {number}: {what}", flush=True)
        print(f"{kind}: the witness saw {len(problems)} acts outside", flush=True)
        return len(problems) + process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=20_000)
    parser.add_argument("--tensors", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        kind, count, seed = given.inside
        return int(bool(rounds(kind, int(count), int(seed))))
    if not trace.is_there():
        print("strace, the witness, is not installed.", file=sys.stderr)
        return 2
    if importlib.util.find_spec("safetensors") is None:
        print("safetensors, whose files are changed and read, is not installed: make extras.", file=sys.stderr)
        return 2
    counts = {"ledgers": given.ledgers, "tensors": given.tensors}
    found = [witnessed(kind, count, given.seed) for kind, count in counts.items()]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
