"""What a tracker is: a name, the package it needs, and a function that reports one run. Loads none of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from attrs import frozen

from npucompose.registry import Registry
from npucompose.report.json import Tracked


@frozen(kw_only=True)
class Order:
    """What the tracker's own process is given."""

    name: str
    place: str | None
    experiment: str
    store: str
    folders: tuple[str, ...]


class RunTracker(ABC):
    """Where finished runs are filed, as `tracker=NAME` asks; it lives in a process of its own."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """What has to be importable, and the extra of npucompose that brings it."""

    @classmethod
    @abstractmethod
    def reporter(cls, order: Order) -> Callable[[Tracked, bool], None]:
        """A function that reports one run, or leaves it out where a run that ran nothing (True) is filed already."""


TRACKERS: Registry[type[RunTracker]] = Registry(kind="tracker", base=RunTracker, group="npucompose.trackers")
