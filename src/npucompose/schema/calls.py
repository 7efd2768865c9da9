"""How the calls of recorded graphs ran."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class CallStatistics:
    """Calls of recorded graphs, by how they ran; calls of detached handles are not among them."""

    hits: int = 0
    """Replays of a recording that was there."""
    captures: int = 0
    """Calls that made a recording."""
    replacements: int = 0
    """Captures for which another recording went."""
    eager: int = 0
    """Calls without a recording: beyond the capture limit, not yet worth a capture, or beyond torch's versions."""

    @property
    def calls(self) -> int:
        return self.hits + self.captures + self.eager

    def if_any(self) -> CallStatistics | None:
        """None where nothing was counted."""
        return self if self.calls else None

    def since(self, before: CallStatistics) -> CallStatistics:
        """What has been added to `before`."""
        return CallStatistics(
            hits=self.hits - before.hits,
            captures=self.captures - before.captures,
            replacements=self.replacements - before.replacements,
            eager=self.eager - before.eager,
        )

    def __add__(self, other: CallStatistics) -> CallStatistics:
        return CallStatistics(
            hits=self.hits + other.hits,
            captures=self.captures + other.captures,
            replacements=self.replacements + other.replacements,
            eager=self.eager + other.eager,
        )
