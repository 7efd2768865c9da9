"""The rules of a capture as data (`rules.yaml`): what is forbidden, the runtime's code, the fix, the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.input_safety import load_yaml
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose.vendor.versions import order_of

FILE = Path(__file__).with_name("rules.yaml")
CaptureMode = Literal["global", "thread_local", "relaxed"]
CAPTURE_MODES: tuple[CaptureMode, ...] = get_args(CaptureMode)


@frozen(kw_only=True)
class CaptureRule:
    """One row: `CaptureRule(code=107027, forbids="the host reads …", fix="torch.where(…)", sources=("…",))`."""

    code: int | None
    """What the runtime answers; None where torch_npu or torch refuses before the runtime is asked."""
    forbids: str
    fix: str
    sources: tuple[str, ...]
    also: tuple[int, ...] = ()
    """Further codes that the same line leaves in a log."""
    first: Mapping[CaptureMode, int] = option(factory=dict)
    """{capture_error_mode: the code that torch_npu raises there}, where it is another one than `code`."""
    call: str | None = None
    """The function whose answer torch_npu raises."""
    raises: str | None = None
    """The sentence that torch_npu raises itself."""
    modes: tuple[CaptureMode, ...] = CAPTURE_MODES
    """The capture_error_modes in which the rule holds."""
    invalidates: bool = False
    """The capture is lost, and its end answers `capture_lost`."""
    race: bool = False
    """Nothing is refused: a capture holds the work, and what a replay gives depends on how long its tasks take."""
    standing: Literal["proven", "derived"] = "proven"
    """How it is known that the rule is broken: seen in the call, or concluded from what another part would do."""
    since: str | None = None
    until: str | None = None
    """Versions of torch_npu from which, and before which, the rule holds; None: every one."""

    def holds(self, torch_npu: str | None) -> bool:
        """Whether it forbids something in that version; None stands for every version."""
        if torch_npu is None:
            return True
        begun = self.since is None or order_of(torch_npu) >= order_of(self.since)
        over = self.until is not None and order_of(torch_npu) >= order_of(self.until)
        return begun and not over


@frozen(kw_only=True)
class CaptureNote:
    """What a capture holds, and is not promised."""

    says: str
    """What a line of the model does, one clause."""
    sources: tuple[str, ...]


@frozen(kw_only=True)
class CaptureRules:
    """The table: `rules().of("host_read").code` is 107027."""

    version: int
    notes: Mapping[str, CaptureNote] = option(factory=dict)
    rules: Mapping[str, CaptureRule] = option(factory=dict)

    def of(self, name: str) -> CaptureRule:
        """The row of that name; ConfigError where there is none."""
        if name not in self.rules:
            raise ConfigError(unknown("capture rule", name, tuple(self.rules)))
        return self.rules[name]


@cache
def rules() -> CaptureRules:
    """The table of this version."""
    return structure(CaptureRules, load_yaml(FILE), "capture/rules.yaml")
