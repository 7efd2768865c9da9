"""Recordings of frozen graphs, kept for later processes: a graph that was recorded once is replayed without compiling.

A process that records what Inductor made of a graph of Dynamo's writes the plan, the kernels and the folded constants
into the cache of the machine. A later one whose graph has the same key (`traced_key`) and whose frozen weights have the
same values loads them: AOTAutograd, the passes and Inductor are not asked. Whatever the recording does not answer (a
call of another signature, the account of the graph) has the graph compiled then, as it would have been at first.

Kept is a recording that is right for any inputs of its signature, of a graph around which AOTAutograd does nothing of
its own, whose winners were measured or chosen by a person.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config

from npucompose import private
from npucompose.machine import cache_dir
from npucompose.replay import gate
from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.executor import build
from npucompose.replay.front.graph_cache import GraphCache
from npucompose.replay.interface import LowerRequest, SeenCall, note, watchers
from npucompose.replay.memory.arena import Arena
from npucompose.replay.memory.inputs import signature
from npucompose.replay.operands import sharing
from npucompose.replay.written_plan import Unwritten, WrittenPlan, read_plan, written
from npucompose.results.winners import Winner
from npucompose.table.structure import facts_of, of_facts
from npucompose.targets.frozen_weights import Watch, weights_of
from npucompose.targets.traced_key import NoKey, key_of
from npucompose.targets.weight_digest import MOST_BYTES, digest_of
from npucompose.targets.winners import read

if TYPE_CHECKING:
    from torch import fx

    from npucompose.replay.front.generated_cache import HowOften
    from npucompose.targets.compilation import Backend
    from npucompose.targets.winners import Winners

Compiling = Callable[..., Callable[..., Any]]
"""`CpuTarget._through_inductor`."""
FOLDER = "graphs"
MOST_KEPT = 4 << 30
"""So many bytes are kept of all graphs; those that were used longest ago go first."""
ALIGNED = 64
"""Bytes: where constants begin in their file."""


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
    """The key under which its winner is known; what Inductor compiled."""
    changed: list[tuple[str, int]] | None = None
    """What AOTAutograd's wrapper raises the version of; None where it does more than that."""
    unfrozen: tuple[int, ...] = ()
    """The weights that the graph has as inputs, in order: those that it writes to or returns."""

    @classmethod
    def of(
        cls, backend: Backend, graph_module: fx.GraphModule, inputs: Sequence[Any], winners: Winners
    ) -> KeptGraph | None:
        """None for a graph of which nothing can be kept."""
        weights = weights_of(graph_module)
        if not weights or not _keeps(backend) or winners.measuring == "always":
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
        """The graph was compiled; `changed` is as `changed_by_a_plain_wrapper` has it, `unfrozen` are ids of weights that
        stayed inputs."""
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        self.graph = graph
        if changed is not None and all(isinstance(one, int) or id(one) in places for one in changed):
            self.changed = [("input", one) if isinstance(one, int) else ("weight", places[id(one)]) for one in changed]
        self.unfrozen = tuple(sorted(places[one] for one in unfrozen if one in places))

    def keep(self, recording: Any, inputs: Sequence[Any]) -> None:
        """Keep what was recorded for `inputs` of the compiled graph, if it can be."""
        if not isinstance(recording, CapturedGraph) or recording.fixed or recording.shares_inputs:
            return
        sources = self._sources(inputs)
        digest = self._digest(self.unfrozen)
        if sources is None or digest is None or self.changed is None or not self._decided() or recording.verdict:
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
            "changed": self.changed,
            "signature": list(recording.signature),
            "graph": self.graph,
            "winners": {key: facts_of(one) for key, one in self.winners.found.items()},
            "identity": self.winners.identity(self.graph),
            "plan": plan.facts,
        }
        _write(place / digest, facts, plan)
        private.keep(place / "weights.json", cache_dir(), json.dumps({"unfrozen": self.unfrozen}))
        _make_room(place.parent, place)

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

    def _decided(self) -> bool:
        """Nobody would measure anything of it in a later process."""
        return not any(one.may_change for one in self.winners.found.values())

    @property
    def _folder(self) -> Path:
        return cache_dir() / FOLDER / self.key

    # -- restoring

    def restored(
        self, graph_module: fx.GraphModule, how: Callable[[LowerRequest], HowOften], compiling: Compiling
    ) -> Callable[..., Any] | None:
        """What is called in the place of the compiled graph; None where nothing is kept that is right here."""
        known = _facts(self._folder / "weights.json")
        unfrozen = tuple(known.get("unfrozen", ()))
        digest = self._digest(unfrozen) if known else None
        if digest is None:
            return None
        facts = _facts(self._folder / f"{digest}.json")
        kept = _read(self._folder / digest, facts) if facts and self._still_wins(facts) else None
        if kept is None:
            return None
        self.unfrozen = unfrozen
        watch = self.backend.frozen.watch(graph_module)
        assert watch is not None
        watch.froze({id(self.weights[place]) for place in unfrozen})
        watch.checked_by(build.load().Weights())
        graph = RestoredGraph(
            kept=self, graph_module=graph_module, facts=facts, files=kept, watch=watch, how=how, compiling=compiling
        )
        return _called(graph)

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
        if facts["identity"] != self.winners.identity(graph):
            return False
        self.winners.found.update(winners)
        return True


def _keeps(backend: Backend) -> bool:
    """Nobody has asked Inductor to keep nothing."""
    asked = backend.inductor.settings().get("fx_graph_cache")
    here = inductor_config.fx_graph_cache if asked is None else asked
    return bool(here) and not inductor_config.force_disable_caches


@frozen(kw_only=True)
class KeptFiles:
    """What `_write` wrote beside the facts."""

    constants: Sequence[torch.UntypedStorage]
    libraries: Sequence[str]


def _write(place: Path, facts: Mapping[str, Any], plan: WrittenPlan) -> None:
    """The facts last: they name the other files, with a digest of each."""
    root, libraries = cache_dir(), list[str]()
    content = bytearray()
    sizes: list[int] = []
    for constant in plan.constants:
        storage = constant.untyped_storage()
        content += bytes(-len(content) % ALIGNED)
        content += (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())[:] if storage.nbytes() else b""
        sizes.append(storage.nbytes())
    for library in plan.libraries:
        code = Path(library).read_bytes()
        name = f"{hashlib.sha256(code).hexdigest()[:32]}.so"
        if not (place.parent / name).is_file():
            private.keep(place.parent / name, root, code)
        libraries.append(name)
    private.keep(place.with_suffix(".bin"), root, bytes(content))
    more = {"libraries": libraries, "sizes": sizes, "digest": hashlib.sha256(content).hexdigest()}
    private.keep(place.with_suffix(".json"), root, json.dumps({**facts, **more}))


def _facts(file: Path) -> dict[str, Any]:
    """{} for no file, and for one that is none or that others could have written."""
    try:
        found = json.loads(private.read(file, cache_dir()) or "{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(place: Path, facts: Mapping[str, Any]) -> KeptFiles | None:
    """None where a file lacks, is not what was written, or could be somebody else's."""
    libraries = [place.parent / name for name in facts["libraries"]]
    content = place.with_suffix(".bin")
    if any(not file.is_file() or private.doubt(file, cache_dir()) for file in (content, *libraries)):
        return None
    data = content.read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["digest"]:
        return None
    if any(hashlib.sha256(file.read_bytes()).hexdigest()[:32] != file.stem for file in set(libraries)):
        return None
    with suppress(OSError):
        content.touch()
    return KeptFiles(constants=list(_storages(data, facts["sizes"])), libraries=[str(file) for file in libraries])


def _storages(data: bytes, sizes: Sequence[int]) -> Iterator[torch.UntypedStorage]:
    at = 0
    for nbytes in sizes:
        at += -at % ALIGNED
        storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        ctypes.memmove(storage.data_ptr(), data[at : at + nbytes], nbytes)
        at += nbytes
        yield storage


def _make_room(folder: Path, newest: Path) -> None:
    """Let go of what was used longest ago."""
    with suppress(OSError):
        sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folder.iterdir() if one.is_dir()}
        used = {one: max(file.stat().st_mtime for file in one.iterdir()) for one in sizes if any(one.iterdir())}
        for oldest in sorted(used, key=used.__getitem__):
            if sum(sizes.values()) <= MOST_KEPT:
                return
            if oldest != newest:
                shutil.rmtree(oldest, ignore_errors=True)
                del sizes[oldest]


@define(kw_only=True, eq=False)
class RestoredGraph:
    """Called with Dynamo's inputs: replays what was kept, until somebody wants more than that."""

    kept: KeptGraph
    graph_module: fx.GraphModule
    """Dynamo's."""
    facts: Mapping[str, Any]
    files: KeptFiles
    watch: Watch
    how: Callable[[LowerRequest], HowOften]
    compiling: Compiling
    recording: CapturedGraph | None = None
    """Made at the first call: memory is planned over the inputs that come."""
    hits: int = 0
    _glance: tuple[Any, ...] = ()
    _sources: tuple[str | None, ...] = field(init=False)
    _context: Any = field(init=False)
    _freezing: bool = field(init=False)
    """What held while Dynamo traced."""
    _full: Callable[..., Any] | None = None
    _lock: Any = field(factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        backend = self.kept.backend
        self._sources, self._freezing = backend.sources, bool(inductor_config.freezing)
        self._context = copy.copy(TracingContext.try_get())
        backend.restored.append(self)
        self.watch.let_go.append(self._forget)

    def __call__(self, *given: Any) -> Any:
        if self._full is None:
            outputs = self._replayed(self._named(self.facts["inputs"], given))
            if outputs is not None:
                self.hits += 1
                if self.facts["changed"]:
                    torch.autograd.graph.increment_version(self._named(self.facts["changed"], given))
                return outputs
        return self.full()(*given)

    def _named(self, names: Sequence[tuple[str, int]], given: Sequence[Any]) -> list[Any]:
        return [self.kept.weights[at] if kind == "weight" else given[at] for kind, at in names]

    def _replayed(self, inputs: list[Any]) -> list[Any] | None:
        if gate.has_onlookers():
            return None
        if self.recording is None:
            with self._lock:
                self.recording = self.recording or self._made(inputs)
        if self.recording is None or self._within_a_replay:
            return None
        outputs = self.recording.try_replay(inputs)
        if outputs is not None and watchers:
            note(SeenCall(self.recording, inputs, outputs, self._how["capture_limit"], self.watch))
        return outputs

    def _made(self, inputs: list[Any]) -> CapturedGraph | None:
        """None for inputs of another signature than the recording's."""
        if gate.first_refused(inputs) or sharing(inputs) or list(signature(inputs)) != self.facts["signature"]:
            return None
        self._glance = tuple(value.shape for value in inputs)
        plan = read_plan(
            self.facts["plan"],
            weights=self.kept.weights,
            constants=self.files.constants,
            libraries=self.files.libraries,
            inputs=inputs,
        )
        how = self._how
        return CapturedGraph.from_plan(
            plan,
            inputs,
            executor=how.get("executor", "native"),
            clone_output=how.get("clone_output", False),
            workers=how.get("workers"),
            arena=self._request.memory,
        )

    @property
    def _within_a_replay(self) -> bool:
        memory = self._request.memory
        return isinstance(memory, Arena) and memory.is_mine()

    @property
    def _how(self) -> HowOften:
        return self.how(self._request)

    @functools.cached_property
    def _request(self) -> LowerRequest:
        backend = self.kept.backend
        return LowerRequest(
            mode=backend.mode,
            graph_module=self.graph_module,
            example_inputs=(),
            static_inputs=frozenset(),
            options=backend.options,
            memory=backend.common_memory,
            partial=backend.partial,
            at_once=backend.records_at_once,
        )

    def full(self) -> Callable[..., Any]:
        """What the graph is compiled to, which all calls are made through from now on."""
        with self._lock:
            if self._full is None:
                self._full = self._compiled()
                self._forget()
        return self._full

    def _compiled(self) -> Callable[..., Any]:
        backend, context, known = self.kept.backend, self._context, len(self.kept.backend.made)
        self._forget()
        fakes = [_fake(node.meta["example_value"], context.fake_mode) for node in self._placeholders]
        backend.resume(self._sources, fakes)
        with tracing(context), torch.no_grad(), inductor_config.patch(freezing=self._freezing):
            compiled = self.compiling(backend, self.graph_module, fakes, self.kept.winners, None, self.watch)
        for made in backend.made[known:]:
            if isinstance(made.lowered, GraphCache) and self.recording is not None:
                made.lowered.adopt(self.recording, self._glance)
        return compiled

    @property
    def _placeholders(self) -> Sequence[fx.Node]:
        return self.graph_module.graph.find_nodes(op="placeholder")

    def _forget(self) -> None:
        """It is not called any more, or in another way."""
        restored = self.kept.backend.restored
        restored[:] = [one for one in restored if one is not self]


def _fake(like: torch.Tensor, mode: Any) -> torch.Tensor:
    """A tensor without values, of the form of another."""
    with mode:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _called(restored: RestoredGraph) -> Callable[..., Any]:
    """A function of its own, which Dynamo calls; it holds the watch."""

    def call(*inputs: Any) -> Any:
        return restored(*inputs)

    call.watch = restored.watch  # type: ignore[attr-defined]
    return call
