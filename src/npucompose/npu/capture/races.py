"""Words for the races of a capture: what is done where, and the wait that is missing. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npucompose.races import Race, RaceKind

RULES: Mapping[RaceKind, str] = {
    "read": "unordered_read", "overwrite": "unordered_overwrite", "write": "unordered_write",
    "reuse": "unordered_reuse",
}  # fmt: skip
"""{what the later task does: the row of rules.yaml}."""
_DOES: Mapping[RaceKind, str] = {
    "read": "reads, unordered, the", "overwrite": "overwrites, unordered, the", "write": "writes, unordered, the",
    "reuse": "writes, unordered, in memory of a dropped",
}  # fmt: skip


def words(race: Race, name: Callable[[int], str]) -> str:
    """`aten.add on the capturing stream reads, unordered, the float32[4, 4] that aten.mul on stream 2 writes (…)`."""
    first, then = race.first, race.then
    did = "writes" if race.writes_first else "reads"
    at = f" ({first.source})" if first.source else ""
    met = "" if race.sure else ", perhaps other elements of it,"
    return (
        f"{then.what} on {name(then.stream)} {_DOES[race.kind]} {race.value} that {first.what} on {name(first.stream)} "
        f"{did}{met}{at}"
    )


def missing_wait(race: Race, name: Callable[[int], str]) -> str:
    """What orders the two: `let the capturing stream wait for stream 2 between m.py:9 and m.py:11: …`."""
    first, then = race.first, race.then
    wait = f"let {name(then.stream)} wait for {name(first.stream)}{_between(first.source, then.source)}"
    if race.kind == "reuse":
        return f"tensor.record_stream of {name(first.stream)} before the tensor is dropped, or {wait}"
    return f"{wait}: event.record() on {name(first.stream)}, then event.wait() on {name(then.stream)}"


def _between(first: str | None, then: str | None) -> str:
    """` between m.py:9 and m.py:11`."""
    places = [source.partition(" in ")[0] for source in (first, then) if source is not None]
    return f" between {' and '.join(places)}" if len(places) == 2 else ""
