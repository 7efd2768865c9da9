"""Cases of replay protocols."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose_devtools.protocol.reading import read_protocol, shape
from tests.refusals.case import Case

SOUND = """
streams: [main]
threads: {host: {steps: [run a on main writes x, synchronise main, read x]}}
"""


def protocol(old: str = "", new: str = "") -> Callable[[Path], Any]:
    """A sound one in which `old` was exchanged."""

    def read(folder: Path) -> Any:
        (folder / "p.yaml").write_text(SOUND.replace(old, new, 1) if old else new)
        return read_protocol(folder / "p.yaml")

    return read


READING, MODEL = "npucompose_devtools.protocol.reading", "npucompose_devtools.protocol.model"
MANY = str([f"s{n}" for n in range(65)]).replace("s0", "main")
GRAPH, UNORDERED = "graphs: {g: [read x]}\nthreads:", "events: {e: ordinary}\ngraphs: {g: [wait e]}\nthreads:"
CASES = (
    Case(READING, "holds no protocol", protocol(new="- 1\n"), "p.yaml holds no protocol", "p.yaml: "),
    Case(
        READING, "from None", protocol("threads:", "colour: red\nthreads:"), "p.yaml: unknown key 'colour'", "unknown"
    ),
    Case(READING, "unknown('protocol'", lambda folder: shape("no"), "unknown protocol 'no'", "no.yaml: there is no"),
    Case(READING, "problems.append", protocol("read x", "raed x"), "threads.host.steps[2]: 'raed x' is no step"),
    Case(READING, "raise_for(problems)", protocol("read x", "raed x"), "threads.host.steps[2]: 'raed x' is no step"),
    Case(MODEL, "is no step", protocol("read x", "raed x"), "'raed x' is no step", "TypeError"),
    Case(MODEL, "raise_for(", protocol("read x", "read x on main"), "'read x on main' takes no stream"),
    Case(MODEL, "names; at most", protocol("[main]", MANY), "streams: 65 names; at most 64 are explored"),
    Case(MODEL, "steps in all", protocol("steps:", "repeat: 9999, steps:"), "29,997 steps in all iterations"),
    Case(MODEL, "'depth')", protocol("threads:", "depth: {man: 2}\nthreads:"), "unknown stream 'man' @ depth"),
    Case(MODEL, "at least one task", protocol("threads:", "depth: {main: 0}\nthreads:"), "depth.main: 0; a stream"),
    Case(MODEL, "before the first", protocol("threads:", "semaphores: {s: -1}\nthreads:"), "semaphores.s: -1; it can"),
    Case(MODEL, "cannot be captured", protocol("threads:", GRAPH), "graphs.g[0]: 'read x' cannot be captured"),
    Case(MODEL, "takes no stream", protocol("read x", "read x on main"), "'read x on main' takes no stream"),
    Case(MODEL, "only `run` reads", protocol("read x", "read x writes x"), "only `run` reads and writes"),
    Case(MODEL, "has to say what", protocol("read x", "read"), "'read' has to say what"),
    Case(MODEL, "unknown(kind", protocol("read x", "acquire lock"), "unknown semaphore 'lock'"),
    Case(
        MODEL, "declare {step.name}", protocol("threads:", UNORDERED), "orders only its own graph; declare e external"
    ),
)
