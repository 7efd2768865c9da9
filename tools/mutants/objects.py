"""A C++ compiler that keeps its objects: `objects.py COMPILER STORE [what the compiler is given]`.

An object is known by the flags and by every source it reads by a quoted name, so that a mutant of one file compiles the
unit it belongs to and nothing else. Uses nothing but the standard library: it stands where a compiler is expected.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def main(compiler: str, store: str, *given: str) -> int:
    if "-c" not in given:
        return subprocess.run([compiler, *given], check=False).returncode
    source, made = Path(given[given.index("-c") + 1]), Path(given[given.index("-o") + 1])
    kept = Path(store) / f"{_key(compiler, given, source)}.o"
    if kept.is_file():
        shutil.copyfile(kept, made)
        return 0
    status = subprocess.run([compiler, *given], check=False).returncode
    if status == 0:
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, beside)
        beside.replace(kept)
    return status


def _key(compiler: str, given: tuple[str, ...], source: Path) -> str:
    folders = [Path(word[2:]) for word in given if word.startswith("-I")]
    flags = [
        word for word in given if not word.startswith("-I") and word not in (str(source), given[given.index("-o") + 1])
    ]
    digest = hashlib.sha256("\0".join([compiler, *flags]).encode())
    for path in _read(source, folders):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _read(source: Path, folders: list[Path]) -> list[Path]:
    """The source and what it includes by quoted names, directly or not, that lies in `folders`."""
    found, waiting = [source], [source]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in INCLUDE.findall(text):
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None and path not in found:
                found.append(path)
                waiting.append(path)
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
