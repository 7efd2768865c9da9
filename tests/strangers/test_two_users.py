"""Two users of one machine: what one of them leaves in the folder for temporary files, and what he tries with the
processes of the other, runs nothing.

One runs npucompose as root, or as a user that only reads what root reads; the other has given up every right.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import frozen

from airflow_free.fresh_python import FIRST
from npucompose.machine import cache_dir
from tests.strangers import trace

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be two users"),
    pytest.mark.skipif(not trace.is_there(), reason="strace, the witness, is not installed"),
]

ME, OTHER = 12001, 65534
OPEN = re.compile(r"\b(?:bind|listen|accept4?)\(|\bsocket\((?!AF_UNIX|AF_LOCAL|AF_NETLINK)")
"""Calls that make a socket which another process could reach."""
OF_THE_TESTS = ("TORCHINDUCTOR", "NPUCOMPOSE")
MAIN = f"{FIRST}from npucompose.cli import main; sys.exit(main())"
RUN = ("run", "model=add", "mode=max-autotune", "pipeline=compile_only")
COMPILES = """
import torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
"""

# The other user, in a process that has his number and no right: what it does is said by its argument, as JSON.

AS_THE_OTHER = f"""
import json, os, socket, sys
asked = json.loads(sys.stdin.readline())
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER}); os.umask(0)
"""
PLANTS = """
for name, content in asked['files'].items():
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, 'wb') as file:
        file.write(bytes.fromhex(content))
"""
REACHES = """
def tried():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            ours = os.stat(f'/proc/{pid}').st_uid == asked['user']
            if not ours or asked['mark'] not in open(f'/proc/{pid}/cmdline').read():
                continue
        except OSError:
            continue
        seen.add(int(pid))
        for act in (lambda: os.listdir(f'/proc/{pid}/fd'), lambda: os.open(f'/proc/{pid}/mem', os.O_RDWR),
                    lambda: os.open(f'/proc/{pid}/fd/3', os.O_RDWR), lambda: os.kill(int(pid), 0)):
            try:
                act()
            except (PermissionError, ProcessLookupError, FileNotFoundError):
                continue
            except OSError as error:
                yield f'{pid}: {error}'
            yield f'{pid} was reached'
    for line in open('/proc/net/unix').read().splitlines()[1:]:
        if len(parts := line.split()) == 8 and asked['mark'] in parts[7]:
            yield line
seen, found = set(), set()
print('begun', flush=True)
while not os.path.exists(asked['until']):
    found.update(tried())
print(json.dumps([len(seen), sorted(found)]))
"""


@frozen
class Person:
    """Who runs npucompose: his number, and the folders of his own."""

    number: int
    home: Path
    temporary: Path

    @property
    def before(self) -> list[str]:
        """Root may read everything and write everywhere; of that, a user here has the reading only."""
        if self.number == 0:
            return []
        caps = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]
        return ["setpriv", "--reuid", str(self.number), "--regid", str(self.number), "--clear-groups", *caps]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TESTS)}
        own = {"HOME": self.home, "TMPDIR": self.temporary, "NPUCOMPOSE_CACHE": self.home / "cache"}
        path = [place for place in sys.path if place]
        named = {"USER": "me", "LOGNAME": "me", "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **named, **{name: str(place) for name, place in own.items()}}

    def runs(self, words: Sequence[str], log: Path | None = None) -> subprocess.CompletedProcess[str]:
        traced = trace.command([*self.before, *words], log) if log else [*self.before, *words]
        work = self.home / "work"
        return subprocess.run(traced, cwd=work, env=self.environment, capture_output=True, text=True, check=False)


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that both can get into, and write into in `seen`: pytest's own are closed."""
    made = Path(tempfile.mkdtemp(prefix="npucompose-two-", dir="/tmp"))
    made.chmod(0o755)
    (made / "seen").mkdir()
    (made / "seen").chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=[0, ME], ids=["root", "a user"])
def me(request: pytest.FixtureRequest, top: Path) -> Person:
    """With a copy of the native part, which is built once."""
    person = Person(request.param, top / "home", top / "tmp")
    (person.home / "work").mkdir(parents=True)
    person.temporary.mkdir()
    person.temporary.chmod(0o1777)
    if (cache_dir() / "native").is_dir():
        shutil.copytree(cache_dir() / "native", person.home / "cache" / "native")
    for place in (person.home, *person.home.rglob("*")):
        os.chown(place, person.number, person.number)
    if person.number and person.runs([sys.executable, "-c", "import json"]).returncode:
        pytest.skip("no user of this machine may be given the right to read alone")
    return person


def as_the_other(text: str, asked: object) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-S", "-c", AS_THE_OTHER + text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdin is not None
    made.stdin.write(json.dumps(asked) + "\n")
    made.stdin.flush()
    return made


def hostile(name: str, witness: Path, library: bytes) -> bytes:
    """What runs when a file of this name is imported, loaded or unpickled."""
    act = f"open({str(witness)!r}, 'a').close()"
    if name.endswith(".so"):
        return library
    if name.endswith((".py", ".pth")):
        return f"import os\n{act}\n".encode()

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (act,)

    return pickle.dumps(Runs())


def library_that_touches(witness: Path, folder: Path) -> bytes:
    act = f'__attribute__((constructor)) static void f(void) {{ open("{witness}", O_CREAT, 0666); }}'
    source = f"#include <fcntl.h>\n{act}\n"
    (folder / "x.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "x.c", "-o", "x.so"], cwd=folder, check=True)
    return (folder / "x.so").read_bytes()


def names_used(log: Path, folder: Path) -> set[str]:
    """Every file that was opened or made below the folder, whoever did it and whether it was there or not."""
    found = re.findall(rf'"({re.escape(str(folder))}/[^"]+)"', log.read_text(errors="replace"))
    return {name for name in found if not name.endswith("/")}


def planted(me: Person, names: set[str], witness: Path, folder: Path) -> list[Path]:
    """All that lay there is taken away; the other user puts his own at the same names."""
    folders = {str(above) for name in names for above in Path(name).parents}
    for place in me.temporary.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    library = library_that_touches(witness, folder)
    files = {name: hostile(name, witness, library).hex() for name in names if name not in folders}
    process = as_the_other(PLANTS, {"files": files})
    assert process.wait(60) == 0
    there = [place for place in me.temporary.rglob("*") if place.is_file()]
    assert {place.stat().st_uid for place in there} == {OTHER}
    assert len(there) == len(files)
    return there


def contents(places: Sequence[Path]) -> dict[Path, tuple[bytes, float]]:
    return {place: (place.read_bytes(), place.stat().st_mtime) for place in places}


@pytest.mark.slow
def test_what_another_user_leaves_where_the_first_run_wrote_is_neither_run_nor_written_to(
    me: Person, top: Path
) -> None:
    witness, log = top / "seen" / "executed", top / "trace.txt"
    first = me.runs([sys.executable, "-c", MAIN, *RUN], log)
    assert first.returncode == 0, first.stderr
    text = log.read_text(errors="replace")
    assert not OPEN.search(text), "a socket that others can reach"
    names = names_used(log, me.temporary)
    names |= {str(me.temporary / f"{name}.py") for name in ("json", "torch", "sitecustomize")}
    assert any("torchinductor_me/" in name for name in names)
    theirs = planted(me, names, witness, top)
    before = contents(theirs)
    shutil.rmtree(me.home / "work" / ".npucompose")
    second = me.runs([sys.executable, "-c", MAIN, *RUN])
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("torchinductor_me is not used") == 1
    assert not witness.exists(), "code of the other user was run"
    assert contents(theirs) == before


@pytest.mark.slow
def test_a_control_torch_alone_runs_what_the_other_user_left(me: Person, top: Path) -> None:
    witness, log = top / "seen" / "executed", top / "trace.txt"
    assert me.runs([sys.executable, "-c", COMPILES], log).returncode == 0
    planted(me, names_used(log, me.temporary), witness, top)
    me.runs([sys.executable, "-c", COMPILES])
    assert witness.exists()


@pytest.mark.slow
def test_no_process_or_socket_of_a_sweep_can_be_reached_by_another_user(me: Person, top: Path) -> None:
    until = top / "ended"
    watcher = as_the_other(REACHES, {"user": me.number, "mark": "airflow_free.forkserver", "until": str(until)})
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "begun\n"
    ran = me.runs([sys.executable, "-c", MAIN, "run", "-m", *RUN[1:], "mode=eager", "seed=1,2"])
    until.touch()
    seen, reached = json.loads(watcher.stdout.readline())
    watcher.wait(30)
    assert ran.returncode == 0, ran.stderr
    assert seen >= 3, "the server, supervisors and workers were there to be tried"
    assert reached == []


@pytest.mark.slow
def test_nothing_that_a_run_makes_can_be_written_by_others(me: Person) -> None:
    """With a umask that would let everybody write: folders of code are closed all the same."""
    ran = me.runs(["sh", "-c", 'umask 0; exec "$@"', "sh", sys.executable, "-c", MAIN, *RUN])
    assert ran.returncode == 0, ran.stderr
    for top in (me.temporary / "torchinductor_me", me.home / "cache"):
        assert stat.S_IMODE(top.stat().st_mode) == 0o700
    left = [place for place in me.temporary.iterdir() if place.name != "torchinductor_me"]
    assert all(not place.stat().st_mode & 0o022 for place in left)
