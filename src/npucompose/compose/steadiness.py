"""Does eager equal itself? Asked before it serves as a reference: called twice from one state, it must give one result.

# Note [Twice from one state]
Both calls start from rewound buffers and seeded random numbers. Where they differ, the model keeps state elsewhere:
then everything that its modules hold is rewound from a deep copy, and a third call shows whether that was all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import nn

from npucompose.compose.state import Spot, words_of
from npucompose.errors import listed
from npucompose.measure.numerics import compare
from npucompose.models.nested import mapped

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.results.measured import Numerics

SHOWN = 3
"""Attributes that a sentence names."""


@frozen(kw_only=True)
class Steadiness:
    """How far eager equals itself."""

    repeats: bool = True
    """Bit for bit."""
    within: bool = True
    """As far as the table of tolerances asks."""
    words: str | None = None
    """What is wrong with the model as a reference."""
    in_python: tuple[str, ...] = ()
    """Places that decide the result and change in a call, and are no tensors written in place: a replay leaves them."""

    @property
    def why_attached(self) -> str:
        return f"a call changes {_listed(self.in_python)} in Python, which a replay would leave out"


def steadiness_of(session: Session) -> Steadiness:
    """Calls eager twice, three times where it differs; makes the session's state rewind what it has to."""
    state, module = session.state, session.reference
    inputs = compare(dict(session.built.inputs(0)), dict(session.built.inputs(0)), exact=True)
    if not inputs.passed:
        words = f"the example inputs are others each time they are asked for: {'; '.join(inputs.problems)}"
        return Steadiness(repeats=False, within=False, words=words)
    state.rewind_all(module)
    versions = {name: parameter._version for name, parameter in module.named_parameters()}
    first = _called(session, module)
    changed = state.changed(module)
    written = [name for name, parameter in module.named_parameters() if parameter._version != versions[name]]
    state.rewind(module)
    second = compare(first, _called(session, module))
    if second.bitwise:
        return Steadiness()
    if not changed:
        return _unsteady(changed, written, second)
    known = tuple(spot.path for spot in changed if spot.known)
    state.outside = known or tuple(spot.path for spot in changed)
    state.rewind(module)
    third = compare(first, _called(session, module))
    if not third.bitwise:
        return _unsteady(changed, written, third)
    return Steadiness(
        words=f"the model keeps state outside its buffers, in {_shown(changed)}: a second eager call {_off(second)}. "
        "It is rewound with the buffers, from a deep copy",
        in_python=tuple(words_of(spot.path) for spot in changed if not spot.in_place),
    )


def _unsteady(changed: Sequence[Spot], written: Sequence[str], found: Numerics) -> Steadiness:
    """`found` compares two calls between which everything was rewound that can be."""
    if written:
        why = f"it writes to its parameters ({_listed(written)}), which all sides share"
    elif changed:
        why = f"{_shown(changed)} changed, and rewinding that does not help"
    else:
        why = (
            "none of its attributes changed: it draws numbers from a source of its own, keeps state outside its "
            "modules, or returns memory that nobody wrote"
        )
    words = f"the model differs from itself: called twice from one state, eager {_off(found)}; {why}"
    return Steadiness(repeats=False, within=found.passed and not written, words=words)


def _called(session: Session, module: nn.Module) -> Any:
    """What a call of step 0 leaves behind, as copies: the next call may overwrite it."""
    inputs = session.inputs(0)
    session.seed(0)
    result = session.call(module, inputs)
    return mapped([result, dict(inputs), list(module.buffers())], lambda tensor: tensor.detach().clone())


def _off(found: Numerics) -> str:
    if found.max_abs_err is None:
        return "gives something else (" + "; ".join(found.problems) + ")"
    return f"differs by up to {found.max_abs_err:.3g}"


def _shown(spots: Sequence[Spot]) -> str:
    """The places whose change can be seen; those of which nobody can tell only where there are no others."""
    return _listed([words_of(spot.path) for spot in spots if spot.known] or [words_of(spot.path) for spot in spots])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return listed(f"'{name}'" for name in names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def unsteady_result(found: Steadiness) -> Numerics | None:
    """The verdict on a model that no comparison can say anything of; None where one can."""
    from npucompose.results.measured import Numerics

    if found.within:
        return None
    return Numerics(
        reference="eager",
        max_abs_err=None,
        bitwise=False,
        passed=False,
        cause="model",
        model=found.words,
        problems=(found.words or "",),
    )


def seed_all(seed: int) -> None:
    """Every source of random numbers that a process has by itself."""
    import random

    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
