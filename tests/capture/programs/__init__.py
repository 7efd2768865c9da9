"""Capture programs: one mistake each, or what only looks like one, with the runtime's code and the public source.

A program is a function of `x`, a 4 x 4 tensor of float32 on the device, and of what `before` made before the capture
began (streams, events, tensors). It is written for a device: `device="npu"` or `x.device`, `torch.npu` for streams.
Whatever calls programs puts `torch.npu` and such a device there. The guilty line of a fault bears `# here`.

    for program in PROGRAMS:
        call = program.made()          # before the capture
        call(x)                        # in it, under program.mode
        program.rule, program.code     # expected; rule None: nothing is refused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen

from npucompose.npu.capture.rules import CaptureMode


@frozen(kw_only=True)
class Program:
    """One program, and what the runtime says of it."""

    name: str
    body: Callable[..., Any]
    rule: str | None
    """A row of capture/rules.yaml; None: a capture holds the program."""
    unlike: str
    """The rule that it breaks, or only seems to break."""
    code: int | None
    """What the runtime answers; None where torch_npu or torch refuses before it is asked."""
    source: str
    """Where that is public: file and line. RT, TN, OP, VA: repository and commit as in capture/rules.yaml; `dev_guide`
    is RT's docs/zh/dev_guide, of which 04-01 is on one stream and 04-02 on several."""
    before: Callable[[], Any] | None = None
    """Makes what the program needs, outside the capture."""
    mode: CaptureMode = "global"
    torch_npu: str = "2.13.0"
    """The version for which that holds; `since` and `until` of the rule say which others."""
    sure: bool = True
    """False: no public rule decides it, and the verdict is unknown."""

    def made(self) -> Callable[[torch.Tensor], Any]:
        """The program, ready to be called in a capture."""
        if self.before is None:
            return self.body
        kept = self.before()
        more = kept if isinstance(kept, tuple) else (kept,)
        return lambda x: self.body(x, *more)


_FOUND: dict[str, Program] = {}
Body = Callable[..., Any]


def fault(rule: str, code: int | None, source: str, before: Callable[[], Any] | None = None, **more: Any) -> Any:
    """The function breaks the rule."""
    return lambda body: _put(body, rule=rule, unlike=rule, code=code, source=source, before=before, **more)


def legal(unlike: str, source: str, before: Callable[[], Any] | None = None, **more: Any) -> Any:
    """A capture holds the function, though it looks like breaking the rule."""
    return lambda body: _put(body, rule=None, unlike=unlike, code=None, source=source, before=before, **more)


def _put(body: Body, **fields: Any) -> Body:
    name = body.__name__
    assert name not in _FOUND, f"two programs are named {name}"
    _FOUND[name] = Program(name=name, body=body, **fields)
    return body


def programs() -> Mapping[str, Program]:
    """Every program by its name."""
    from tests.capture.programs import copies, graphs, host, numbers, operators, races, streams

    assert all((copies, graphs, host, numbers, operators, races, streams))
    return _FOUND
