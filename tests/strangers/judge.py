"""Runs cases one after the other in this process: `python -m tests.strangers.judge FOLDER NAMES.json RESULTS.jsonl`.

Each case has a folder of its own in FOLDER. Its beginning shows in a system call trace as the opening of a file that
does not exist, `/npucompose-case/<number>`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_free.errors import visible
from tests.strangers.corpus import Case, corpus

LONGEST_S, WAITING_S = 20, 600
"""Of the processor, which a busy machine does not lengthen; and of any time, for what waits."""
MARK = "/npucompose-case/"


def prepared(case: Case, folder: Path) -> None:
    (folder / "theirs").mkdir(parents=True)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "|":
            os.mkfifo(path)
        elif content.startswith("->"):
            path.symlink_to(content[2:])
        else:
            path.write_text(content, encoding="utf-8", errors="surrogatepass")


def mark(number: int) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(f"{MARK}{number}", os.O_RDONLY))


def act(words: Sequence[str]) -> object:
    """A command line; or, of what no command does alone, the part that reads the folder."""
    if not words[0].startswith("--"):
        from npucompose.cli import main

        return main(list(words))
    from airflow_free.errors import OrchestratorError
    from airflow_free.store import Store
    from npucompose.errors import ConfigError
    from npucompose.experiment.sweep.run import PointLedger
    from npucompose.measure.environment import git_state
    from npucompose_devtools.device_files import tensors

    try:
        if words[0] == "--repository":
            print(git_state())
        elif words[0] == "--records":
            print(list(Store(".npucompose", on_problem=print).records()))
        elif words[0] == "--ledger":
            with PointLedger.open(Path(".npucompose")) as ledger:
                ledger.write(ledger.entries())
        else:
            print(tensors.load(Path(words[1])).shape)
    except (OrchestratorError, ConfigError) as error:
        print(visible(str(error)), file=sys.stderr)
        return ConfigError.exit_status
    return 0


def run(case: Case) -> dict[str, Any]:
    """What came of one case, in the folder that this process is in."""
    out, err = io.StringIO(), io.StringIO()
    raised: str | None = None
    status: object = None
    began = time.process_time()
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _ring)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    signal.alarm(WAITING_S)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = act(case.command)
        except BaseException as error:  # noqa: BLE001  the verdict is the test's
            raised = f"{type(error).__name__}: {error}"[:300]
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    seconds = time.process_time() - began
    return {"status": status, "raised": raised, "out": out.getvalue(), "err": err.getvalue(), "seconds": seconds}


def _ring(number: int, frame: object) -> None:
    raise TimeoutError(f"it hangs: {LONGEST_S if number == signal.SIGPROF else WAITING_S} s")


def files_in(folder: Path) -> dict[str, str]:
    """{name: content} of what is in a folder, links and pipes not followed."""
    found: dict[str, str] = {}
    for path in folder.rglob("*"):
        if stat.S_ISREG(path.lstat().st_mode):
            found[str(path.relative_to(folder))] = path.read_bytes().decode(errors="replace")
    return found


def main() -> None:
    folder, names, results = map(Path, sys.argv[1:])
    cases = corpus()
    # What is loaded on demand is loaded before the first case, so that the trace holds nothing but cases.
    warm = folder / "warm"
    (warm / "theirs").mkdir(parents=True)
    (warm / "theirs" / "a.txt").write_text("[INFO] TORCHAIR(1,python):x [x.py:1] graph id: 1\n")
    os.chdir(warm)
    for command in (
        ("explain", "--options", "--json", "model=add"),
        ("report", "theirs"),
        ("explain", "--log", "theirs/a.txt"),
        ("--repository",),
        ("--records",),
        ("run", "--dry-run", "model=add"),
    ):
        run(Case(name="warm", files={}, command=command))
    with results.open("w") as file:
        for number, name in enumerate(json.loads(names.read_text())):
            place = folder / f"{number:04}"
            prepared(cases[name], place)
            before = files_in(place)
            os.chdir(place)
            mark(number)
            found = run(cases[name])
            mark(-1)
            os.chdir(folder)
            after = files_in(place)
            left = {key: after[key] for key in after if after[key] != before.get(key)}
            gone = sorted(set(before) - set(after))
            file.write(json.dumps({"name": name, **found, "left": left, "gone": gone}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
