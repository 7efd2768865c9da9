"""The packages beside the core: one version, found by entry points, and named where one is needed that is not there."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from npucompose import packages
from npucompose.cli import main
from npucompose.cli.arguments import command_line
from npucompose.commands import EXPLANATIONS, INSTALLED
from npucompose.compose.overrides import SINGULAR
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError, unknown
from npucompose.experiment.sweep.command import SEARCHES
from npucompose.experiment.tracking import TRACKERS
from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.recipe import dialects
from npucompose.recorder import RECORDERS
from npucompose.registry import OURS, Registry
from npucompose.results.artefacts import READERS
from npucompose.schema.sections import SECTIONS
from npucompose.targets.npu_offline import SIMULATORS
from npucompose.version import __version__
from tests.entry_points import declared
from tools import layout

tomllib = pytest.importorskip("tomllib")
PROJECTS = {
    folder.name: tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in layout.packages()
}
CORE = tomllib.loads((layout.ROOT / "pyproject.toml").read_text())["project"]
REGISTRIES = (
    EXPLANATIONS,
    dialects.DIALECTS,
    INSTALLED,
    MODELS,
    PASSES,
    RECORDERS,
    SEARCHES,
    SECTIONS,
    SIMULATORS,
    TRACKERS,
    READERS,
    dialects.READERS,
)


def test_every_package_has_the_version_of_the_core_and_asks_for_it() -> None:
    for name, project in PROJECTS.items():
        assert project["version"] == __version__, name
        assert f"npucompose=={__version__}" in project["dependencies"], name
        assert (layout.ROOT / "packages" / name / project["readme"]).is_file()


def test_the_core_brings_each_package_by_an_extra_of_its_name() -> None:
    extras = CORE["optional-dependencies"]
    assert set(packages.PACKAGES) == set(PROJECTS)
    for name, project in PROJECTS.items():
        assert extras[name] == [f"{packages.distribution(name)}=={__version__}"]
        assert packages.distribution(name) == project["name"]
        for extra in project.get("optional-dependencies", ()):
            assert extras[extra] == [f"{project['name']}[{extra}]=={__version__}"]
    ours = [one for texts in extras.values() for one in map(Requirement, texts) if packages.extra_of(one.name)]
    assert {str(one.specifier) for one in ours} == {f"=={__version__}"}


def brought(name: str) -> set[tuple[str, str]]:
    """(what a message calls it, its name) of all that a package registers, and of the choices that it has."""
    kinds = {registry.group: registry.kind for registry in REGISTRIES}
    text = (layout.ROOT / "packages" / name / "pyproject.toml").read_text()
    points = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:[\w-]+ = .*\n)+)', text, re.MULTILINE)
    found = {(kinds[g], line.split(" = ")[0]) for g, lines in points if g in kinds for line in lines.splitlines()}
    for file in layout.ROOT.glob(f"packages/{name}/src/*/conf/*/*.yaml"):
        found.add((SINGULAR.get(file.parent.name, file.parent.name), file.stem))
    return found


@pytest.mark.parametrize("name", PROJECTS)
def test_the_table_of_what_a_package_brings_is_what_it_registers(name: str) -> None:
    table = {(kind, one) for kind, names in packages.PACKAGES[name].items() for one in names}
    assert {one for one in table if one[0] != "project"} == brought(name)


def test_the_projects_that_a_recipe_is_exported_to_are_those_of_the_packages() -> None:
    written = {name for name, one in dialects.DIALECTS.every().items() if issubclass(one, dialects.ExportingDialect)}
    assert written == {name for brings in packages.PACKAGES.values() for name in brings.get("project", ())}


def test_what_is_not_installed_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    said = "comes with npucompose-extras, which is not installed: pip install 'npucompose[extras]'."
    assert unknown("pass", "dual_batch_overlap", ["cse"]) == f"pass 'dual_batch_overlap' {said}"
    for words in ("model=minilm", "passes=dual_batch_overlap", "tracker=mlflow", "adapt=paddle"):
        group, _, name = words.partition("=")
        assert Composer().compose([words]).problems == (f"{SINGULAR.get(group, group)} '{name}' @ {words} {said}",)
    with pytest.raises(ConfigError, match="npucompose-devtools, which is not installed"):
        READERS.get("artefacts")
    assert main(["profile", "check", "x.csv"]) == 2
    assert capsys.readouterr().err == (
        "npucompose: command 'profile' comes with npucompose-devtools, which is not installed: "
        "pip install 'npucompose[devtools]'.\n"
    )
    assert unknown("model", "minilmm", ["add"]).startswith("unknown model 'minilmm'.")


def test_a_command_of_the_core_looks_for_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: pytest.fail(group))
    assert command_line("doctor").parse_args(["doctor"]).act


class OtherVersion(Distribution):
    def read_text(self, filename: str) -> str | None:
        return "Name: npucompose-extras\nVersion: 0.0.9\n" if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        raise FileNotFoundError(path)


@pytest.fixture
def of_another_version(monkeypatch: pytest.MonkeyPatch) -> Registry[type]:
    found = (EntryPoint("mlflow", "nowhere:Mlflow", TRACKERS.group), EntryPoint("sizes", "no:where", INSTALLED.group))
    points = [point._for(OtherVersion()) for point in found]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group])
    return TRACKERS


def test_a_package_of_another_version_is_refused_in_one_sentence_before_it_is_loaded(
    of_another_version: Registry[type], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        of_another_version.get("mlflow")
    assert str(refused.value) == (
        f"tracker 'mlflow' (nowhere:Mlflow): npucompose-extras 0.0.9 is installed beside npucompose {__version__}, and "
        f"both must have one version: pip install 'npucompose[extras]=={__version__}'."
    )
    assert of_another_version.package("mlflow") == OURS
    assert main(["sizes", "plan", "x.csv"]) == 2
    assert "npucompose-extras 0.0.9 is installed beside npucompose" in capsys.readouterr().err


def test_an_own_package_is_no_stranger_and_a_strangers_is() -> None:
    assert packages.extra_of("npucompose_extras") == "extras"
    assert packages.extra_of("npucompose-mine") is None
    assert packages.other_version("npucompose-mine", "0.0.1") is None
    assert packages.other_version("npucompose-extras", __version__) is None


def test_the_files_of_tests_have_names_of_their_own() -> None:
    """Those in a folder without __init__.py are imported by their bare names."""
    files = [file for folder in layout.folders_of_tests() for file in folder.rglob("*.py")]
    bare = [file for file in files if not (file.parent / "__init__.py").is_file()]
    names = [file.stem for file in bare if file.stem != "conftest"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_entry_points_of_the_checkout_are_those_that_are_installed() -> None:
    for registry in REGISTRIES:
        assert {line.split(" = ")[0] for line in declared(registry.group)} <= set(registry.names())
