"""Calls of a compiled model under which Dynamo makes constants of the weights that it meets. Loads of Inductor nothing
but its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor import config as inductor_config

if TYPE_CHECKING:
    from npucompose_replay.inductor.frozen_weights import FrozenWeights


def freezing_while_tracing(compiled: Callable[..., Any], weights: FrozenWeights) -> Callable[..., Any]:
    """`compiled`, called in such a way that Dynamo makes constants of the weights that it meets.

    It looks at torch's own setting while it traces, before any backend is asked, and any call may be one that is
    traced. torch's closure is what torch itself sets around calls (2 µs; `config.patch` takes 24).
    """
    config: Any = inductor_config
    set_freezing = config._make_closure_patcher(freezing=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        if weights.full:
            weights.make_room_for_changes()
        take_back = set_freezing()
        try:
            return compiled(*args, **kwargs)
        except FailOnRecompileLimitHit:
            if not weights.make_room():
                raise
            return compiled(*args, **kwargs)
        finally:
            take_back()
            if weights.uncounted:
                weights.count_places()

    return call
