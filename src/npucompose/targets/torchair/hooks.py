"""Our passes in TorchAir's two hooks, with a record of every graph that goes through them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from npucompose.errors import NpuComposeError
from npucompose.schema.leaf import ACLGRAPH, NPUGRAPH_EX
from npucompose.targets.torchair.overlaps import separate_overlaps
from npucompose.targets.torchair.patterns import begin as begin_patterns
from npucompose.targets.torchair.patterns import hand_over

if TYPE_CHECKING:
    from npucompose.passes.pipeline import Records
    from npucompose.targets.compilation import Backend, Compilation


class PassHooks:
    """`before` and `after` are called by TorchAir for each FX graph, in this order, its own passes in between.

    So the record's `text_after` shows what TorchAir's passes did as well.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._handed = hand_over(backend)
        self._pre = backend.pre.as_torchair_hook(self._tell, backend.constants)
        self._post = backend.post.as_torchair_hook(self._tell, backend.constants)
        self._open: Compilation | None = None

    @property
    def _writes_over_operands(self) -> bool:
        """Whether TorchAir's in-place pass comes after this."""
        options = self._backend.options
        if self._backend.mode == NPUGRAPH_EX:
            return bool(options["npugraph_ex.inplace_pass"])
        return self._backend.mode == ACLGRAPH and not options["debug.aclgraph.disable_reinplace_inplaceable_ops_pass"]

    def before(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        self._open = self._backend.begin(graph_module)
        begun = perf_counter()
        self._run(self._pre, graph_module, example_inputs, config)
        self._open.passes_s = perf_counter() - begun
        begin_patterns(self._handed, len(graph_module.graph.nodes))

    def after(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        compilation, self._open = self._open, None
        assert compilation is not None
        if self._handed is not None:
            compilation.passes = (*compilation.passes, self._handed.end(len(graph_module.graph.nodes)))
        begun = perf_counter()
        self._open = compilation
        self._run(self._post, graph_module, example_inputs, config)
        self._open = None
        if self._writes_over_operands and (record := separate_overlaps(graph_module)) is not None:
            compilation.passes = (*compilation.passes, record)
        compilation.passes_s += perf_counter() - begun
        self._backend.finish(compilation, graph_module)
        compilation.settle()

    def _run(self, hook: Callable[[Any, Any, Any], None], graph_module: Any, example_inputs: Any, config: Any) -> None:
        """TorchAir turns whatever is raised in here into an error of its own: ours is kept for `in_our_words`."""
        try:
            hook(graph_module, example_inputs, config)
        except NpuComposeError as error:
            self._backend.refusal = error
            raise

    def _tell(self, records: Records) -> None:
        assert self._open is not None
        self._open.passes = (*self._open.passes, *records)
