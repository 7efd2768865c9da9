"""Programs as a user writes them: each row is compared with eager, in every way that this project offers.

A row is a function of `compiled`, which compiles a function or a module (in eager it returns what it was given), and
returns what is called: `call(*inputs)`, or `(call, state)` where `state` is whatever must be left the same as well: a
module, a list, a dict, any object. The inputs of each call are fresh: `inputs(k)` for call number k, by default one
matrix of 3 x 4 for each argument.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, overload

import torch
from attrs import frozen

Compiled = Callable[[Any], Any]
"""Compiles a function or a module in the way that is under test."""
Factory = Callable[[Compiled], Any]
Inputs = Callable[[int], tuple[Any, ...]]


@frozen(kw_only=True, eq=False)
class Row:
    """One program: `make(compiled)` builds it anew."""

    theme: str
    name: str
    make: Factory
    inputs: Inputs | None = None
    """None: a matrix for each argument of the call."""
    fast: bool = False
    """Part of `make test`."""
    overrides: tuple[str, ...] = ()
    """Choices of npucompose beside those of the way."""
    recording: tuple[str, ...] = ()
    """More of them, where kernels are recorded."""
    threads: int = 1
    """Of torch, within an operator."""
    fused: bool = True
    """Whether it runs in ways that fuse."""

    @property
    def id(self) -> str:
        return f"{self.theme}.{self.name}"

    def arguments(self, call: Callable[..., Any], k: int) -> tuple[Any, ...]:
        """The inputs of call number `k`: the same values whenever they are asked for."""
        torch.default_generator.manual_seed(1000 + k)
        if self.inputs is not None:
            return self.inputs(k)
        return tuple(torch.randn(3, 4) for _ in inspect.signature(call).parameters)


ROWS: dict[str, Row] = {}


@overload
def row(make: Factory) -> Factory: ...
@overload
def row(
    *,
    inputs: Inputs | None = None,
    fast: bool = False,
    overrides: tuple[str, ...] = (),
    recording: tuple[str, ...] = (),
    threads: int = 1,
    fused: bool = True,
) -> Callable[[Factory], Factory]: ...
def row(
    make: Factory | None = None,
    *,
    inputs: Inputs | None = None,
    fast: bool = False,
    overrides: tuple[str, ...] = (),
    recording: tuple[str, ...] = (),
    threads: int = 1,
    fused: bool = True,
) -> Any:
    """Enter a factory into `ROWS` under its own name and that of its file."""

    def enter(make: Factory) -> Factory:
        name = make.__name__
        theme = make.__module__.rpartition(".")[2]
        made = Row(
            theme=theme,
            name=name,
            make=make,
            inputs=inputs,
            fast=fast,
            overrides=overrides,
            recording=recording,
            threads=threads,
            fused=fused,
        )
        assert made.id not in ROWS, f"two rows are called {made.id}"
        ROWS[made.id] = made
        return make

    return enter if make is None else enter(make)


def all_rows() -> dict[str, Row]:
    """Every row of every file in this folder, by name."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
    return ROWS
