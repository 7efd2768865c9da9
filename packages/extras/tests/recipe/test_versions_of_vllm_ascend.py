"""Keys of vllm-ascend keep their section and mean what they mean in its version; the version is read, asked or said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.recipe import Imported, import_command_line, import_file
from npucompose.recipe.imported import import_settings
from npucompose_extras.engine_dialects.vllm_ascend_versions import rows

ASKED = {"ascend_compilation_config": {"enable_npugraph_ex": True}, "compilation_config": {"cudagraph_mode": "FULL"}}
PACKAGE = {"force_eager": True, "inplace_pass": False}
ON, OFF = {"enabled": True}, {"enabled": False}


def lines(found: Imported) -> str:
    return "\n".join([*found.notes, *map(str, found.unread)])


def of(data: Any, version: str | None = None) -> Imported:
    return import_settings(json.dumps(data), vllm_ascend_version=version)


@pytest.mark.parametrize("turned", [False, True], ids=["as written", "sections turned round"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in additional_config"])
@pytest.mark.parametrize(("scheduler", "torchair", "mode"), [
    (OFF, ON, "max-autotune"), (ON, OFF, "reduce-overhead"), (ON, ON, "max-autotune"), (OFF, OFF, "reduce-overhead"),
])  # fmt: skip
def test_a_key_of_another_section_is_another_key(
    scheduler: Any, torchair: Any, mode: str, wrapped: bool, turned: bool
) -> None:
    sections = [("ascend_scheduler_config", scheduler), ("torchair_graph_config", torchair)]
    said: dict[str, Any] = dict(reversed(sections) if turned else sections)
    found = of({"additional_config": said} if wrapped else said)
    assert found.tree["mode"]["name"] == mode
    assert f"ascend_scheduler_config.enabled={str(scheduler['enabled']).lower()}" in lines(found)


@pytest.mark.parametrize(("version", "mode", "options"), [
    ("0.16.0rc1", "reduce-overhead", {"debug": {"run_eagerly": True}}),
    ("0.18.0", "reduce-overhead", {
        "debug": {"run_eagerly": True, "aclgraph": {"disable_reinplace_inplaceable_ops_pass": True}}}),
    ("0.21.0rc1", "npugraph_ex", {"npugraph_ex": PACKAGE}),
    ("v0.23.0", "npugraph_ex", {"npugraph_ex": {**PACKAGE, "clone_input": False}}),
    ("main", "npugraph_ex", {"npugraph_ex": {**PACKAGE, "clone_input": False}}),
])  # fmt: skip
def test_one_key_means_other_options_in_each_version(version: str, mode: str, options: dict[str, Any]) -> None:
    found = of(ASKED, version)
    assert found.tree["mode"]["name"] == mode
    assert found.tree["compiler"] == options
    assert f"vllm-ascend {version.removeprefix('v')}, by --vllm-ascend" in lines(found)


@pytest.mark.parametrize(("settings", "version"), [
    ({"enable_graph_mode": True}, "0.8.5rc1"),
    ({"torchair_graph_config": ON}, "0.11.0"),
    ({"enable_npugraph_ex": True}, "0.13.0"),
    ({"npugraph_ex_config": {"enable": True}}, "0.15.0rc1"),
    (ASKED, "0.25.1rc1"),
    ({"xlite_graph_config": ON}, "0.25.1rc1"),
    ({"weight_nz_mode": 1}, "0.25.1rc1"),
])  # fmt: skip
def test_without_a_version_the_newest_that_knows_the_keys_is_assumed_and_said(settings: Any, version: str) -> None:
    assert f"no version is said: {version} is assumed" in lines(of(settings))


def test_the_version_is_read_from_requirements_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "serve.json").write_text(json.dumps(ASKED))
    (tmp_path / "requirements.txt").write_text("torch==2.9.0\nvllm_ascend == 0.18.0  # pinned\n")
    found = import_file(tmp_path / "serve.json")
    assert found.tree["mode"]["name"] == "reduce-overhead"
    assert "vllm-ascend 0.18.0, by " in lines(found)
    assert "requirements.txt" in lines(found)
    assert import_file(tmp_path / "serve.json", vllm_ascend_version="0.23.0").tree["mode"]["name"] == "npugraph_ex"


def test_the_version_is_read_from_the_image_that_a_script_starts() -> None:
    options = json.dumps(ASKED["ascend_compilation_config"])
    found = import_command_line(
        "docker run --rm quay.io/ascend/vllm-ascend:v0.19.1rc1 \\\n  vllm serve org/model -cc.cudagraph_mode=FULL "
        f"--additional-config '{{\"ascend_compilation_config\": {options}}}'\n"
    )
    assert found.tree["mode"]["name"] == "reduce-overhead"
    assert "vllm-ascend 0.19.1rc1, by the command line" in lines(found)


def test_a_version_that_was_not_read_is_assumed_to_be_the_newest() -> None:
    found = of(ASKED, "0.99.0")
    assert found.tree["mode"]["name"] == "npugraph_ex"
    assert "vllm-ascend 0.99.0 was not read: what 182b75ea84ff" in lines(found)


def test_a_key_of_another_version_is_named_with_the_versions_that_have_it() -> None:
    found = of({"enable_npugraph_ex": True, "compilation_config": {"cudagraph_mode": "NONE"}}, "0.18.0")
    assert "enable_npugraph_ex=true: vllm-ascend 0.18.0 has no such key; 0.12.0rc1 to 0.13.0 has it" in lines(found)


@pytest.mark.parametrize(("version", "full", "mode"), [
    ("0.13.0", True, "reduce-overhead"), ("0.15.0rc1", True, "eager"), ("0.18.0", True, "eager"),
    ("0.15.0rc1", False, "reduce-overhead"), ("0.18.0", False, "reduce-overhead"), ("main", False, "npugraph_ex"),
])  # fmt: skip
def test_xlite_is_named_and_leaves_what_its_version_leaves(version: str, full: bool, mode: str) -> None:
    found = of({"xlite_graph_config": {"enabled": True, "full_mode": full}}, version)
    assert found.tree["mode"]["name"] == mode
    assert "xlite, a runtime of openEuler, runs " in lines(found)
    assert "not about compiling" not in lines(found)


def test_torchair_and_eager_together_are_refused_there_and_said_here() -> None:
    found = of({"torchair_graph_config": ON, "enforce_eager": True}, "0.11.0")
    assert found.tree["mode"]["name"] == "eager"
    assert "enforce_eager=true: vllm-ascend 0.11.0 refuses it together with torchair_graph_config.enabled" in lines(
        found
    )


def test_every_row_is_in_force_from_its_own_version_to_the_next_and_says_where_it_was_read() -> None:
    for row in rows():
        assert of({"weight_nz_mode": 1}, row.since).notes[0] == of({"weight_nz_mode": 1}, row.read_at).notes[0].replace(
            row.read_at, row.since
        )
        assert row.source.startswith("vllm_ascend/")
        assert ".py:" in row.source


@pytest.mark.parametrize(("version", "says"), [
    ("newest", "a version like 0.18.0 or 0.13.0rc1 is wanted, or main"),
    ("0.7.3", "the first version that compiles, and that is known here, is 0.8.5rc1"),
])  # fmt: skip
def test_a_version_that_is_none_is_refused(version: str, says: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "serve.json").write_text(json.dumps(ASKED))
    assert main(["recipe", "import", str(tmp_path / "serve.json"), "--vllm-ascend", version]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_version_is_refused_for_what_has_none() -> None:
    with pytest.raises(ConfigError, match="the file holds settings of cann-recipes-infer"):
        of({"exe_mode": "eager"}, "0.18.0")


@pytest.mark.parametrize(("options", "says"), [
    ({"vllm_ascend_version": "0.18.0"}, "train.py is a script: it says its options itself"),
    ({"compilation": 2}, "--compilation 2: it is for scripts, and .*serve.json holds settings"),
    ({"torch_npu_version": "2.8.0"}, "--torch-npu 2.8.0: it is for scripts"),
])  # fmt: skip
def test_an_option_is_refused_for_a_file_without_its_meaning(options: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torchair\nconfig = torchair.CompilerConfig()\n")
    (tmp_path / "serve.json").write_text(json.dumps(ASKED))
    with pytest.raises(ConfigError, match=says):
        import_file(tmp_path / ("train.py" if "vllm_ascend_version" in options else "serve.json"), **options)
