"""Workers of pytest-xdist that need not import everything and read all tests again: forked from a process that has.

One process loads what the nursery's do and collects the tests; xdist starts its workers through the nursery's client,
and each collects again from modules that are there. It is for `-n`, on a system that forks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not config.option.collectonly and not hasattr(config, "workerinput"):
        python = _begun(config.args)
        config.option.tx = [f"popen//python={python}"] * len(config.option.tx)


def _begun(arguments: Sequence[str]) -> str:
    """How a worker's Python is started, once the process is there that it is forked from."""
    from nursery import CLIENT, begin

    name = f"npucompose-workers-{os.getpid()}-{os.urandom(8).hex()}"
    _kept.append(begin(Path(__file__), name, json.dumps([*arguments])))
    return shlex.join([sys.executable, "-IS", str(CLIENT), name])


_kept: list[subprocess.Popen[bytes]] = []
"""What keeps its standard input open until this process ends."""


def _collected(arguments: Sequence[str]) -> None:
    """Whatever is wrong with a test, each worker finds and tells by itself.

    On one thread: OpenMP starts its threads for the first large tensor that a file makes, a worker would inherit the
    belief that they are there, and wait for them for ever in its first parallel loop.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *arguments])
    torch.set_num_threads(threads)


def main() -> None:
    name, arguments = sys.argv[1:]
    import nursery

    own_path, read = [*sys.path], nursery.read_at_the_beginning(os.environ)
    listener = nursery.listening(name)
    _collected(json.loads(arguments))
    nursery.serve(listener, own_path, read)


if __name__ == "__main__":
    main()
