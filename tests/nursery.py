"""Command lines without the seconds that importing torch takes: forked from one process that has all of it loaded.

    subprocess.run(command("run.py", "model=add"), cwd=folder, …)

is `python run.py model=add` in every respect but that: files, folder, environment, signals and exit status are those of
a process of its own. One nursery for each process of pytest, begun when it is first needed; workers of pytest-xdist use
two that their controller begins while they collect (`share`). The fork server that such a command starts for its
workers is forked there too. It loads what a worker loads and runs none of it: no thread, no
compilation, nothing read from a folder. A command whose environment must be there before Python or torch begins is
started cold, and so is `cold("run.py", …)`, for claims about the beginning itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tools.layout import import_folders

ROOT = Path(__file__).resolve().parents[1]
CLIENT = Path(__file__).with_name("nursery_client.py")
FILES = "NPUCOMPOSE_TEST_FILES"
"""For the client: the numbers of the files that it passes on beside 0, 1 and 2."""
SHARED = "NPUCOMPOSE_TEST_NURSERIES"
"""{what its commands' environments read at the beginning: address}, as JSON: what `share` began."""
FLAVOURS: tuple[Mapping[str, str], ...] = (
    {},
    {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0"},  # as targets/npu_offline and its tests
)
"""Of the environments of most commands, what is read at the beginning."""
BOOT = "a fork server of airflow_free"
MAIN = "import sys; from npucompose.cli import main; sys.exit(main())"
PRELOADED = (
    "torch._dynamo.backends.inductor", "torch._dynamo.repro.after_dynamo", "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp_wrapper_gpu", "torch._inductor.codegen.mps", "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.codegen.cuda_combined_scheduling", "torch._inductor.codegen.cutedsl.cutedsl_scheduling",
    "torch._inductor.codegen.halide", "torch._inductor.codegen.pallas",
    "torch._inductor.codegen.xpu.xpu_combined_scheduling",
    "torch._inductor.freezing", "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.freezing_patterns", "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.pad_mm", "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.serialized_patterns", "torch._inductor.runtime.caching",
    "torch._subclasses.schema_check_mode", "torch.export._trace", "torch.fx.experimental.validator",
    "torch.utils.cpp_extension", "hydra._internal.hydra", "omegaconf", "rich.progress", "sympy.tensor.tensor",
)  # fmt: skip
"""What a worker imports on its way, beside the product itself."""
OURS = ("airflow_free", "npucompose", *sorted(import_folders()))
NOT_HERE = re.compile(r"npucompose\.(targets\.npu|scope$)|npucompose_vllm\.|npu_simulator")
"""What needs a device, or vLLM, or, loaded before TorchAir, defines operators in its place (`npucompose.scope`)."""
READ_AT_THE_BEGINNING = re.compile(
    r"PYTHON(?!PATH|DONTWRITE)|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|ATEN_|DNNL_|ONEDNN_|MALLOC_|LD_"
    r"|TORCH(?!INDUCTOR_CACHE_DIR$)|PYTORCH_|CUDA_|LANG|LC_|TZ$"
)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def command(start: str, *words: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The words that start `python run.py …` (or another script's path), or `npucompose …`.

    `environment`, where it is not this process's own, is the one that the command will be given.
    """
    return _through(address(os.environ if environment is None else environment), start, *words)


def _through(nursery: str, *words: str) -> list[str]:
    return [sys.executable, "-IS", str(CLIENT), nursery, *words]


def cold(start: str, *words: str) -> list[str]:
    """The same from nothing."""
    return [sys.executable, *(["-c", MAIN] if start == "npucompose" else [str(ROOT / start)]), *words]


def address(environment: Mapping[str, str]) -> str:
    """Of the nursery for commands with such an environment: a shared one, or this process's own; a fork of this process
    gets one of its own.
    """
    return _shared(environment) or _begun(os.getpid(), _flavour(environment))[1]


def share() -> None:
    """Begin nurseries that all children of this process use: `os.environ` tells them."""
    wanted = [_flavour({**os.environ, **more}) for more in FLAVOURS]
    os.environ[SHARED] = json.dumps({json.dumps(read): _begun(os.getpid(), read)[1] for read in wanted})


def _shared(environment: Mapping[str, str]) -> str | None:
    return json.loads(os.environ.get(SHARED, "{}")).get(json.dumps(_flavour(environment)))


def _flavour(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(read_at_the_beginning(environment).items()))


def read_at_the_beginning(environment: Mapping[str, str]) -> dict[str, str]:
    """What has to be the same; not where modules are looked for first, which a fork is told anew."""
    read = {
        name: value
        for name, value in environment.items()
        if READ_AT_THE_BEGINNING.match(name) and name != "PYTHONSAFEPATH"
    }
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **read}


@functools.cache
def _begun(owner: int, read: tuple[tuple[str, str], ...]) -> tuple[subprocess.Popen[bytes], str]:
    name = f"npucompose-nursery-{owner}-{os.urandom(8).hex()}"
    others = {name: value for name, value in os.environ.items() if not READ_AT_THE_BEGINNING.match(name)}
    return begin(Path(__file__), name, json.dumps(sys.path), cwd=ROOT, env={**others, **dict(read)}), name


def begin(script: Path, name: str, word: str, **options: Any) -> subprocess.Popen[bytes]:
    """The process of `python script name word`, once it listens (`listening`): others are forked from it. It ends with
    its standard input, which is this process's to keep.
    """
    server = subprocess.Popen(
        [sys.executable, str(script), name, word],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **options,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", f"{script.name} did not begin"
    return server


class _Nursery:
    """One thread: a fork of more would copy held locks."""

    def __init__(self, listener: socket.socket, own_path: list[str], read: dict[str, str]) -> None:
        self.listener, self.own_path, self.read = listener, own_path, read
        self.clients: dict[int, tuple[int, socket.socket]] = {}
        """{number of the connection: the child and the connection}."""
        self.bell_out, self.bell_in = os.pipe()
        for end in (self.bell_out, self.bell_in):
            os.set_blocking(end, False)

    def serve(self) -> None:
        """Until standard input, which whoever began it holds open, is at its end."""
        signal.set_wakeup_fd(self.bell_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        for source in (0, self.listener.fileno(), self.bell_out):
            poll.register(source, select.POLLIN)
        while True:
            for source, _ in poll.poll():
                if source == 0:
                    return
                if source == self.listener.fileno():
                    connection, _ = self.listener.accept()
                    if self._obey(connection):
                        poll.register(connection.fileno(), select.POLLIN)
                elif source == self.bell_out:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.bell_out, 4096)
                    for number in self._reap():
                        poll.unregister(number)
                elif source in self.clients:
                    self._hung_up(source)
                    poll.unregister(source)

    def _obey(self, connection: socket.socket) -> bool:
        """Whether a child was forked for it."""
        size, files, _, _ = socket.recv_fds(connection, 4, 16)
        with connection.makefile("rb") as stream:
            order = json.loads(stream.read(int.from_bytes(size, "big")))
        start = self._cold_start(order)
        if start is not None:
            connection.sendall(json.dumps({"cold": start}).encode() + b"\n")
            connection.close()
            child = None
        else:
            child = os.fork()
            if child == 0:
                connection.close()
                self._be(order, files)
            self.clients[connection.fileno()] = (child, connection)
            connection.sendall(json.dumps({"pid": child}).encode() + b"\n")
        for file in files:
            os.close(file)
        return child is not None

    def _cold_start(self, order: dict[str, Any]) -> list[str] | None:
        """The command of a cold process, where the environment asks for one."""
        if read_at_the_beginning(order["environment"]) == self.read:
            return None
        start, *words = order["words"]
        if start == BOOT:
            from airflow_free import forkserver

            return [sys.executable, "-c", forkserver.BOOT, *words]
        return cold(start, *words)

    def _reap(self) -> list[int]:
        """Tell each end to whom it concerns; orphans that came here end, too."""
        told = []
        while True:
            try:
                pid, word = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for number, (child, connection) in list(self.clients.items()):
                if child == pid:
                    with contextlib.suppress(OSError):
                        connection.sendall(json.dumps({"ended": os.waitstatus_to_exitcode(word)}).encode() + b"\n")
                    connection.close()
                    del self.clients[number]
                    told.append(number)
        return told

    def _hung_up(self, number: int) -> None:
        """Nobody says anything after the order: whoever waited was killed, and so is what it waited for."""
        child, connection = self.clients.pop(number)
        os.kill(child, signal.SIGKILL)
        connection.close()

    def _be(self, order: dict[str, Any], files: list[int]) -> NoReturn:
        """The child: never returns into the loop."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            self.listener.close()
            for _, connection in self.clients.values():
                connection.close()
            os.close(self.bell_in)
            os.close(self.bell_out)
            _become(order, files)
            status = _called(order["words"], self.own_path)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Everything that a process has from the one that started it."""
    if order["leads"]:
        os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Out of the way of the numbers that are wanted, first.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(order["files"]) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, order["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.SIGINT not in order["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        was = getattr(sys, f"__{name}__")
        stream = open(  # noqa: SIM115
            number, mode, encoding=was.encoding, errors=was.errors, closefd=False,
            buffering=1 if name == "stderr" or os.isatty(number) else -1,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _called(words: list[str], own_path: list[str]) -> int:
    start, *rest = words
    try:
        if start == "-u":  # python -u -c …
            sys.argv[:] = ["-c", *rest[2:]]
            sys.path[:] = ["", *own_path]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(rest[1], main.__dict__)
        elif start == BOOT:
            from airflow_free import forkserver

            sys.argv[:] = ["-c", *rest]
            sys.path[:] = json.loads(rest[0])
            forkserver.main()
        elif start == "npucompose":
            from npucompose import cli

            sys.argv[:] = ["-c", *rest]
            sys.path[:] = ["", *_given(), *own_path]
            return cli.main()
        else:
            script = ROOT / start
            sys.argv[:] = [str(script), *rest]
            sys.path[:] = [str(script.resolve().parent), *_given(), *own_path]
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


class Warm:
    """`subprocess` for `airflow_free.forkserver`: its fork servers come from a nursery, without a name from the one for
    their environment. `python -m module` that is run comes from there too.
    """

    def __init__(self, nursery: str = "") -> None:
        self.nursery = nursery

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, words: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        from airflow_free.fresh_python import RUN_MODULE

        if words[1:3] == ["-c", RUN_MODULE]:
            found = importlib.util.find_spec(words[3])
            assert found is not None
            assert found.origin is not None
            words = _through(address(options["env"]), found.origin, *words[4:])
        return subprocess.run(words, **options)

    def Popen(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        from airflow_free.forkserver import BOOT as COLD

        if words[1:3] != ["-c", COLD]:
            return subprocess.Popen(words, **options)
        files = " ".join(map(str, options.get("pass_fds", ())))
        options["env"] = {**options["env"], FILES: files}
        nursery = _shared(options["env"]) or self.nursery or address(options["env"])
        return subprocess.Popen(_through(nursery, BOOT, *words[3:]), **options)


def _ours() -> Iterator[str]:
    for package in map(importlib.import_module, filter(importlib.util.find_spec, OURS)):  # a package may stand alone
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not NOT_HERE.match(found.name) and not found.name.endswith("__main__"):
                yield found.name


def load(module: str) -> None:
    """One of ours; what needs an extra that is not installed stays out, as it does in a command."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in (*OURS, "torch"):
            raise


def _given() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    name, path = sys.argv[1:]
    read = read_at_the_beginning(os.environ)  # what is loaded may add to it
    # Without this file's folder and PYTHONPATH: both are the command's own.
    own_path = sys.path[1 + len(_given()) :]
    sys.path[:] = json.loads(path)
    listener = listening(name)  # whoever asks is answered when all is loaded
    for module in PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):  # other versions of torch do not have all of them
            importlib.import_module(module)
    for module in _ours():
        load(module)
    from hydra.core.plugins import Plugins

    from airflow_free import forkserver

    Plugins.instance()
    forkserver.subprocess = Warm(name)  # type: ignore[assignment]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    serve(listener, own_path, read)


def serve(listener: socket.socket, own_path: list[str], read: dict[str, str]) -> None:
    """Fork what clients ask for from what is loaded, until standard input ends. `own_path` is what a command finds
    behind its folder and PYTHONPATH, `read` what of the environment was read at the beginning.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # as the tests themselves: cold.py
    _Nursery(listener, own_path, read).serve()


def listening(name: str) -> socket.socket:
    """At an abstract address, which ends with this process; whoever began it may ask from now on."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(64)
    os.write(1, b"ready\n")
    return listener


if __name__ == "__main__":
    main()
