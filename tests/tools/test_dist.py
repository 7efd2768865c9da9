"""`make dist`: what is in the wheel, and that it runs README's commands in an empty environment without a compiler."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from attrs import frozen
from packaging.requirements import Requirement

from npucompose.version import __version__
from tools import dist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the native replayer is built on Linux only"),
]


@frozen
class Installed:
    """An environment with the wheel and what it requires; its PATH holds its own programs alone."""

    wheel: Path
    environment: Path
    folder: Path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        programs = self.environment / "bin"
        env = {"PATH": str(programs), "HOME": str(self.folder), "NPUCOMPOSE_CACHE": str(self.folder / "cache")}
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


def link(found: metadata.Distribution, packages: Path) -> None:
    """A distribution of this environment in another one: torch alone is 500 MB."""
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (packages / top).symlink_to(str(found.locate_file(top)))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("elsewhere")
    _, wheel = dist.make(folder / "dist")
    venv.create(folder / "venv", symlinks=True)
    made = Installed(wheel=wheel, environment=folder / "venv", folder=folder)
    python = str(folder / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True)
    wanted: dict[str, metadata.Distribution] = {}
    (own,) = metadata.distributions(name="npucompose", path=[str(made.packages)])
    for requirement in map(Requirement, own.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required(requirement.name, wanted)
    for one in wanted.values():
        link(one, made.packages)
    return made


def test_the_wheel_has_the_tag_of_this_platform_and_all_that_runs_and_no_tests(installed: Installed) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert installed.wheel.name == f"npucompose-{__version__}-{python}-{python}-linux_{platform.machine()}.whl"
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
    for wanted in (
        r"npucompose/conf/config\.yaml",
        r"npucompose/report/templates/run\.html",
        r"npucompose/recipe/templates/script\.py\.jinja",
        r"npucompose/new_files/model\.py\.txt",
        r"npucompose/replay/executor/src/module\.cpp",
        r"npucompose/replay/executor/prebuilt/torch-[^/]*/npucompose_replay\.so",
        r"npucompose/replay/executor/prebuilt/torch-[^/]*/npucompose_replay\.sha256",
        r"airflow_free/.*\.py",
        r"hydra_plugins/.*\.py",
    ):
        assert any(re.fullmatch(wanted, name) for name in names), wanted
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "npucompose", "npucompose_extensions", "airflow_free", "hydra_plugins", f"npucompose-{__version__}.dist-info"
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
    (carried,) = (installed.packages / "npucompose/replay/executor/prebuilt").iterdir()
    carried.rename(carried.with_name("torch-2.0.0-cp310-x86_64-0123456789ab"))
    try:
        done = installed.run("npucompose", "doctor")
        assert re.sub(r"\s+", " ", done.stdout).count("is for torch-2.0.0-cp310-x86_64 and does not fit here.") == 1
        chosen = ("mode=reduce-overhead", "model=add", "passes=stream_plan", "pipeline=check", "hydra.run.dir=portable")
        assert installed.run("npucompose", "run", *chosen).returncode == 0
        capture = json.loads((installed.folder / "portable" / "report.json").read_text())["stages"]["capture"]
        assert capture["executor"] != "native"
    finally:
        (installed.packages / "npucompose/replay/executor/prebuilt/torch-2.0.0-cp310-x86_64-0123456789ab").rename(
            carried
        )


def test_a_torn_file_of_the_wheel_is_not_loaded(installed: Installed) -> None:
    (carried,) = (installed.packages / "npucompose/replay/executor/prebuilt").glob("*/npucompose_replay.so")
    whole = carried.read_bytes()
    carried.write_bytes(whole[:5000])
    try:
        script = "from npucompose.replay.executor import build; print(build.state().kind)"
        assert installed.run("python", "-c", script).stdout == "impossible\n"
    finally:
        carried.write_bytes(whole)
    assert installed.run("python", "-c", script).stdout == "built\n"


def test_no_path_of_the_builder_is_in_how_it_is_linked(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".so"))
        content = wheel.read(name)
    assert os.fsencode(Path(str(metadata.distribution("torch").locate_file("torch"))) / "lib") not in content
