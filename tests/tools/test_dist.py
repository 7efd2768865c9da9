"""`make dist`: what is in the sdist and the wheel, and that both run in an empty environment: the wheel without a
compiler, what is made of the sdist alone with one."""

from __future__ import annotations

import json
import os
import pkgutil
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from attrs import frozen
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from npucompose.version import __version__
from tools import dist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the native replayer is built on Linux only"),
]


@frozen
class Installed:
    """An environment with what was made and what it requires; its PATH holds its own programs alone.

    It computes on one thread: tests run side by side, and where a team of threads waits for one that has no core,
    what is measured is the neighbour (eager, once: 112 times its time, locked in a recipe).
    """

    environment: Path
    folder: Path

    @staticmethod
    def from_distributions(made: Sequence[Path], folder: Path, *builders: str) -> Installed:
        """`builders` make a wheel of an sdist: nothing is downloaded."""
        new = Installed(environment=folder / "venv", folder=folder)
        venv.create(new.environment, symlinks=True)
        new.link(*builders)
        python = str(new.environment / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--no-build-isolation", *map(str, made)], check=True, cwd=folder)
        (own,) = metadata.distributions(name="npucompose", path=[str(new.packages)])
        wanted = map(Requirement, own.requires or ())
        new.link(*(one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})))
        return new

    def link(self, *names: str) -> None:
        """Distributions of this environment, and what they require, in that one: torch alone is 500 MB."""
        wanted: dict[str, metadata.Distribution] = {}
        for name in names:
            required(name, wanted)
        for found in wanted.values():
            for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
                place = self.packages / top
                if not place.is_symlink():
                    place.symlink_to(str(found.locate_file(top)))

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        programs = self.environment / "bin"
        env = {"PATH": str(programs), "HOME": str(self.folder), "NPUCOMPOSE_CACHE": str(self.folder / "cache")}
        env["OMP_NUM_THREADS"] = "1"
        command = [str(programs / words[0]), *words[1:]]
        return subprocess.run(
            command, cwd=self.folder, env=env | variables, capture_output=True, text=True, timeout=300, check=False
        )

    @property
    def packages(self) -> Path:
        return Path(
            sysconfig.get_path("platlib", vars={"base": str(self.environment), "platbase": str(self.environment)})
        )


def required(name: str, seen: dict[str, metadata.Distribution]) -> None:
    """What a distribution requires, itself included, as it is installed here: {name: distribution}."""
    if name.lower() in seen:
        return
    found = seen[name.lower()] = metadata.distribution(name)
    for requirement in map(Requirement, found.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required(requirement.name, seen)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of the core."""
    return dist.make(tmp_path_factory.mktemp("made") / "dist")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same of the recorder; the replayer is compiled for real, from what is in the sdist."""
    return dist.make(tmp_path_factory.mktemp("replay") / "dist", dist.ROOT / "packages" / "replay")


@pytest.fixture(scope="module")
def sdist(made: tuple[Path, Path]) -> Path:
    return made[0]


@pytest.fixture(scope="module")
def wheel(made: tuple[Path, Path]) -> Path:
    return made[1]


@pytest.fixture(scope="module")
def installed(wheel: Path, replay: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.from_distributions((wheel, replay[1]), tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def from_sdist(sdist: Path, replay: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.from_distributions((sdist, replay[0]), tmp_path_factory.mktemp("from_sdist"), "hatchling")


def packed(file: Path) -> dict[str, bytes]:
    """{path: content} of a wheel, or of an sdist below its one folder."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(file) as sdist:
        members = [member for member in sdist.getmembers() if not member.isdir()]
        assert [member.name for member in members if not member.isfile()] == [], "no links"
        read = {member.name.partition("/")[2]: sdist.extractfile(member) for member in members}
        return {name: content.read() for name, content in read.items() if content is not None}


def test_the_recorders_wheel_has_the_tag_of_this_platform_and_carries_the_replayer(replay: tuple[Path, Path]) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert replay[1].name == f"npucompose_replay-{__version__}-{python}-{python}-linux_{platform.machine()}.whl"
    names = packed(replay[1])
    for wanted in (
        r"npucompose_replay/executor/src/module\.cpp",
        r"npucompose_replay/executor/prebuilt/torch-[^/]*/npucompose_native\.so",
        r"npucompose_replay/executor/prebuilt/torch-[^/]*/npucompose_native\.sha256",
    ):
        assert any(re.fullmatch(wanted, name) for name in names), wanted
    assert [name for name in names if re.search(r"(^|/)(tests/|test_[^/]*\.py$)", name)] == []


def test_the_wheel_is_for_every_platform_and_has_all_that_runs_and_no_tests(wheel: Path) -> None:
    assert wheel.name == f"npucompose-{__version__}-py3-none-any.whl"
    names = packed(wheel)
    for wanted in (
        r"npucompose/conf/config\.yaml",
        r"npucompose/report/templates/run\.html",
        r"npucompose/recipe/templates/script\.py\.jinja",
        r"npucompose/cli/new_files/model\.py\.txt",
        r"airflow_free/.*\.py",
        r"hydra_plugins/.*\.py",
    ):
        assert any(re.fullmatch(wanted, name) for name in names), wanted
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "npucompose", "airflow_free", "hydra_plugins", f"npucompose-{__version__}.dist-info"
    }  # fmt: skip
    assert [name for name in names if re.search(r"(^|/)(tests/|test_[^/]*\.py$)", name)] == []


def test_the_headline_runs_natively_where_there_is_no_compiler(installed: Installed) -> None:
    done = installed.run("npucompose", "run", "mode=reduce-overhead", "passes=stream_plan", "hydra.run.dir=first")
    assert done.returncode == 0, done.stderr
    assert "building the native replayer" not in done.stderr
    report = json.loads((installed.folder / "first" / "report.json").read_text())
    assert report["status"] == "ok"
    assert report["stages"]["capture"]["executor"] == "native"
    assert not (installed.folder / "cache" / "native").exists(), "nothing was built"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "model=mlp", "mode=eager", "pipeline=check"),
        ("run", "passes=[dead_code,cse,stream_plan]", "pipeline=check"),
        ("explain", "experiment=fa_path3", "target=cpu", "target.soc=ascend910b"),
        ("explain", "--options", "mode=eager"),
        ("list", "models"),
        ("doctor",),
        ("recipe", "lock", "experiment=mm_abs_sub", "--out", "recipe.lock.yaml"),
        ("recipe", "verify", "recipe.lock.yaml", "--tolerance", "0.9"),
        ("recipe", "eject", "experiment=mm_abs_sub"),
        ("new", "model", "mine"),
        ("report", "first"),
    ],
    ids=" ".join,
)
def test_readmes_commands_run(words: tuple[str, ...], installed: Installed) -> None:
    done = installed.run("npucompose", *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_the_wheel_does_not_fit_the_portable_replayer_runs_and_says_why(installed: Installed) -> None:
    """Another torch is another file of its library: what was compiled for this one is not loaded."""
    (carried,) = (installed.packages / "npucompose_replay/executor/prebuilt").iterdir()
    carried.rename(carried.with_name("torch-2.0.0-cp310-x86_64-0123456789ab"))
    try:
        done = installed.run("npucompose", "doctor")
        assert re.sub(r"\s+", " ", done.stdout).count("is for torch-2.0.0-cp310-x86_64 and does not fit here.") == 1
        chosen = ("mode=reduce-overhead", "model=add", "passes=stream_plan", "pipeline=check", "hydra.run.dir=portable")
        assert installed.run("npucompose", "run", *chosen).returncode == 0
        capture = json.loads((installed.folder / "portable" / "report.json").read_text())["stages"]["capture"]
        assert capture["executor"] == "torchscript"
        assert "no C++ compiler is installed" in capture["why_executor"]
        assert "is for torch-2.0.0-cp310-x86_64 and does not fit here." in capture["why_executor"]
    finally:
        (installed.packages / "npucompose_replay/executor/prebuilt/torch-2.0.0-cp310-x86_64-0123456789ab").rename(
            carried
        )


def test_a_torn_file_of_the_wheel_is_not_loaded(installed: Installed) -> None:
    (carried,) = (installed.packages / "npucompose_replay/executor/prebuilt").glob("*/npucompose_native.so")
    whole = carried.read_bytes()
    carried.write_bytes(whole[:5000])
    try:
        script = "from npucompose_replay.executor import build; print(build.state().kind)"
        assert installed.run("python", "-c", script).stdout == "impossible\n"
    finally:
        carried.write_bytes(whole)
    assert installed.run("python", "-c", script).stdout == "built\n"


MADE_BY_RUNNING = re.compile(
    r"(^|/)(__pycache__|\.venv|\.\w+_cache|\.hypothesis|\.npucompose|\.bundle\S*|outputs|multirun|dist)/|\.(pyc|so|o|orig)$"
)


def test_the_sdist_is_what_git_has_and_nothing_that_was_made_by_running(sdist: Path) -> None:
    names = set(packed(sdist))
    assert [name for name in names if MADE_BY_RUNNING.search(name)] == []
    for wanted in ("README.md", "CHANGELOG.md", "docs/stability.md", "conftest.py", "packages/replay/wheel_hook.py"):
        assert wanted in names
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=dist.ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("no checkout: what git has is not known")
    assert names - {"PKG-INFO"} == {name for name in listed.stdout.split() if (dist.ROOT / name).is_file()}


def test_no_path_of_the_builder_is_in_any(sdist: Path, wheel: Path, replay: tuple[Path, Path]) -> None:
    """Torch's headers write their own path into each of their assertions, and a linker where it found what."""
    torch = Path(str(metadata.distribution("torch").locate_file("torch")))
    include = Path(sysconfig.get_path("include"))
    places = {dist.ROOT, torch, torch.resolve(), include, include.resolve(), Path(sys.prefix)}
    contents = {
        f"{file.name}: {name}": content for file in (sdist, wheel, *replay) for name, content in packed(file).items()
    }
    assert any(name.endswith(".so") for name in contents)
    for name, content in contents.items():
        assert [place for place in places if os.fsencode(place) in content] == [], name
        if name.endswith(".so"):
            assert os.fsencode(tempfile.gettempdir()) + b"/" not in content
            assert b"torch/include/c10/core/TensorImpl.h" in content, "assertions still say where they are"


def test_the_metadata_is_what_an_index_takes(sdist: Path, wheel: Path) -> None:
    (of_sdist,) = (content for name, content in packed(sdist).items() if name == "PKG-INFO")
    (of_wheel,) = (content for name, content in packed(wheel).items() if name.endswith(".dist-info/METADATA"))
    assert of_sdist == of_wheel
    found = Metadata.from_email(of_wheel)  # every field that is wrong is an error here
    assert (found.name, str(found.version)) == ("npucompose", __version__)
    assert found.summary
    assert found.description == (dist.ROOT / "README.md").read_text()
    assert found.description_content_type == "text/markdown"
    assert found.requires_python is not None
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in found.requires_python
    entries = next(content for name, content in packed(wheel).items() if name.endswith("/entry_points.txt")).decode()
    assert "[console_scripts]\nnpucompose = npucompose.cli:main\n" in entries
    for place in re.findall(r"^[\w-]+ = ([\w.]+:\w+)$", entries, re.MULTILINE):
        pkgutil.resolve_name(place)


def test_what_is_made_of_the_sdist_elsewhere_is_the_same_but_for_the_compiled_replayer(
    wheel: Path, replay: tuple[Path, Path], from_sdist: Installed
) -> None:
    def code(names: Iterable[str]) -> set[str]:
        return {name for name in names if "/prebuilt/" not in name and ".dist-info/" not in name}

    for name, file in (("npucompose", wheel), ("npucompose_replay", replay[1])):
        (own,) = metadata.distributions(name=name, path=[str(from_sdist.packages)])
        there = {str(file) for file in own.files or () if file.parts[0] != ".." and "__pycache__" not in file.parts}
        assert code(there) == code(packed(file))
    assert "Root-Is-Purelib: true" in (own.read_text("WHEEL") or "")


def test_what_is_made_of_the_sdist_builds_the_replayer_once_and_runs_natively(
    replay: tuple[Path, Path], from_sdist: Installed
) -> None:
    """The compiler is a script that links to what the real one made of the same sources: `made`."""
    extension = from_sdist.folder / "made.so"
    extension.write_bytes(next(content for name, content in packed(replay[1]).items() if name.endswith(".so")))
    compiler = from_sdist.folder / "c++"
    compiler.write_text(
        f"""#!/bin/sh
for last; do :; done
case "$1" in -shared) {shutil.which("cp")} {extension} "$last" ;; --version) ;; *) : > "$last" ;; esac
"""
    )
    compiler.chmod(0o755)
    chosen = ("mode=reduce-overhead", "passes=stream_plan", "pipeline=check")
    first = from_sdist.run("npucompose", "run", *chosen, "hydra.run.dir=first", CXX=str(compiler))
    assert first.returncode == 0, first.stderr
    report = json.loads((from_sdist.folder / "first" / "report.json").read_text())
    assert report["stages"]["capture"]["executor"] == "native"
    (built,) = (from_sdist.folder / "cache" / "native").glob("*/npucompose_native.so")
    assert built.read_bytes() == extension.read_bytes()


def test_the_core_alone_explains_lists_reports_and_reads_recipes(installed: Installed) -> None:
    """None of the packages is there."""
    (installed.folder / "script.py").write_text(
        "import torchair\nconfig = torchair.CompilerConfig()\nconfig.mode = 'max-autotune'\n"
    )
    alone = ("model=add", "mode=eager", "pipeline=check", "hydra.run.dir=alone")
    for words, status in (
        (("run", *alone), 0),
        (("explain", "model=mm_abs_sub", "target=cpu", "target.soc=ascend910b"), 0),
        (("list", "models"), 0),
        (("list", "options"), 0),
        (("recipe", "import", "script.py"), 0),
        (("recipe", "eject", "model=add"), 0),
        (("report", "alone"), 0),
    ):
        done = installed.run("npucompose", *words)
        assert done.returncode == status, (words, done.stdout + done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("run", "model=transformers"), "npucompose-extras", "extras"),
        (("run", "passes=dual_batch_overlap"), "npucompose-extras", "extras"),
        (("run", "tracker=mlflow"), "npucompose-extras", "extras"),
        (("recipe", "export", "--to", "sglang"), "npucompose-extras", "extras"),
        (("recipe", "import", "serve.sh"), "npucompose-extras", "extras"),
        (("recipe", "import", "serve.yaml"), "npucompose-extras", "extras"),
        (("profile", "check", "x.csv", "--soc", "a2"), "npucompose-devtools", "devtools"),
        (("device-kit", "x.yaml"), "npucompose-devtools", "devtools"),
        (("explain", "--log", "x.log"), "npucompose-devtools", "devtools"),
        (("explain", "--vllm", "x.yaml"), "npucompose-vllm", "vllm"),
        (("run", "+extensions.vllm.sizes=[1]"), "npucompose-vllm", "vllm"),
    ],
    ids=" ".join,
)
def test_the_core_alone_names_the_package_that_is_needed_and_the_line_that_installs_it(
    words: tuple[str, ...], package: str, extra: str, installed: Installed
) -> None:
    (installed.folder / "serve.sh").write_text("vllm serve m --enforce-eager\n")
    (installed.folder / "serve.yaml").write_text("additional_config: {ascend_compilation_config: {}}\n")
    for name in ("x.csv", "x.yaml", "x.log"):
        (installed.folder / name).write_text("a\n")
    done = installed.run("npucompose", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"comes with {package}, which is not installed: pip install 'npucompose[{extra}]'." in done.stderr
    assert "Traceback" not in done.stderr
