"""Who computes a product: who is pinned, whom this machine remembers, and else whom Inductor measures, for later.

A file for each product lies in the cache of the machine, beside the times of its kernels: what is faster is a
fact of the processor, its cores, torch and the number of threads, and of no project. Loads no torch by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
from attrs import define, field

from npucompose import private
from npucompose.errors import CompileError, ConfigError, listed
from npucompose.machine import cache_dir, installed_version, processor, thread_settings
from npucompose.results.graphs import Winner
from npucompose.table.structure import facts_of, of_facts
from npucompose.version import __version__

VERSION = 10
"""Of what a file holds; with another one everything is measured anew."""


@define(kw_only=True, eq=False)
class Winners:
    """Of one compiled graph. `found` grows while it is compiled and recorded."""

    pinned: Mapping[str, str] = field(factory=dict[str, str])
    threads: int = 1
    found: dict[str, Winner] = field(factory=dict[str, Winner], init=False)
    asked: set[str] = field(factory=set[str], init=False)
    """The products that Inductor asked for while it compiled."""

    def known(self, key: str, choices: Sequence[str]) -> Winner | None:
        """Of this process, pinned, or remembered; None where somebody has to measure.

        CompileError for a pinned one that cannot compute it here.
        """
        winner = self.found.get(key) or self._known(key, choices)
        if winner is not None:
            self.found[key] = winner
        return winner

    def _known(self, key: str, choices: Sequence[str]) -> Winner | None:
        remembered = read(key, self.threads)
        if remembered is not None and remembered.winner not in choices:
            remembered = None
        if key in self.pinned:
            return _pinned(key, self.pinned[key], choices, remembered)
        return remembered

    def compiled(self, key: str, winner: str) -> None:
        """Of a product in code that Inductor had kept: who computes it there, whatever would be chosen now."""
        pinned = self.pinned.get(key) == winner
        found = None if pinned else read(key, self.threads)
        if found is None or found.winner != winner:
            found = Winner(key=key, winner=winner, by="pinned" if pinned else "remembered")
        self.found[key] = found

    def keep(self, winner: Winner, *, remembered: bool = True) -> Winner:
        """From now on, and on this machine where it was measured and is to be remembered."""
        self.found[winner.key] = winner
        if remembered:
            keep(winner, self.threads)
        return winner

    def identity(self) -> str:
        """Of what code that Inductor keeps of a graph depends on here: what is pinned."""
        return digest_of(sorted(self.pinned.items())) if self.pinned else ""

    def products(self, graph: str) -> Mapping[str, str]:
        """{product: who computes it} of the code that Inductor last compiled of the graph."""
        found = _read(_file(_products(graph), self.threads)).get("products", {})
        return {str(key): str(winner) for key, winner in found.items()} if isinstance(found, dict) else {}

    def keep_products(self, graph: str, products: Mapping[str, str]) -> None:
        """Remember them for a process in which Inductor finds the graph compiled, and asks nobody."""
        _write(_file(_products(graph), self.threads), {"products": dict(products)})


def _pinned(key: str, value: str, choices: Sequence[str], remembered: Winner | None) -> Winner:
    if value not in choices:
        raise CompileError(
            f"target.kernels.{key}: {value} cannot compute this here. Possible: {listed(choices)}. Without that line, "
            "or with `npucompose recipe verify --kernels measured`, this machine chooses by itself."
        )
    here = remembered.winner if remembered is not None and remembered.winner != value else None
    return Winner(key=key, winner=value, by="pinned", here=here)


def folder() -> Path:
    """Of the files that hold here."""
    identity = (
        VERSION,
        __version__,
        *processor(),
        installed_version("torch"),
        tuple(sorted(thread_settings().items())),
    )
    return cache_dir() / "winners" / digest_of(identity)[:16]


def digest_of(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:32]


def _products(graph: str) -> str:
    return f"products of {graph}"


def _file(key: str, threads: int) -> Path:
    return folder() / f"{digest_of(key)}-{threads}.json"


def read(key: str, threads: int) -> Winner | None:
    """What is remembered; None for nothing, and for a file that is none or that others could have written."""
    file = _file(key, threads)
    try:
        found = of_facts(Winner, _read(file), where=str(file))
    except ConfigError:
        return None  # it is measured anew, and replaced
    return attrs.evolve(found, by="remembered") if found.key == key else None


def keep(winner: Winner, threads: int) -> None:
    """Where nothing can be kept the next process measures again."""
    _write(_file(winner.key, threads), facts_of(winner))


def _read(file: Path) -> dict[str, Any]:
    """{} for no file, and for one that is none or that others could have written."""
    try:
        found = json.loads(private.read(file, cache_dir()) or "{}")
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _write(file: Path, facts: Mapping[str, Any]) -> None:
    private.keep(file, cache_dir(), json.dumps(facts))
