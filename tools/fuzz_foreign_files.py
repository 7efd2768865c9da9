"""SQLite files and tensors changed at random: `python -m tools.fuzz_foreign_files [--ledgers 20000] [--tensors 50000]`.

Of a ledger bytes are flipped, pages exchanged, schemas rewritten, journals and write-ahead logs put beside it; then it
is read and opened. Of `.npy`, `.pt` and `.safetensors` the heads are changed. None may end otherwise than in an answer
or in a sentence, take two seconds, take 64 MiB more than its file, or touch a file outside its folder. Exit status 1
where one did.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S, MOST_BYTES = 2.0, 64 << 20


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
    from npucompose_extensions.device_files.tensors import load

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
    chance = random.Random(f"{kind} {seed}")
    made = (ledgers if kind == "ledgers" else tensors)(chance)
    ends, longest, found = Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory(prefix="npucompose-fuzz-") as scratch:
        place = Path(scratch)
        (place / "victim").write_text("mine")
        os.chdir(place)
        before_kb = 0
        for number in range(count):
            folder = place / "in"
            folder.mkdir()
            (folder / "victim").write_text("mine")
            files = next(made)
            for name, data in files.items():
                (folder / name).write_bytes(data)
            began = time.process_time()
            ended = list(read(folder, files))
            took = time.process_time() - began
            after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            grew = (after_kb - before_kb) << 10 if number > 20 else 0  # what is imported comes first
            before_kb = after_kb
            problems = [one for one in ended if one.startswith("!")]
            if took > LONGEST_S:
                problems.append(f"! {took:.1f} s")
            if grew > MOST_BYTES + sum(map(len, files.values())):
                problems.append(f"! {grew >> 20} MiB more")
            if not (place / "victim").exists() or not (folder / "victim").exists() or len(list(place.iterdir())) != 2:
                problems.append("! a file outside was touched")
            for problem in problems:
                print(f"{kind} {number}: {problem}", flush=True)
            found += bool(problems)
            ends.update(one for one in ended if not one.startswith("!"))
            longest = max(longest, took)
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        os.chdir(ROOT)
    shown = f"{dict(ends)}, longest {longest:.2f} s of processor time, {found} found"
    print(f"{kind}: {count:,} rounds, {shown}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=20_000)
    parser.add_argument("--tensors", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=57)
    given = parser.parse_args()
    return int(bool(rounds("ledgers", given.ledgers, given.seed) + rounds("tensors", given.tensors, given.seed)))


if __name__ == "__main__":
    sys.exit(main())
