"""Hostile files of every kind under a system call trace: each is refused with a sentence, or does what it says and no
more. The golden listing says which.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import frozen

from airflow_free.fresh_python import FIRST
from tests.strangers import trace
from tests.strangers.corpus import SECRET, corpus

ROOT = Path(__file__).resolve().parents[2]
FAST = 4
LONGEST_S = 10.0
COMPILERS = re.compile(r"(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ninja|collect2|cc1plus|as|ld)$")
OURS = ("outputs/", ".npucompose/", "multirun/", "page.html")
"""What a command may leave in the folder that it runs in."""

COMPANIONS = ".npucompose/sweeps.sqlite-"
"""Files of SQLite's beside the ledger, which it takes away when it closes."""
SECRETS = ("/etc/passwd", "/etc/shadow")
"""Files that are read for no case; a worker of torch asks libc for the user's name, which is in the first."""

needs_strace = pytest.mark.skipif(not trace.is_there(), reason="strace, the oracle of the corpus, is not installed")


@frozen
class Seen:
    """One case: what the command came to, and what the trace shows."""

    name: str
    status: Any
    raised: str | None
    out: str
    err: str
    seconds: float
    left: dict[str, str]
    gone: list[str]
    did: tuple[trace.Did, ...]


def environment(scratch: Path) -> dict[str, str]:
    """Folders of its own for all that is not the case's; the compiler's results are those that the tests have."""
    for name in ("home", "tmp"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SECRET": SECRET,
        "TMPDIR": str(scratch / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "tmp" / "inductor"),  # torch sets it where tests run
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": cache,
        "PAGER": "cat",
    }


def judged(names: Sequence[str], scratch: Path) -> list[Seen]:
    """All of them in one process under strace."""
    (scratch / "names.json").write_text(json.dumps(list(names)))
    results, log = scratch / "results.jsonl", scratch / "trace.txt"
    words = (scratch / "cases", scratch / "names.json", results)
    program = [sys.executable, "-m", "tests.strangers.judge", *map(str, words)]
    (scratch / "cases").mkdir()
    ran = subprocess.run(
        trace.command(program, log), env=environment(scratch), cwd=scratch, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    did: dict[int, list[trace.Did]] = {}
    for number, act in trace.done(lines_of(log)):
        did.setdefault(number, []).append(act)
    told = [json.loads(line) for line in results.read_text().splitlines()]
    assert [one["name"] for one in told] == list(names)
    return [Seen(**one, did=tuple(did.get(number, ()))) for number, one in enumerate(told)]


def lines_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def faults(seen: Seen, place: Path, scratch: Path, *, may_start: bool = False) -> Iterator[str]:
    """A sentence for each promise that was not kept."""
    differs = 1 if "verify" in corpus()[seen.name].command else 0
    if seen.raised is not None or seen.status not in (0, differs, 2):
        yield f"it ended with {seen.status!r} {seen.raised or ''}: {seen.err[-300:]}"
    if "Traceback" in seen.err + seen.out or "internal error" in seen.err:
        yield f"it shows a traceback: {seen.err[-300:]}"
    if seen.status == 2 and not seen.err.strip():
        yield "it is refused without a sentence"
    if seen.seconds > LONGEST_S * (6 if may_start else 1):
        yield f"it took {seen.seconds:.0f} s"
    shown = seen.out + seen.err
    if not shown.replace("\n", "").replace("\t", "").isprintable():
        yield "it shows a control character"
    if SECRET in shown or any(SECRET in text for text in seen.left.values()):
        yield "the value of an environment variable came out"
    strange = [name for name in seen.left if not name.startswith(OURS)]
    gone = [name for name in seen.gone if not name.startswith(COMPANIONS)]
    if strange or gone:
        yield f"files were changed: {strange + gone}"
    allowed = (
        *(str(place / one.rstrip("/")) for one in OURS),
        str(place / ".page"),
        str(scratch / "tmp"),
        str(Path.home() / ".cache"),
        "/dev/null",
        "/proc/self/",
    )
    if may_start:
        allowed = (*allowed, "/proc/", "/sys/fs/cgroup/", "/dev/shm/")
    for act in (attrs.evolve(one, what=str(place / one.what)) if one.kind == "writes" else one for one in seen.did):
        if act.kind == "asks" or (act.kind in ("starts", "forks", "signals") and not may_start):
            yield f"it {act.kind} {act.what}"
        elif act.kind == "starts" and not (
            act.what.startswith(sys.executable) or COMPILERS.search(act.what.split()[0])
        ):
            yield f"it starts {act.what}"
        elif act.kind == "writes" and not act.what.startswith(allowed):
            yield f"it writes {act.what}"
        elif act.kind == "reads" and act.what in (*SECRETS[may_start:], str(place / "secret.yaml")):
            yield f"it reads {act.what}"


def verdict(seen: Seen) -> str:
    """One line of the listing."""
    return f"{seen.name}: {'refused' if seen.status == 2 else 'harmless'}"


def check(names: Sequence[str], scratch: Path) -> list[str]:
    seen = judged(names, scratch)
    places = [scratch / "cases" / f"{number:04}" for number in range(len(seen))]
    wrong = {
        one.name: found for one, place in zip(seen, places, strict=True) if (found := list(faults(one, place, scratch)))
    }
    assert not wrong, json.dumps(dict(list(wrong.items())[:40]), indent=1) + f"\n{len(wrong)} of {len(seen)}"
    return [verdict(one) for one in seen]


def together() -> list[str]:
    return [name for name, case in corpus().items() if not case.alone]


def test_the_corpus_is_of_every_kind_and_large() -> None:
    assert len(corpus()) >= 300
    assert {name.partition("/")[0] for name in corpus()} == {
        "configuration", "recipe", "script", "log", "dump", "report", "ledger", "points", "run", "git", "database",
        "store", "tensor", "module",
    }  # fmt: skip


@needs_strace
def test_some_hostile_files_are_refused_or_harmless_under_a_trace(tmp_path: Path) -> None:
    names = together()
    lines = check(names[:: len(names) // FAST], tmp_path)
    assert any(line.endswith(": harmless") for line in lines)
    assert any(line.endswith(": refused") for line in lines)


def part_of(name: str) -> str:
    """The kind of a case; of configurations also whether it is one of the many that put a text into a field."""
    kind = name.partition("/")[0]
    return "values" if kind == "configuration" and ": " in name else kind


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("part", dict.fromkeys(map(part_of, together())))
def test_every_hostile_file_is_refused_or_harmless_under_a_trace(
    part: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    names = [name for name in together() if part_of(name) == part]
    golden(f"strangers/{part}.txt", "\n".join(check(names, tmp_path)) + "\n")


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("name", [name for name, case in corpus().items() if case.alone])
def test_a_hostile_file_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    from tests.strangers.judge import files_in, prepared

    case = corpus()[name]
    place, log = tmp_path / "case", tmp_path / "trace.txt"
    prepared(case, place)
    before = files_in(place)
    program = [sys.executable, "-c", f"{FIRST}from npucompose.cli import main; sys.exit(main())", *case.command]
    ran = subprocess.run(
        trace.command(program, log), env=environment(tmp_path), cwd=place, capture_output=True, text=True, check=False
    )
    after = files_in(place)
    did = [act for _, act in trace.done(lines_of(log))]
    seen = Seen(
        name=name, status=ran.returncode, raised=None, out=ran.stdout, err=ran.stderr, seconds=0.0,
        left={key: after[key] for key in after if after[key] != before.get(key)}, gone=sorted(set(before) - set(after)),
        did=tuple(did),
    )  # fmt: skip
    found = list(faults(seen, place, tmp_path, may_start=True))
    assert not found, found
    if name == "run/what is legal":  # a control: it starts a worker, leaves a report, and keeps every promise
        assert seen.status == 0
        assert sum(act.kind == "starts" and act.what.startswith(sys.executable) for act in did) >= 2
        assert any(name.endswith("/report.json") for name in seen.left)


@needs_strace
def test_the_oracle_sees_what_is_forbidden(tmp_path: Path) -> None:
    """Negative control: each promise, broken."""
    acts = {
        "starts": "import subprocess; subprocess.run(['true'])",
        "forks": "import os; os.fork() or os._exit(0)",
        "writes": "open('/tmp/executed-by-a-test', 'w').close()",
        "asks": "import socket; socket.socket().connect_ex(('127.0.0.1', 1))",
        "signals": "import os; os.kill(os.getpid(), 0)",
        "reads": "open('/etc/passwd').close()",
    }
    text = "import os\n" + "".join(
        f"try: os.open('{trace.MARK}{n}', os.O_RDONLY)\nexcept OSError: pass\n{act}\n"
        for n, act in enumerate(acts.values())
    )
    subprocess.run(trace.command([sys.executable, "-c", text], tmp_path / "trace.txt"), check=True)
    Path("/tmp/executed-by-a-test").unlink(missing_ok=True)
    found = {(number, act.kind) for number, act in trace.done(lines_of(tmp_path / "trace.txt"))}
    assert {(number, kind) for number, kind in enumerate(acts)} <= found
