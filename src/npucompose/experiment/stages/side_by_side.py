"""Several ways to compile one model in one process: each compared with eager, those that are right timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from npucompose.errors import NpuComposeError
from npucompose.experiment.stages.benchmark import bound, in_turns

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples
    from npucompose.results.measured import Candidate, Numerics


class Tried(Protocol):
    """What is written down of one way; only what passed is timed."""

    @property
    def passed(self) -> bool: ...


Row = TypeVar("Row", bound=Tried)
COMPARING = 0.5
"""Share of the progress that compiling and comparing are counted as."""


def compared(session: Session) -> Numerics | str:
    """Compiled and compared with eager on every step; the error of what cannot be done, which ends nothing."""
    from npucompose.compose.comparison import every_step

    try:
        return every_step(session, lambda _: None).numerics
    except NpuComposeError as error:
        return str(error)


def candidate(session: Session) -> Candidate:
    """What of a session is timed."""
    if session.experiment.mode.name == "eager":
        return "eager"
    return "compiled" if session.detached is None else "replay"


def in_one_process(
    live: Session,
    wanted: Mapping[str, Callable[[], Session]],
    tried: Callable[[str, Session], Row],
    progress: Callable[[float], None],
) -> tuple[list[Row], Mapping[str, Samples]]:
    """(`tried(name, session)` of each, samples of those that passed). All are sessions of the model of `live`, whose
    settings are followed; each is made when its turn comes.
    """
    rows: list[Row] = []
    right: dict[str, Session] = {}
    for name, make in wanted.items():
        session = make()
        rows.append(tried(name, session))
        if rows[-1].passed:
            right[name] = session
        progress(COMPARING * len(rows) / len(wanted))
    return rows, _timed(live, right, progress)


def _timed(live: Session, sessions: Mapping[str, Session], progress: Callable[[float], None]) -> Mapping[str, Samples]:
    import torch

    # no_grad also here: a change of the grad mode is a recompilation.
    with torch.no_grad(), _versions_for(sessions):
        return in_turns(live, dict(_candidates(sessions)), lambda done: progress(COMPARING + (1 - COMPARING) * done))


def _candidates(sessions: Mapping[str, Session]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The detached handle where there is one, else the compiled model, compiled once more where that was forgotten."""
    for name, session in sessions.items():
        session.rewind()
        call = bound(session.detached or session.compiled, session.bind(session.inputs(0)))
        call()
        yield name, call


def _versions_for(sessions: Mapping[str, Session]) -> AbstractContextManager[Any]:
    """# Note [One model, many backends]

    Dynamo forgets what it compiled when the next session is compiled from a clean start, and keeps a number of versions
    of one function: here each session is one.
    """
    from torch._dynamo import config

    return config.patch(recompile_limit=config.recompile_limit + len(sessions))
