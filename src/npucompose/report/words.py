"""Words and numbers for people, shared by everything that prints a report."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.schema.record import Status

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "ok",
    "expect_failed": "an expectation failed",
    "numerics_failed": "wrong results",
    "illegal": "illegal configuration",
    "failed": "failed",
    "timeout": "timeout",
    "crashed": "crashed",
}
STATUS_STYLES: Mapping[Status, str] = {"ok": "bold green", "expect_failed": "bold yellow"}


def as_count(number: int, one: str, many: str | None = None) -> str:
    """`as_count(2, "match", "matches")` is `2 matches`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def contract_words(rtol: float, atol: float) -> str:
    """`rtol 1e-05, atol 1e-06`; `every bit` where both are 0."""
    given = [f"{name} {value:g}" for name, value in (("rtol", rtol), ("atol", atol)) if value]
    return ", ".join(given) or "every bit"


def as_time(microseconds: float) -> str:
    """`as_time(517.04)` is `517.0 µs`, `as_time(2_500)` is `2.50 ms`."""
    if microseconds < 1e3:
        return f"{microseconds:.1f} µs"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds / 1e6:.2f} s"


def as_bytes(number: int) -> str:
    """`as_bytes(9421)` is `9.2 KiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
