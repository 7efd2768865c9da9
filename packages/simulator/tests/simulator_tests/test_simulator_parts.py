"""GE sessions, addresses, schemas and devices of the simulator as functions: no torch_npu, no process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import npu_simulator as simulator
from npu_simulator import classes, compiled, ge_session, lacking, modules, operators
from npu_simulator.device import CallLedger, SimulatedDevice
from npu_simulator.ge_session import TorchDataType
from npu_simulator.graph import SimulatedGraph
from npucompose.errors import CompileError, ConfigError
from npucompose.vendor.devices import device_of
from simulator_tests.asked import on_stream

# Installed.


def test_a_process_becomes_a_device_once_and_only_where_it_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Any] = []
    monkeypatch.setattr(simulator, "_INSTALLED", [])
    monkeypatch.setattr(modules, "install", lambda *given: told.append(given))
    monkeypatch.setattr(operators, "define", lambda *given: told.append(given))
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu/version.py").write_text('__version__ = "2.99.0"\n')
    for value in ("0", None):
        monkeypatch.delenv(simulator.ALLOWED, raising=False)
        if value is not None:
            monkeypatch.setenv(simulator.ALLOWED, value)
        with pytest.raises(ConfigError, match="set NPUCOMPOSE_SIMULATED_NPU=1"):
            simulator.install(tmp_path)
    monkeypatch.setenv(simulator.ALLOWED, "1")
    device = simulator.install(tmp_path)
    assert told == [(device, tmp_path / "torch_npu"), (device, tmp_path / "torch_npu", "2.99.0")]
    monkeypatch.delenv(simulator.ALLOWED)
    assert simulator.install(tmp_path / "another") is device
    simulator._INSTALLED.append("a later one")  # type: ignore[arg-type]
    assert simulator.install(tmp_path) is device
    assert len(told) == 2


# GE sessions.


@pytest.fixture
def session() -> dict[str, Any]:
    device: Any = SimpleNamespace(ledger=CallLedger(), ge_sessions=[], not_written=[], soc=device_of(None))
    return {"device": device, **ge_session.attributes(device)}


def test_a_session_keeps_what_it_was_handed_and_runs_the_program(session: dict[str, Any]) -> None:
    device, base = session["device"], session["TorchNpuGraphBase"]
    graph = base("graph_1")
    assert (graph.loaded, graph.runs, device.ge_sessions, base.device) == (None, 0, [graph], device)
    options = {"ge.a": "1"}
    graph.load(bytearray(b"model"), options, [], [], 0)
    options["ge.a"] = "2"
    assert graph.loaded == (b"model", {"ge.a": "1"})
    with pytest.raises(RuntimeError, match="GE graph 'graph_1' has no FX graph to run"):
        graph.run(([], None, None))
    graph.program = SimpleNamespace(run=lambda inputs, assigned: [inputs, assigned])
    x, kept = torch.ones(1), torch.zeros(1)
    assert graph.run(([x], [None, kept], "a stream")) == [[x], [None, kept]]
    assert graph.runs == 1
    assert device.ledger.lines == ["ge_load graph_1", "ge_run graph_1"]
    with pytest.raises(RuntimeError, match="tuning graph_1 needs CANN's AOE"):
        graph.auto_tune(([x], None))
    for refused, act in {
        "element 0 is None": lambda: graph.auto_tune(([None], None)),
        "not a list or tuple": lambda: graph.run((None, [], None)),
        "element 1 is not a Tensor": lambda: graph.auto_tune(([x, 123], None)),
        "element 0 is not a Tensor": lambda: graph.run(([123], None, None)),
        "element 2 is not a Tensor": lambda: graph.run(([x], [None, x, 123], None)),
    }.items():
        with pytest.raises(RuntimeError, match=refused):
            act()
    assert graph.summary() == "simulator: no GE"


def test_an_export_says_what_is_not_written(session: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"net\.air is not written, because CANN's GE makes it; out has what TorchAir"):
        session["export"](b"model", {"export_path_dir": "out", "export_name": "net.air"})
    assert session["device"].not_written == ["net.air"]


def test_the_engine_notes_what_it_is_told_and_answers(session: dict[str, Any]) -> None:
    session["InitializeGraphEngine"]({"a": "b"})
    session["FinalizeGraphEngine"]()
    assert session["as_torch_tensors"](1, two=2) == (1, [])
    assert session["device"].ledger.lines == ["ge_initialize", "ge_finalize", "as_torch_tensors"]
    assert session["StupidRepeat"]("ab", 2) == "abab"
    assert session["GetSocName"]() == "Ascend910B1"
    assert session["check_cann_compat"]("8", "9") == ""
    assert session["get_registered_ir_def"]("Add") == ("None", [], [], [])
    assert len({int(getattr(TorchDataType, name)) for name in ge_session.DTYPES}) == len(ge_session.DTYPES) == 16


# Modules, addresses, schemas.


@pytest.mark.parametrize(
    ("wanted", "enough"), [("8.2.RC1", True), ("9.0.0", True), ("9.1", False), ("10", False), ("9", True), ("RC", True)]
)
def test_two_numbers_of_canns_version_count(wanted: str, enough: bool) -> None:
    assert compiled.cann_is_at_least(wanted) is enough


def test_a_module_is_found_in_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = ModuleType("simulated_parent")
    monkeypatch.setitem(sys.modules, "simulated_parent", parent)
    made = modules.module("simulated_parent.leaf", answer=42)
    monkeypatch.setitem(sys.modules, "simulated_parent.leaf", made)
    assert sys.modules["simulated_parent.leaf"] is made is parent.leaf
    assert made.answer == 42
    assert made.__spec__ is not None
    assert made.__spec__.name == made.__name__ == "simulated_parent.leaf"


def test_memory_is_borrowed_by_its_address_and_seen_as_it_is_described(compiled_functions: dict[str, Any]) -> None:
    real = torch.arange(6, dtype=torch.int32)
    storage_at = compiled_functions["_construct_storage_from_data_pointer"]
    storage = storage_at(real.data_ptr(), "npu", 24)
    described = {"dtype": torch.int32, "storage_offset": 1, "size": (2, 2), "stride": (2, 1)}
    seen = compiled.tensor_over(described, storage)
    assert seen.tolist() == [[1, 2], [3, 4]]
    real[1] = 9
    assert seen[0, 0].item() == 9
    assert storage_at(0, "npu", 0).nbytes() == 0


def test_memory_of_a_recording_is_given_itself_and_no_mode_sees_how(compiled_functions: dict[str, Any]) -> None:
    x, recording = torch.ones(4), SimulatedGraph(compiled_functions["device"])
    with on_stream(compiled_functions["device"], 1):
        recording.begin()
        y = x * 2
        recording.end()
    storage_at = compiled_functions["_construct_storage_from_data_pointer"]
    given = storage_at(y.data_ptr(), "npu", 16)
    assert given._cdata == recording.blocks[y.data_ptr()]._cdata
    described = {"dtype": torch.float32, "storage_offset": 0, "size": (4,), "stride": (1,)}
    with Counting() as counting:
        storage_at(x.data_ptr(), "npu", 16)
        seen = compiled.tensor_over(described, given)
    assert counting.count == 0
    assert seen.tolist() == [2, 2, 2, 2]


class Counting(TorchDispatchMode):
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def compiled_functions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of torch_npu._C on a device of their own, which is under `device`."""
    for holder in (classes.StreamBase, classes.EventBase, classes.GraphBase):
        monkeypatch.setattr(holder, "_device", None, raising=False)
    device = SimulatedDevice()
    classes.attach(device)
    return {"device": device, **compiled.functions(device)}


def test_streams_limits_and_options_are_the_devices(compiled_functions: dict[str, Any]) -> None:
    c = compiled_functions
    assert c["_npu_getCurrentStream"](0) == c["_npu_getDefaultStream"](0) == (0, 0, 20)
    assert c["device"].new_stream() == 96
    c["_npu_setStream"](stream_id=99, device_index=0, device_type=20)
    assert (c["_npu_getCurrentStream"](0), c["device"].current) == ((99, 0, 20), 99)
    at = {"stream_id": 99, "device_index": 0, "device_type": 20}
    c["_npu_set_stream_res_limit"](**at, type=1, value=5)
    assert [c["_npu_get_stream_res_limit"](**at, type=kind) for kind in (0, 1)] == [24, 5]
    c["_npu_reset_stream_res_limit"](**at)
    c["_npu_set_device_res_limit"](0, 0, 7)
    assert [c["_npu_get_stream_res_limit"](**at, type=kind) for kind in (0, 1)] == [7, 48]
    assert c["_npu_get_device_res_limit"](0, 0) == 7
    c["_npu_setOption"]({"ALLOW_MATMUL_HF32": "enable"})
    assert (c["_npu_getOption"]("ALLOW_MATMUL_HF32"), c["_npu_getOption"]("nothing")) == (b"enable", None)
    c["_npu_set_deterministic_level"](2)
    assert (c["_npu_get_deterministic_level"](), c["_npu_get_task_queue_enable"]()) == (2, 1)
    assert c["_npu_get_sync_debug_mode"]() == 0
    c["_npu_set_sync_debug_mode"](2)
    assert (c["_npu_get_sync_debug_mode"](), c["_npu_get_task_queue_enable"]()) == (2, 1)
    assert c["_npu_is_jit_compile_false"]()
    assert c["_npu_memorySnapshot"](None)["segments"] == []
    c["_npu_eraseStream"](tensor=torch.ones(2), stream_id=99, device_index=0, device_type=20)
    assert c["device"].ledger.lines[-1] == "erase_stream [2] of stream 99"


# Placement.


def test_the_devices_that_operators_name_are_the_npus_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ge_session, "DEVICE", "cuda:0")  # without torch_npu there is no device of the name npu
    cpu, meta, npu = torch.device("cpu"), torch.device("meta"), torch.device("cuda:0")
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    ones = graph.call_function(torch.ones, ([2],), {"device": cpu, "parts": [(cpu, 1), meta]})
    method = graph.call_method("to", (x, cpu))
    with ge_session._devices_named(graph):
        assert ones.kwargs == {"device": npu, "parts": [(npu, 1), meta]}
        assert (ones.args, method.args) == (([2],), (x, cpu))
    assert ones.kwargs == {"device": cpu, "parts": [(cpu, 1), meta]}
    with pytest.raises(KeyError), ge_session._devices_named(graph):
        raise KeyError
    assert ones.kwargs["device"] == cpu


def test_only_fake_cpu_tensors_are_placed() -> None:
    real = torch.ones(2)
    assert ge_session.on_npu(real) is real
    assert ge_session.on_npu(3) == 3
    with FakeTensorMode():
        meta = torch.empty(2, device="meta")
    assert ge_session.on_npu(meta) is meta


def test_a_placed_tensor_keeps_its_layout_and_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ge_session, "DEVICE", "cuda:0")  # a device of which fake tensors need no backend
    with FakeTensorMode():
        base = torch.empty(6, 4, dtype=torch.float16)
        value = base[1:].t()
    vars(value)["marked"] = {0}
    made = ge_session.on_npu(value)
    assert (made.device.type, made.dtype) == ("cuda", torch.float16)
    assert (made.size(), made.stride(), made.storage_offset()) == (value.size(), value.stride(), 4)
    assert vars(made)["marked"] == {0}
    assert ge_session.on_npu(base).storage_offset() == 0


def test_graphs_are_converted_as_for_the_npu_and_their_sessions_know_what_to_run(
    monkeypatch: pytest.MonkeyPatch, session: dict[str, Any]
) -> None:
    told: list[Any] = []
    base = session["TorchNpuGraphBase"]

    class GeConcreteGraph:
        def __init__(self) -> None:
            self.graph = SimpleNamespace(_executor=base("graph_3"))

        def __call__(self, *args: Any) -> Any:
            return self.graph._executor.program

        def codegen(self, text: str | None) -> str | None:
            return text

    class Converter:
        def __init__(self, graph: Any) -> None:
            self._graph = graph
            made = torch.fx.Graph()
            self.ones = made.call_function(torch.ones, ([2],), {"device": torch.device("cpu")})
            self.module = SimpleNamespace(graph=made)

        def run(self, *args: Any, **kwargs: Any) -> str:
            told.append((args, kwargs, str(self.ones.kwargs["device"])))
            return "converted"

    converter: Any = ModuleType("torchair._ge_concrete_graph.fx2ge_converter")
    converter.GeConcreteGraph = GeConcreteGraph
    compiler: Any = ModuleType("torchair.npu_fx_compiler")
    compiler._NpuGraphConverter, compiler._compile_py_code = Converter, base
    caching: Any = ModuleType("torchair.inference._cache_compiler")
    caching.CompiledModel = type("CompiledModel", (), {"save": None, "load": classmethod(lambda *_: None)})
    random: Any = ModuleType("torchair.ge._ge_graph")
    random._GraphRngState = type("_GraphRngState", (), {"__init__": lambda self, gen=None: setattr(self, "gen", gen)})
    for name in ("torchair", "torchair._ge_concrete_graph", "torchair.inference", "torchair.ge"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (converter, compiler, caching, random):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        parent, _, leaf = module.__name__.rpartition(".")
        setattr(sys.modules[parent], leaf, module)
    ge_session.place_ge_graphs.cache_clear()
    device_generator = object()
    of_device = SimpleNamespace(random=SimpleNamespace(get_default_generator=lambda device: device_generator))
    monkeypatch.setattr(torch, "npu", of_device, raising=False)
    monkeypatch.setattr(ge_session, "DEVICE", "cuda:0")
    monkeypatch.setattr(ge_session, "on_npu", lambda value: f"placed {value}")
    monkeypatch.setattr(ge_session, "PROGRAMS", {})
    monkeypatch.setattr(ge_session, "GeProgram", SimpleNamespace(from_concrete=lambda graph: ("program of", graph)))
    ge_session.place_ge_graphs()
    ge_session.place_ge_graphs()
    assert random._GraphRngState("of the caller").gen == "of the caller"
    assert random._GraphRngState().gen is device_generator
    graph = GeConcreteGraph()
    assert graph() == ("program of", graph)
    assert graph.codegen(None) is None
    assert graph.codegen("the text") == "the text"
    assert compiler._compile_py_code("the text").program == ("program of", graph)
    assert compiler._compile_py_code("another text").program is base("graph_4").program is None
    assert Converter(graph).run("x", 1, named=2) == "converted"
    assert Converter("another graph").run("x", named=2) == "converted"
    assert told == [(("placed x", "placed 1"), {"named": 2}, "cuda:0"), (("x",), {"named": 2}, "cpu")]


def test_there_is_one_device_and_it_is_number_0() -> None:
    answers = compiled.functions(SimulatedDevice())
    assert answers["_npu_getDeviceCount"]() == 1
    numbers = ("_npu_getDevice", "_npu_getDeviceWithoutSet", "_npu_maybeExchangeDevice")
    assert [answers[name]() for name in numbers] == [0, 0, 0]


def test_autocast_is_that_of_the_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        monkeypatch.setattr(torch, name, lambda *args, name=name: asked.append((name, *args)))
    answers = compiled.functions(SimulatedDevice())
    answers["is_autocast_enabled"]()
    answers["set_autocast_enabled"](True)
    answers["get_autocast_dtype"]()
    answers["set_autocast_dtype"](torch.float16)
    assert asked == [
        ("is_autocast_enabled", "npu"),
        ("set_autocast_enabled", "npu", True),
        ("get_autocast_dtype", "npu"),
        ("set_autocast_dtype", "npu", torch.float16),
    ]


def test_a_part_that_is_left_out_says_why_and_a_name_of_nobody_that_there_is_none() -> None:
    with pytest.raises(AttributeError) as left_out:
        compiled._absent("_profiler")
    with pytest.raises(AttributeError, match=r"torch_npu._C has no '_nonsense'") as nobody:
        compiled._absent("_nonsense")
    assert str(left_out.value) == lacking.sentence("_profiler") != str(nobody.value)


def test_what_earlier_wheels_make_a_class_of_is_there_for_them_and_refused() -> None:
    made = compiled.make(SimulatedDevice())
    assert "_MemPoolContext" not in vars(made), "later wheels have none"
    context: Any = type("MemPoolContext", (made._MemPoolContext,), {})
    with pytest.raises(CompileError, match=r"has no torch_npu\._C\._MemPoolContext: there is no device memory"):
        context("a pool")


@pytest.mark.parametrize("later", [True, False])
def test_the_accelerator_answers_for_the_device_what_this_torch_asks(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    asked = SimpleNamespace(**{"_accelerator_getDefaultGenerator": None} if later else {})
    fake = SimpleNamespace(_C=asked, default_generator="the generator", Stream=lambda **given: given["stream_id"])
    monkeypatch.setattr(modules, "torch", fake)
    device = SimulatedDevice()
    modules._accelerator(device)
    asked._accelerator_setStream(SimpleNamespace(stream_id=3))
    assert asked._accelerator_getStream(0) == device.current == 3
    assert hasattr(asked, "_accelerator_getDefaultGenerator") is later
    assert not later or asked._accelerator_getDefaultGenerator(0) == "the generator"


@pytest.mark.parametrize("later", [True, False])
def test_dynamo_is_set_up_with_what_the_wheel_has(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    called: list[str] = []

    def noting(*names: str) -> SimpleNamespace:
        return SimpleNamespace(**{name: lambda name=name: called.append(name) for name in names})

    wheel = {
        "torch_npu.utils._dynamo": noting("add_dynamo_methods_init", *["register_npu_graphsafe_rng"] * later),
        "torch_npu.dynamo.trace_rule": noting("_patch_npu_trace_rules"),
        "torch_npu.dynamo": noting("_register_backends"),
    }
    monkeypatch.setattr("torch._dynamo.register_backend", lambda _, name: called.append(name))
    monkeypatch.setattr("torch._dynamo.trace_rules.add", called.append)
    monkeypatch.setattr(modules.importlib, "import_module", wheel.__getitem__)
    modules._dynamo()
    ours, *rest = called
    assert ours == "npu_simulator"
    later_too = ["register_npu_graphsafe_rng"] * later
    assert rest == [
        "add_dynamo_methods_init", "_patch_npu_trace_rules", *later_too, "_register_backends", "npugraphs"
    ]  # fmt: skip


def test_an_event_is_external_only_where_that_is_asked_for(compiled_functions: dict[str, Any]) -> None:
    assert [classes.EventBase(**asked)._event.external for asked in ({}, {"graph_external": True})] == [False, True]
