"""How the points of a sweep are found: all that the command line spells out, or asked for one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from npucompose.table.options import option

Direction = Literal["minimize", "maximize"]


@frozen(kw_only=True)
class Dimension:
    """What one key may be: `{one_of: [eager, reduce-overhead]}`, `{low: 1, high: 8}`, `{low: 0.1, high: 9, log: true}`.

    It is an integer where `low`, `high` and `step` are.
    """

    one_of: tuple[Any, ...] | None = option(None, "the values, as they are written in YAML")
    low: int | float | None = option(None, "the smallest number")
    high: int | float | None = option(None, "the largest number")
    step: int | float | None = option(None, "from one number to the next; null: 1 for integers, none for others")
    log: bool = option(False, "small numbers matter as much as large ones")
    when: Mapping[str, tuple[Any, ...]] = option(
        factory=dict, doc="{key named before: its values} for which this key is set at all"
    )

    def __attrs_post_init__(self) -> None:
        if (self.one_of is None) == (self.low is None or self.high is None):
            raise ValueError("a dimension has either 'one_of', or 'low' and 'high'")
        if self.one_of is not None:
            if not self.one_of or self.step is not None or self.log:
                raise ValueError("'one_of' takes at least one value, and neither 'step' nor 'log'")
            return
        assert self.low is not None
        assert self.high is not None
        if self.low > self.high or (self.step is not None and self.step <= 0):
            raise ValueError(f"from 'low' {self.low} to 'high' {self.high} by 'step' {self.step} there is nothing")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("'log' needs a 'low' above 0 and takes no 'step'")

    @property
    def whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step) if number is not None)


@frozen(kw_only=True)
class NoSearch:
    """Every combination of the values on the command line."""

    name: Literal["none"] = option("none", "the choice of conf/search this is")


@frozen(kw_only=True)
class Optuna:
    """Optuna proposes points of `space`, told what became of those before."""

    name: Literal["optuna"] = option("optuna", "the choice of conf/search this is")
    trials: int = option(
        50, "points that are asked for in all; a larger number goes on where an earlier search ended", ge=1
    )
    objectives: Mapping[str, Direction] = option(
        factory=dict,
        doc="{figure of `npucompose report`: minimize or maximize}; several: a front",
    )
    space: Mapping[str, Dimension] = option(factory=dict, doc="{group or dotted key: what it may be}")
    sampler: Literal["tpe", "random"] = option("tpe", "who proposes")
    seed: int = option(0, "of the sampler", ge=0)


Search = NoSearch | Optuna
