"""Recordings of frozen graphs, kept for later processes: a graph that was recorded once is replayed without compiling.

A process that records what Inductor made of a graph of Dynamo's writes the plan, the kernels and the folded constants
into the cache of the machine. A later one whose graph has the same key (`traced_key`) and whose frozen weights have the
same values loads them: AOTAutograd, the passes and Inductor are not asked. Whatever the recording does not answer (a
call of another signature, the account of the graph) has the graph compiled then, as it would have been at first.

Kept is a recording that is right for any inputs of its signature, of a graph around which AOTAutograd does nothing of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define
from torch._inductor import config as inductor_config

from npucompose.recorder import LowerRequest
from npucompose.results.graphs import Winner
from npucompose.table.structure import facts_of, of_facts
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.inductor.frozen_weights import weights_of
from npucompose_replay.kept import files as kept_files
from npucompose_replay.kept.restored_graph import Compiling, RestoredGraph, called
from npucompose_replay.kept.traced_key import NoKey, key_of
from npucompose_replay.kept.weight_digest import MOST_BYTES, digest_of
from npucompose_replay.products.winners import read
from npucompose_replay.written_plan import Unwritten, written

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend
    from npucompose_replay.front.generated_cache import HowOften
    from npucompose_replay.products.winners import Winners


@define(kw_only=True, eq=False)
class KeptGraph:
    """One graph of Dynamo's on its way to a recording: `restored()`, or `keep` what was recorded of it."""

    backend: Backend
    count: int
    """Of Dynamo's inputs."""
    winners: Winners
    key: str
    weights: Sequence[torch.Tensor]
    """The constants of Dynamo's graph."""
    graph: str = ""
    """The key under which its products are known; what Inductor compiled."""
    plain: bool = False
    """AOTAutograd's wrapper only calls the graph and raises versions of what the recording knows to be written."""
    unfrozen: tuple[int, ...] = ()
    """The weights that the graph has as inputs, in order: those that it writes to or returns."""
    digest: str | None = None
    """Of the values of all others as they were frozen; None for a graph that is not kept, or is already."""

    @classmethod
    def of(
        cls, backend: Backend, graph_module: fx.GraphModule, inputs: Sequence[Any], winners: Winners
    ) -> KeptGraph | None:
        """None for a graph of which nothing can be kept."""
        weights = weights_of(graph_module)
        if not weights or not keeps(backend):
            return None
        if not all(weight.watchable for weight in weights):
            return None
        try:
            key = key_of(backend, graph_module, inputs, backend.sources)
        except NoKey:
            return None
        tensors = [weight.tensor for weight in weights]
        return cls(backend=backend, count=len(inputs), winners=winners, key=key, weights=tensors)

    # -- keeping

    def compiled(self, graph: str, changed: tuple[torch.Tensor | int, ...] | None, unfrozen: Collection[int]) -> None:
        """The graph was compiled; `changed` is as `changed_by_a_plain_wrapper` has it, `unfrozen` are ids of weights
        that stayed inputs."""
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        self.graph = graph
        self.plain = changed is not None and all(isinstance(one, int) or id(one) in places for one in changed)
        self.unfrozen = tuple(sorted(places[one] for one in unfrozen if one in places))
        self.digest = self._digest(self.unfrozen)

    def keep(self, recording: Any, inputs: Sequence[Any]) -> None:
        """Keep what was recorded for `inputs` of the compiled graph, if it can be; the first recording alone."""
        digest, self.digest = self.digest, None
        if not isinstance(recording, CapturedGraph) or recording.fixed or recording.shares_inputs:
            return
        sources = self._sources(inputs)
        if sources is None or digest is None or not self.plain or recording.verdict:
            return
        try:
            plan = written(recording.plan, self.weights)
        except Unwritten:
            return
        if sum(constant.untyped_storage().nbytes() for constant in plan.constants) > MOST_BYTES:
            return
        place = self._folder
        facts = {
            "inputs": sources,
            "signature": list(recording.signature),
            "graph": self.graph,
            "winners": {key: facts_of(one) for key, one in self.winners.found.items()},
            "identity": self.winners.identity(),
            "plan": plan.facts,
        }
        try:
            kept_files.write(place / digest, facts, plan)
        except OSError:  # a library that somebody has deleted: nothing is kept
            return
        kept_files.keep_facts(place / "weights.json", {"unfrozen": self.unfrozen})
        kept_files.make_room(place.parent, place)

    def _sources(self, inputs: Sequence[Any]) -> list[list[Any]] | None:
        """Of each input of the compiled graph: the weight that it is, or which of Dynamo's inputs; None where that is
        not clear."""
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        found: list[list[Any]] = []
        given = 0
        for value in inputs:
            if id(value) in places:
                found.append(["weight", places[id(value)]])
            else:
                found.append(["input", given])
                given += 1
        kept = [place for kind, place in found if kind == "weight"]
        return found if given == self.count and sorted(kept) == list(self.unfrozen) else None

    def _digest(self, unfrozen: Sequence[int]) -> str | None:
        frozen = [weight for place, weight in enumerate(self.weights) if place not in set(unfrozen)]
        return digest_of(frozen)

    @property
    def _folder(self) -> Path:
        return kept_files.folder_of(self.key)

    # -- restoring

    def restored(
        self, graph_module: fx.GraphModule, how: Callable[[LowerRequest], HowOften], compiling: Compiling
    ) -> Callable[..., Any] | None:
        """What is called in the place of the compiled graph; None where nothing is kept that is right here."""
        known = kept_files.facts_in(self._folder / "weights.json")
        unfrozen = tuple(known.get("unfrozen", ()))
        digest = self._digest(unfrozen) if known else None
        if digest is None:
            return None
        facts = kept_files.facts_in(self._folder / f"{digest}.json")
        kept = kept_files.read(self._folder / digest, facts) if facts and self._still_wins(facts) else None
        if kept is None:
            return None
        self.unfrozen = unfrozen
        watch = self.backend.frozen.watch(graph_module)
        assert watch is not None
        watch.froze({id(self.weights[place]) for place in unfrozen})
        watch.checked_by(build.load().Weights())
        graph = RestoredGraph(
            backend=self.backend,
            weights=self.weights,
            winners=self.winners,
            graph_module=graph_module,
            facts=facts,
            files=kept,
            watch=watch,
            how=how,
            compiling=compiling,
        )
        return called(graph)

    def _still_wins(self, facts: Mapping[str, Any]) -> bool:
        """The machine would choose the same now: what was measured holds, and the products are Inductor's last."""
        graph, winners = facts["graph"], {}
        for key, one in facts["winners"].items():
            winners[key] = of_facts(Winner, one, where=key)
        products = self.winners.products(graph)
        measured = [w for key, w in winners.items() if w.by in ("measured", "remembered") and key not in products]
        for one in measured:
            now = read(one.key, self.winners.threads)
            if now is None or now.winner != one.winner:
                return False
            winners[one.key] = now
        if facts["identity"] != self.winners.identity():
            return False
        self.winners.found.update(winners)
        return True


def keeps(backend: Backend) -> bool:
    """Nobody has asked Inductor to keep nothing."""
    asked = backend.inductor.settings().get("fx_graph_cache")
    here = inductor_config.fx_graph_cache if asked is None else asked
    return bool(here) and not inductor_config.force_disable_caches
