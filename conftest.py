"""What all tests share: our operators, golden texts."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.searches import examples

if TYPE_CHECKING:
    from npucompose.streams.strategies.instance import TimedPlan

RECORDS = importlib.util.find_spec("npucompose_replay") is not None
pytest_plugins = ("tests.cold", "tests.forked_workers", "tests.shuffled", "tests.skips")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing")
    parser.addoption(
        "--npu-target", choices=("npu", "npu_offline"), default="npu", help="where `-m npu` proves its claims"
    )
    parser.addoption(
        "--pictures", metavar="FOLDER", type=Path, help="what a browser shows at the end of a test, as PNG"
    )
    parser.addoption("--npu-result", metavar="FILE", help="where `-m npu` writes what it found")


def pytest_configure(config: pytest.Config) -> None:
    """The claims about an NPU are gathered in the process that controls the session.

    A shell that starts a command in the background has it ignore Ctrl-C, and its children with it: some tests press it.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    pytest.register_assert_rewrite("tests.npu.claims")
    # How long an example takes is no claim: a machine may stand still for a second.
    settings.register_profile(
        "a search",
        settings.default,
        max_examples=examples(100),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("a search")
    if not hasattr(config, "workerinput"):
        from tests.npu.results import Results

        config.pluginmanager.register(Results(config), "npu results")
        if config.getoption("numprocesses", None) and not config.option.collectonly:
            from nursery import SHARED, share

            if SHARED not in os.environ:
                share()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("passes/cse.txt", text)` compares with the file, or writes it under --update-golden.

    It lies in the folder `golden` beside the tests: of the core, or of a package.
    """
    tests = next(folder for folder in request.path.parents if folder.name == "tests")

    def compare(name: str, text: str) -> None:
        path = tests / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"no golden text {path}: run pytest --update-golden and review the diff"
        assert text == path.read_text()

    return compare


@pytest.fixture(scope="session")
def torch_npu_tree() -> Path:
    """The unpacked torch_npu 2.13.0; tests that need it are skipped, with the reason, where there is none."""
    from npucompose.errors import ConfigError
    from npucompose.targets.npu_offline.wheel import locate, version

    try:
        tree = locate()
    except ConfigError as error:
        pytest.skip(str(error))
    if version(tree) != "2.13.0":
        pytest.skip(f"these tests are about torch_npu 2.13.0; {tree} holds {version(tree)}.")
    return tree


@pytest.fixture
def plans_at_first_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """For claims about any plan: most of the time of a small one goes into the local search for a better one."""
    from npucompose.streams import assignment

    def first(instance: object, starts: Sequence[TimedPlan], most_events: float) -> TimedPlan:
        return min(starts, key=lambda plan: plan.rank)

    monkeypatch.setattr(assignment, "relocated", first)


@pytest.fixture(scope="session", autouse=True)
def times_that_nobody_measures() -> Iterator[None]:
    """Plans of tests do not depend on how long kernels take here; who needs a table of times brings one."""
    with pytest.MonkeyPatch.context() as patch:
        if RECORDS:
            patch.setattr("npucompose_replay.devices.cpu._cost_table", lambda: None)
        yield


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that this process starts itself need not import torch first: `nursery`."""
    from nursery import Warm

    monkeypatch.setattr("airflow_free.forkserver.subprocess", Warm())


@pytest.fixture
def warm_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads the options of a wheel need not import torch first; one test of that process does."""
    from nursery import Warm

    monkeypatch.setattr("npucompose.targets.npu_offline.option_trees.subprocess", Warm())


@pytest.fixture(scope="session", autouse=True)
def operators() -> None:
    """Graphs with streams, and models written for the NPU, need them wherever they are made."""
    from npucompose import ops

    ops.define()


@pytest.fixture(scope="session", autouse=True)
def guards_that_nobody_times() -> Iterator[None]:
    """Dynamo flushes the processor's caches to learn how long the guards of each new graph take: 20 ms for a figure in
    torch's log."""
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_that_note_no_stack() -> Iterator[None]:
    """torch.manual_seed reads the lines of the whole stack for each kind of device that is not there, for an error that
    it may raise once one is: 15 ms as deep as pytest calls a test, and a sample of an operator sets ten seeds."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.mtia, torch.xpu):
            patch.setattr(kind, "traceback", SimpleNamespace(format_stack=list), raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def graphs_of_no_other_test() -> Iterator[None]:
    """What this machine has kept of graphs that earlier tests compiled stays out of later ones."""
    with pytest.MonkeyPatch.context() as patch:
        if RECORDS:
            patch.setattr("npucompose_replay.kept.graphs.keeps", lambda _: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folders_lie_in_no_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A person may have them in one: git looks for it no further up than here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path_factory.getbasetemp().resolve()))
        yield


@pytest.fixture(autouse=True)
def torch_logs_of_their_own() -> Iterator[None]:
    """A script that ran here may have turned on a log of torch; what pytest keeps of it holds weights."""
    yield
    logs = sys.modules.get("torch._logging._internal")
    if logs is not None and (logs.log_state.artifact_names or logs.log_state.log_qname_to_level):
        logs.set_logs()
        logs.trace_log.handlers.clear()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in its own process sets up logging as Hydra is asked to."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    if root.level != level:
        root.setLevel(level)  # which forgets what each of torch's hundreds of loggers knows
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """What a test compiles is compiled anew, from one seed."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def one_quiet_thread(fresh_dynamo: None) -> Iterator[None]:
    """One thread in a kernel, and no warning of torch's."""
    from tests.graph_helpers import one_thread

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
