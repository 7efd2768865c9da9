"""Code that Inductor made of a graph in an earlier process, called in the place of the graph.

Knows how Inductor's cache is asked (torch/_inductor/codecache.py, FxGraphCache), as torch's cache of AOTAutograd does
(torch/_functorch/_aot_autograd/aot_autograd_result.py, FxGraphCacheLoadable; torch 2.13).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraphConstants
from torch._inductor.utils import BoxedBool

from npucompose.graphs import Snapshot
from npucompose.table.structure import facts_of
from npucompose.targets.compilation import Compilation
from npucompose.targets.compilers import eager_at_hand
from npucompose_replay.inductor import cache as inductor_cache
from npucompose_replay.inductor.kernels import made_our_way
from npucompose_replay.inductor.subjects import Subject
from npucompose_replay.inductor.unfused import Untraced
from npucompose_replay.kept.code import KeptCode
from npucompose_replay.kept.traced_key import state_text
from npucompose_replay.products.winners import digest_of

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend
    from npucompose_replay.inductor.subjects import Recorder
    from npucompose_replay.products.winners import Winners


SETTINGS, PLACE = "TORCHINDUCTOR_", "TORCHINDUCTOR_CACHE_DIR"
"""How the names of variables begin that set an option of Inductor's; the one that says nothing of the code."""


def code_of(subject: Subject, compiled: Any, *, inputs: int, given: int) -> KeptCode | None:
    """What Inductor `compiled` of a graph with so many inputs, of Dynamo's that is `given` so many; None for what
    cannot be called without AOTAutograd, or is not in Inductor's cache."""
    key, changed = getattr(compiled, "_fx_graph_cache_key", None), subject.changed
    if key is None or changed is None or subject.watch is not None or inputs != given:
        return None
    numbers = tuple(one for one in changed if isinstance(one, int))
    if len(numbers) != len(changed):
        return None
    return KeptCode(
        key=key,
        guards=compiled.guards_expr or "",
        graph=subject.key,
        state=_state(),
        fixed=tuple(sorted(subject.fixed)),
        changed=numbers,
    )


def restored(
    kept: KeptCode,
    backend: Backend,
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    recorder: Recorder | None,
    winners: Winners,
) -> Callable[..., Any] | None:
    """What is called in the place of the graph; None where the code is not there."""
    if kept.state != _state():
        return None
    # Of flags and settings a library has its key: with others it would be compiled again.
    with inductor_config.patch(dict(backend.inductor.settings())), made_our_way():
        called = compiled = _found(kept, example_inputs)
        if compiled is None:
            return None
        for product, winner in winners.products(kept.graph).items():
            winners.compiled(product, winner)
        if recorder is not None:
            called = recorder.lowered(_subject(kept, graph_module), compiled)
    before = Snapshot.from_graph(graph_module.graph)
    backend.made.append(
        Compilation(
            id="graph_0", before=before, after=before, graph_module=graph_module, lowered=called, winners=winners.found,
            code=facts_of(kept),
        )
    )  # fmt: skip

    def call(*inputs: Any) -> Any:
        outputs = called(list(inputs))
        written = [inputs[at] for at in kept.changed if not inputs[at].is_inference()]
        if written:
            torch.autograd.graph.increment_version(written)
        return outputs

    return eager_at_hand(call, graph_module)


def _state() -> str:
    """Of this process. The key in Inductor's cache holds it too (codecache.py, FxGraphHashDetails), and nobody makes
    that key anew; Inductor's settings as they were when it was imported may come from the environment."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS) and name != PLACE}
    return digest_of(state_text(), sorted(settings.items()))


def _subject(kept: KeptCode, graph_module: fx.GraphModule) -> Subject:
    return Subject(
        key=kept.graph, fixed=frozenset(kept.fixed), watch=None, changed=kept.changed,
        written=frozenset(kept.changed), graph_module=graph_module, unfused=_not_at_hand,
    )  # fmt: skip


def _found(kept: KeptCode, example_inputs: Sequence[Any]) -> Any:
    """Loaded for inputs with these symbols; None where Inductor's cache has it no more."""
    fakes = [value for value in example_inputs if isinstance(value, torch._subclasses.FakeTensor)]
    if not fakes:
        return None
    constants = CompiledFxGraphConstants()
    with tracing(TracingContext(fakes[0].fake_mode)), inductor_cache.quick(keyed=False):
        compiled, _ = FxGraphCache.load_with_key(
            kept.key,
            [],
            list(example_inputs),
            local=True,
            remote_cache=None,
            is_backward=False,
            constants=constants,
            evaluate_guards=lambda guards, _: guards == kept.guards,
        )
        if compiled is not None:
            compiled.post_compile(
                list(example_inputs), constants, {"cudagraphs": BoxedBool(False), "is_backward": False}
            )
    return compiled


def _not_at_hand() -> fx.GraphModule:
    raise Untraced("is not at hand: only its code was kept")
