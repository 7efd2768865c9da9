"""An option that does not take effect as asked: one entry of `effective` in report.json."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class Effective:
    """`Effective(option="compiler.ge_config.oo_level", requested="O1", effective="O3", why="…")`."""

    option: str
    """Dotted path in the experiment."""
    requested: Any
    effective: Any
    """The value that is as good as in force; None where there is none."""
    why: str
