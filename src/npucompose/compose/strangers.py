"""Values that only the command line may say: folders that are written to, the address of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath

from npucompose.results.effective import COMMAND_LINE
from npucompose.schema.execution import Executor, Ray
from npucompose.vendor.compiler import EVERY_LEAF, CompilerOptions

WRITTEN = ("path", "dir")
"""Kinds of leaves that name a folder which is written to."""


def path_problems(options: CompilerOptions, said_by: Callable[[str], str]) -> Iterator[str]:
    """A sentence for each folder that the vendor's compiler would write to, leads out of the run directory, and was not
    named by the person; `said_by` tells the origin of a dotted key."""
    for path, value in options.changed().items():
        if EVERY_LEAF[path].kind not in WRITTEN or not isinstance(value, str):
            continue
        key, place = f"compiler.{path}", PurePath(value)
        if (place.is_absolute() or ".." in place.parts or value.startswith("~")) and said_by(key) != COMMAND_LINE:
            yield (
                f"{key}={value!r} leads out of the run directory and comes from {said_by(key)}; only the command line "
                "itself can say that."
            )


def address_problems(executor: Executor, said_by: Callable[[str], str], *, trust: bool) -> Iterator[str]:
    """A sentence where a file names the Ray cluster: Ray unpickles what a cluster answers."""
    origin = said_by("executor.address")
    if isinstance(executor, Ray) and executor.address != "auto" and origin != COMMAND_LINE and not trust:
        yield (
            f"executor.address={executor.address} comes from {origin}, and a cluster's answers can run code here. If "
            "you trust it, say the address on the command line, or trust=true."
        )
