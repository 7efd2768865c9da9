"""How another Python is started: what lies in the working folder is no module of its.

A Python that is told with -c or -m what to do looks for each module in the working folder first, where a stranger's
`json.py` may lie. It is told to leave that out before it imports anything; its children learn it from SAFE_PATH.
"""

from __future__ import annotations

import sys

FIRST = "import sys; sys.path[:] = [place for place in sys.path if place]; "
"""The beginning of all that is told with -c: `sys` is built in."""
RUN_MODULE = FIRST + "import runpy; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The variable that says the same to every Python below, from 3.11 on."""


def module_command(name: str, *words: str) -> list[str]:
    """`python -m name words`, but for the working folder."""
    return [sys.executable, "-c", RUN_MODULE, name, *words]
