"""What the targets of TorchAir say and do, on fakes of its packages."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.errors import CompileError, ConfigError
from npucompose.npu.torchair import config, facts, refusals
from npucompose.npu.torchair import target as of_target
from npucompose.results.measured import MemoryFacts
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets.npu import NpuTarget
from npucompose.targets.npu_offline import NpuOfflineTarget
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES
from tests.targets.torchair_fakes import MODES, NO_CONVERTER, Asked, Backend, Packages, Pipeline

# The target.


def target(**more: Any) -> NpuTarget:
    return NpuTarget(**more)


def test_each_mode_can_what_torchair_can_in_it() -> None:
    told = {mode: target().capabilities(mode) for mode in MODES}
    assert [told[mode].scope_namespace for mode in MODES] == ["air", "air", "npugraph_ex", "air"]
    assert [told[mode].explicit_events for mode in MODES] == [False, True, True, True]
    assert not any(told[mode].asserts for mode in MODES), "no kernel and no converter: docs/npu_operators.md"
    assert [told[mode].captures for mode in MODES] == [False, True, True, False]
    assert [told[mode].frees_early for mode in MODES] == [False, True, True, False]
    assert [told[mode].core_limits for mode in MODES] == [True, True, True, False]
    assert [told[mode].super_kernels for mode in MODES] == [True, False, False, False]
    assert [told[mode].clone_option for mode in MODES] == [
        None, "debug.aclgraph.enable_output_clone", "npugraph_ex.clone_output", None,
    ]  # fmt: skip
    assert {(one.target, one.device, one.max_events, one.constants) for one in told.values()} == {
        ("npu", "npu", 1024, False)
    }
    assert [one.mode for one in told.values()] == list(MODES)
    assert [target().support(mode).trains for mode in MODES] == [True, False, False, False]
    assert [target().support(mode).caches for mode in MODES] == [True, True, True, False]
    assert [target().support(mode).exports for mode in MODES] == [True, False, False, False]
    for mode in MODES:
        assert target().support(mode).options == {path for path, leaf in EVERY_LEAF.items() if mode in leaf.modes}
    assert target().environment().items() >= {("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "0")}
    assert len(target().environment()) > 1
    assert (NpuTarget.detaches, NpuTarget.modes_share_a_process) == (False, False)


def test_the_memory_of_the_device_is_that_of_its_own_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the stage's own record, so that a name that `Memory` has not is noticed."""
    import torch

    asked: list[int] = []
    npu = SimpleNamespace(
        max_memory_allocated=lambda index: asked.append(index) or 7,
        max_memory_reserved=lambda index: asked.append(index) or 8,
        get_device_properties=lambda index: SimpleNamespace(total_memory=9),
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    memory = MemoryFacts(**target(index=3).device_memory())
    assert (memory.device_peak_bytes, memory.device_reserved_peak_bytes, memory.device_total_bytes) == (7, 8, 9)
    assert asked == [3, 3]
    assert NpuOfflineTarget().device_memory() == {}


def test_what_torchair_says_of_a_mode_and_of_patches_is_a_warning() -> None:
    told = [
        [warning.partition(":")[0] for warning in target(patch_for_hcom=p).warnings(mode)]
        for p in (False, True)
        for mode in MODES
    ]
    deprecated, unneeded = "mode=reduce-overhead", "target.patch_for_hcom=true"
    assert told == [[], [deprecated], [], [], [unneeded], [deprecated], [], []]


def overridden(mode: str, **asked: Any) -> list[tuple[str, Any, Any]]:
    paths = {
        path: asked.get(path.rpartition(".")[2], False if path != "aclgraph_config.use_custom_pool" else None)
        for path in LEAVES
    }
    paths |= {path: asked[path.rpartition(".")[2]] for path in LEAVES if path.rpartition(".")[2] in asked}
    return [(one.option, one.requested, one.effective) for one in target().overrides(mode, paths)]  # type: ignore[arg-type]


def test_what_torchair_turns_on_by_itself_is_told() -> None:
    ref_data = ("compiler.experimental_config.enable_ref_data", False, True)
    reuse = ("compiler.debug.aclgraph.disable_mempool_reuse_in_same_fx", False, True)
    assert overridden(GE, export_mode=True) == [ref_data]
    assert overridden(GE, export_mode=True, enable_ref_data=True) == []
    assert overridden(GE) == overridden(ACLGRAPH) == []
    assert overridden(ACLGRAPH, export_mode=True) == []
    assert overridden(ACLGRAPH, use_custom_pool="p") == [reuse]
    assert overridden(ACLGRAPH, use_custom_pool="p", disable_mempool_reuse_in_same_fx=True) == []
    assert overridden(NPUGRAPH_EX, use_custom_pool="p") == []


def test_several_processes_and_patches_in_a_captured_mode_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_target.Target, "check", lambda self, mode: None)
    check = of_target.TorchairTarget.check
    for size in ("", "0", "1"):
        monkeypatch.setenv("WORLD_SIZE", size)
        check(target(), GE)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2: target=npu compiles for one process"):
        check(target(), GE)
    for mode in (ACLGRAPH, NPUGRAPH_EX):
        check(target(), mode)
        with pytest.raises(ConfigError, match=r"target=npu_offline compiles for one process.*no link to other ranks"):
            check(NpuOfflineTarget(), mode)
    monkeypatch.delenv("WORLD_SIZE")
    check(target(patch_for_hcom=True), GE)
    for mode in (ACLGRAPH, NPUGRAPH_EX):
        with pytest.raises(ConfigError, match=rf"has no effect in mode={mode}; it takes effect in: max-autotune"):
            check(target(patch_for_hcom=True), mode)
        check(target(), mode)


def test_signals_and_levels_are_as_they_were_after_torchair_was_imported() -> None:
    kept = signal.getsignal(signal.SIGTERM)
    level = logging.getLogger("torchair").level
    logging.getLogger("torchair").setLevel(logging.ERROR)
    first = logging.getLogger("torchair")
    try:
        with of_target._own_signals_and_levels():
            assert "torchair" not in logging.root.manager.loggerDict
            assert logging.getLogger("torchair") is not first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) == kept
        assert logging.getLogger("torchair").level == logging.ERROR
    finally:
        signal.signal(signal.SIGTERM, kept)
        logging.getLogger("torchair").setLevel(level)


def test_a_failure_comes_out_in_our_words_and_a_refusal_as_it_was() -> None:
    backend: Any = Backend(refusal="of an earlier graph")
    with pytest.raises(CompileError, match="TorchAir has no GE converter"), refusals.translate_errors(backend):
        raise RuntimeError(NO_CONVERTER)
    with pytest.raises(RuntimeError, match="else"), refusals.translate_errors(backend):
        raise RuntimeError("else")
    refusal = ConfigError("ours")

    def refused() -> None:
        with refusals.translate_errors(backend):
            backend.refusal = refusal
            raise RuntimeError(NO_CONVERTER)

    with pytest.raises(ConfigError) as caught:
        refused()
    assert caught.value is refusal
    with refusals.translate_errors(backend):
        assert backend.refusal is None


def test_what_fails_when_a_graph_is_captured_is_told_as_what_fails_while_compiling() -> None:
    def failing(words: str) -> Any:
        raise RuntimeError(words)

    module = fx.symbolic_trace(lambda x: torch.ops.aten.nonzero.default(x) * 2)
    made: Any = SimpleNamespace(id="graph_2", graph_module=fx.GraphModule({}, fx.Graph()), failure=None)
    told = refusals.translating_captures(failing, Backend(mode=ACLGRAPH), [made])  # type: ignore[arg-type]
    with pytest.raises(CompileError, match="in-place pass"):
        told("refer to a single memory location")
    assert made.failure.graph == "graph_2"
    with pytest.raises(RuntimeError, match="else"):
        told("else")
    refused: Any = SimpleNamespace(id="graph_2", graph_module=module, failure=None)
    told = refusals.translating_captures(failing, Backend(mode=ACLGRAPH), [refused])  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"cannot capture aten\.nonzero \(node nonzero"):
        told("else")
    assert refused.failure.operator == "aten.nonzero"
    assert refusals.translating_captures(lambda a, b: a - b, Backend(), [])(5, 3) == 2  # type: ignore[arg-type]


def test_the_graph_that_was_not_taken_keeps_the_failure() -> None:
    earlier, last = SimpleNamespace(id="graph_0", failure=None), SimpleNamespace(id="graph_1", failure=None)
    backend: Any = Backend(compilations=[earlier])

    def compiled() -> None:
        with refusals.translate_errors(backend):
            backend.compilations.append(last)
            raise RuntimeError(NO_CONVERTER)

    with pytest.raises(CompileError):
        compiled()
    assert earlier.failure is None
    assert (last.failure.graph, last.failure.node) == ("graph_1", "norm_1")  # type: ignore[union-attr]


def test_a_graph_that_was_not_taken_keeps_an_error_that_nobody_understands() -> None:
    last = SimpleNamespace(id="graph_0", failure=None, graph_module=fx.GraphModule({}, fx.Graph()))
    backend: Any = Backend(mode=ACLGRAPH)

    def compiled() -> None:
        with refusals.translate_errors(backend):
            backend.compilations.append(last)
            raise ValueError("only sym and constant\nand more")

    with pytest.raises(ValueError, match="only sym"):
        compiled()
    assert last.failure.words == "TorchAir did not take the graph. It says: ValueError: only sym and constant."  # type: ignore[union-attr]
    last.graph_module = fx.symbolic_trace(lambda x: torch.ops.aten.nonzero.default(x) * 2)
    with pytest.raises(CompileError, match=r"cannot capture aten\.nonzero"):
        compiled()


def test_a_graph_goes_through_the_genuine_backend_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def genuine(graph: Any, given: Any, **named: Any) -> Callable[[], str]:
        asked.append((graph, given, named))
        return lambda: "result"

    monkeypatch.setattr(of_target, "fakes", lambda given: ["fake", *given])
    compilations: list[Any] = ["an earlier one"]
    for mode, joint, keywords in ((GE, False, None), (GE, True, None), (NPUGRAPH_EX, False, {"a": 1})):
        backend: Any = Backend(
            mode=mode, compilations=compilations, options=Asked({of_target.JOINT: joint}),
            genuine=SimpleNamespace(backend=genuine, options=keywords),
        )  # fmt: skip
        compiled = target().compile(backend, "graph", (1, 2))  # type: ignore[arg-type]
        assert compiled() == "result"
        assert compiled.__name__ == ("called" if mode == NPUGRAPH_EX else "<lambda>")
        assert backend.charged == [(1, True)]
    assert asked == [("graph", [1, 2], {}), ("graph", ["fake", 1, 2], {}), ("graph", [1, 2], {"options": {"a": 1}})]
    failing: Any = Backend(genuine=SimpleNamespace(backend=lambda *_: [][0], options=None))
    failing.genuine.backend = lambda *_: (_ for _ in ()).throw(RuntimeError(NO_CONVERTER))
    with pytest.raises(CompileError, match="no GE converter"):
        target().compile(failing, "graph", ())  # type: ignore[arg-type]


def test_a_backward_graph_is_compiled_at_once() -> None:
    from torch._functorch import config as functorch

    with of_target._backward_now():
        assert functorch.force_non_lazy_backward_lowering is True
    assert functorch.force_non_lazy_backward_lowering is False


def test_gears_decompositions_and_texts_belong_to_ge(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    setter = target().set_gears(GE)
    assert setter is not None
    setter("x", {0: [1, 2]})
    assert packages.asked == [("torchair", "set_dim_gears", ("x", {0: [1, 2]}), {})]
    assert target().set_gears(ACLGRAPH) is None
    assert target().decompositions(Backend(genuine=None)) == {}  # type: ignore[arg-type]
    assert target().decompositions(Backend()) == {}  # type: ignore[arg-type]
    made = SimpleNamespace(backend=SimpleNamespace(keywords={"decompositions": {"a": 1}}))
    assert target().decompositions(Backend(genuine=made)) == {"a": 1}  # type: ignore[arg-type]
    monkeypatch.setattr(facts, "LOADED", ["one", "two", "three"])
    monkeypatch.setattr(facts, "global_options", lambda: {"g": "1"})
    monkeypatch.setattr(facts, "listing", lambda loaded, options: f"{loaded} {options['g']}")
    monkeypatch.setattr(facts, "ge_facts", lambda loaded: f"facts of {loaded}")
    backend: Any = Backend(loaded_before=1)
    assert target().device_texts(backend) == {
        "graph_0.ge.txt": "one 1",
        "graph_1.ge.txt": "two 1",
        "graph_2.ge.txt": "three 1",
    }
    assert target().ge_facts(backend) == ("facts of two", "facts of three")
    captured: Any = Backend(mode=ACLGRAPH, loaded_before=0)
    assert (target().device_texts(captured), target().ge_facts(captured)) == ({}, ())
    eager: Any = Backend(mode="eager")
    assert (target().device_facts(eager), target().vendor_compiler(eager)) == (None, None)


def test_the_genuine_objects_of_an_experiment(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dumped: list[Path] = []
    monkeypatch.setattr(config, "dump_options_into", dumped.append)
    monkeypatch.setattr(facts, "LOADED", ["before"])
    monkeypatch.setattr(refusals, "decompositions", lambda names, can: {"op": (names, can.ge)})
    order: list[str] = []

    def backend(mode: str, files: Path | None, **asked: Any) -> Any:
        return Backend(
            mode=mode, options=Asked(asked), folders=SimpleNamespace(files=files), pre=Pipeline("pre", order),
            post=Pipeline("post", order), constants=None,
        )  # fmt: skip

    dump = {"dump_config.enable_dump": True}
    with_gelu = target(decompose=("aten.gelu",))
    made: Any = with_gelu.vendor_compiler(given := backend(GE, tmp_path, **dump))
    assert given.loaded_before == 1
    assert (made.config.mode, made.options, made.backend.name) == (GE, None, "torchair")
    keywords = made.backend.keywords["decompositions"]
    assert keywords == {"compiler_config": made.config, "custom_decompositions": {"op": (("aten.gelu",), True)}}
    assert made.config.post_grad_custom_pre_pass.__name__ == "before"
    assert made.config.post_grad_custom_post_pass.__name__ == "after"
    assert dumped == [tmp_path]
    for mode, files, asked in ((ACLGRAPH, tmp_path, dump), (GE, None, dump), (GE, tmp_path, {})):
        other: Any = with_gelu.vendor_compiler(backend(mode, files, **asked))
        assert other.config.mode == mode
    assert dumped == [tmp_path]
    flat: Any = with_gelu.vendor_compiler(backend(NPUGRAPH_EX, tmp_path, **{"npugraph_ex.clone_output": True}))
    assert (flat.config.mode, flat.options["clone_output"], flat.backend.name) == (NPUGRAPH_EX, True, "npugraph_ex")
    assert flat.options["post_grad_custom_pre_pass"].__name__ == "before"


def test_a_cached_call_and_an_export_come_out_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "decompositions", lambda names, can: (names, can.ge))
    monkeypatch.setattr(config, "CachedModule", lambda *given: lambda *args, **named: (given, args, named))
    backend: Any = Backend()
    given, args, named = target().cached(backend, "module", True)(1, a=2)  # type: ignore[arg-type]
    assert (given, args, named) == ((backend, "module", ((), True), True), (1,), {"a": 2})

    def failing(*_: Any) -> None:
        raise RuntimeError(NO_CONVERTER)

    monkeypatch.setattr(config, "CachedModule", lambda *_: failing)
    with pytest.raises(CompileError, match="no GE converter"):
        target().cached(backend, "module", True)()  # type: ignore[arg-type]
    monkeypatch.setattr(facts, "LOADED", ["before"])
    monkeypatch.setattr(config, "export", lambda *given: facts.LOADED.append(given))  # type: ignore[arg-type]
    target().export(backend, "module", "call", None)  # type: ignore[arg-type]
    assert facts.LOADED[1:] == [(backend, "module", "call", None)]
    monkeypatch.setattr(config, "export", lambda *_: None)
    with pytest.raises(CompileError, match="exported no graph"):
        target().export(backend, "module", "call", None)  # type: ignore[arg-type]
    monkeypatch.setattr(config, "export", failing)
    with pytest.raises(CompileError, match="no GE converter"):
        target().export(backend, "module", "call", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="target=npu compiles through TorchAir"):
        target().lower(None)  # type: ignore[arg-type]
