"""The tests where people may run them: `python -m tools.surroundings [NAME …] [-- OPTIONS AND FILES OF PYTEST]`.

    checkout    the temporary folder lies in a git checkout
    path        the project's own path, and that of temporary files, has a space and a letter beyond ASCII
    user        a user who is not root and may not write into the checkout (asked for by root, who becomes nobody)
    core        one core
    order       files, and the tests of each, in random order; the seed is printed

Each is a run of pytest with what stands behind `--` (default: `-n 4 --dist worksteal`); without names all five, one
after the other. The exit status is 1 when any was red.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from npucompose.machine import CACHE_VARIABLE, cache_dir
from tools.layout import python_path

ROOT = Path(__file__).resolve().parents[1]
USER, USER_GROUP = "nobody", "nogroup"


@frozen(kw_only=True)
class Run:
    """One run of pytest: where, as whom, with what."""

    tree: Path = ROOT
    temporary: Path
    words: Sequence[str]
    before: Sequence[str] = ()
    environment: Mapping[str, str] = field(factory=dict[str, str])

    def status(self) -> int:
        self.temporary.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(self.tree),
            "TMPDIR": str(self.temporary),
            **self.environment,
        }
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={self.temporary / 'pytest'}"]
        return subprocess.run(
            [*self.before, *pytest, *self.words], cwd=self.tree, env=environment, check=False
        ).returncode


def copied(to: Path) -> Path:
    """What git knows of this checkout, as a checkout of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "as it is")):
        subprocess.run(["git", *words], cwd=to, check=True)
    return to


def checkout(run: Run) -> Run:
    subprocess.run(["git", "init", "-q", str(run.temporary)], check=True)
    (run.temporary / "file").write_text("not committed\n")
    return evolve(run, temporary=run.temporary / "below")


def path(run: Run) -> Run:
    """Inductor does not quote paths for the C++ compiler: what it compiles lies at a plain one, headers as they are."""
    strange = run.temporary / "a größer place"
    return evolve(
        run, tree=copied(strange / "npucompose"), temporary=strange / "temporary files",
        environment={
            "TORCHINDUCTOR_CACHE_DIR": str(run.temporary / "inductor"),
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        },
    )  # fmt: skip


def user(run: Run) -> Run:
    """Its caches are a copy of ours, made beforehand; everything else is read."""
    if os.geteuid() != 0:
        raise SystemExit("surroundings: only root can become another user; or run the tests as one yourself.")
    home = run.temporary / "home"
    cache = home / "cache"
    for folder in (cache, home / "temporary"):
        folder.mkdir(parents=True)
    if cache_dir().is_dir():
        shutil.copytree(cache_dir(), cache, dirs_exist_ok=True, symlinks=True)
    tree = copied(run.temporary / "npucompose")
    subprocess.run(["chown", "-R", USER, str(home)], check=True)
    for folder in (run.temporary, tree):
        folder.chmod(0o755)
    return evolve(
        run, tree=tree, temporary=home / "temporary", before=_becoming(run.temporary / "held"),
        environment={"HOME": str(home), "USER": USER, "LOGNAME": USER, CACHE_VARIABLE: str(cache)},
    )  # fmt: skip


REACHABLE = """
set -e
mount --bind "$1" "$2"
mount -t tmpfs -o mode=755 none "$3"
mkdir -p "$1"
mount --bind "$2" "$1"
shift 3
exec "$@"
"""
"""In mounts of its own: the folder $1, held at $2 meanwhile, is all that is left of the folder $3, which was closed."""


def _becoming(held: Path) -> list[str]:
    """Where Python lies in a folder that is closed to others (root's home, often), that user sees it alone in there."""
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER_GROUP}", "--clear-groups", "--inh-caps=-all"]
    python = Path(sys.base_prefix).resolve()
    closed = [folder for folder in python.parents if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return words
    held.mkdir()
    return ["unshare", "-m", "sh", "-c", REACHABLE, "sh", str(python), str(held), str(closed[-1]), *words]


def core(run: Run) -> Run:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return run


def order(run: Run) -> Run:
    seed = random.SystemRandom().randrange(10**6)
    print(f"surroundings: --shuffled {seed}", flush=True)
    return evolve(run, words=[*run.words, "--shuffled", str(seed)])


ALL: Mapping[str, Callable[[Run], Run]] = {
    "checkout": checkout, "path": path, "user": user, "core": core, "order": order,
}  # fmt: skip


def main() -> int:
    words = sys.argv[1:]
    own, theirs = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *ALL], help=", ".join(ALL))
    names = parser.parse_args(own).names or list(ALL)
    cores = os.sched_getaffinity(0)
    results: dict[str, str] = {}
    status = 0
    for name in names:
        os.sched_setaffinity(0, cores)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="npucompose-", ignore_cleanup_errors=True) as folder:
            run = ALL[name](Run(temporary=Path(folder), words=theirs or ["-n", "4", "--dist", "worksteal"]))
            ended = run.status()
        status |= ended != 0
        results[name] = f"{'red' if ended else 'green'} after {time.monotonic() - began:.0f} s"
    for name, words_ in results.items():
        print(f"{name:10} {words_}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
