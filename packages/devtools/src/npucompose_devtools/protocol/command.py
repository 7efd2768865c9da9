"""`npucompose protocol PROTOCOL.yaml`: can the host's side of a replay hang or read what is stale."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from npucompose.errors import ConfigError
from npucompose_devtools.protocol.drawing import page_of, summary_of
from npucompose_devtools.protocol.explore import MOST_STATES, Finding, ProtocolVerdict, check
from npucompose_devtools.protocol.model import Protocol
from npucompose_devtools.protocol.reading import read_protocol, shape, shapes
from npucompose_devtools.protocol.waits import WaitVerdict, weigh_waits


def act(arguments: argparse.Namespace) -> int:
    """The command: exit status 1 where something can go wrong, or where not every order could be explored."""
    most = MOST_STATES if arguments.most_states is None else arguments.most_states
    if not 1 <= most <= MOST_STATES:
        raise ConfigError(f"--most-states {most}: must be from 1 to {MOST_STATES:,}.")
    protocol = _protocol(arguments.protocol)
    verdict = check(protocol, most_states=most)
    weighed = tuple(weigh_waits(protocol, most_states=most)) if arguments.waits and verdict.holds else ()
    if arguments.json:
        print(json.dumps(_as_dict(verdict, weighed), indent=2))
    else:
        print("\n".join(_lines(verdict, weighed)))
    return 0 if verdict.holds else 1


def _protocol(asked: str) -> Protocol:
    """A file's, or one of the package's by its name."""
    return shape(asked) if asked in shapes() and not Path(asked).exists() else read_protocol(Path(asked))


def _lines(verdict: ProtocolVerdict, weighed: tuple[WaitVerdict, ...]) -> Iterator[str]:
    yield summary_of(verdict)
    for finding in verdict.findings:
        yield ""
        yield page_of(finding)
    for wait in weighed:
        kind = "not decided" if not wait.findings else wait.findings[0].kind
        yield f"without '{wait.step}' ({wait.where}): {'no difference' if wait.makes_no_difference else kind}"


def _as_dict(verdict: ProtocolVerdict, weighed: tuple[WaitVerdict, ...]) -> dict[str, Any]:
    return {
        "holds": verdict.holds,
        "complete": verdict.complete,
        "states": verdict.states,
        "turns": verdict.turns,
        "findings": [_finding(finding) for finding in verdict.findings],
        "waits": [
            {
                "where": wait.where,
                "step": str(wait.step),
                "makes_no_difference": wait.makes_no_difference,
                "findings": [finding.sentence for finding in wait.findings],
            }
            for wait in weighed
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return attrs.asdict(finding, filter=lambda field, _: field.name != "processes")
