"""`npucompose list`: groups from conf folders, options from the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from npucompose.errors import ConfigError
from npucompose.report.listing import choices, first_comment, options, show, yaml_of
from npucompose.table.modes import MODES
from npucompose.vendor.compiler import LEAVES, CompilerOptions
from tools import layout

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    modes = tmp_path / "built_in" / "mode"
    modes.mkdir(parents=True)
    (modes / "eager.yaml").write_text("# @package _global_\n\n# No compilation: the baseline.\n# More.\nname: eager\n")
    (modes / "bare.yaml").write_text("name: bare # not this\n")
    return tmp_path / "built_in"


def test_a_choice_is_told_by_the_first_comment_of_its_file(conf: Path):
    assert [(entry.name, entry.doc) for entry in choices("modes", [conf])] == [
        ("bare", ""),
        ("eager", "No compilation: the baseline."),
    ]


def test_a_group_is_listed_by_its_own_name_too_and_the_list_names_the_group(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert choices("mode", [conf]) == choices("modes", [conf])
    shown = [(show(kind, [conf]), capsys.readouterr().out)[1] for kind in ("mode", "modes")]
    assert shown[0] == shown[1]
    assert shown[0].split()[0] == "mode"


def test_a_users_own_folder_adds_and_replaces(conf: Path, tmp_path: Path):
    mine = tmp_path / "mine" / "mode"
    mine.mkdir(parents=True)
    (mine / "eager.yaml").write_text("# Mine.\n")
    (mine / "new.yaml").write_text("# New.\n")
    assert [entry.doc for entry in choices("modes", [tmp_path / "mine", conf])] == ["", "Mine.", "New."]


def test_a_group_can_be_named_as_its_folder(conf: Path):
    assert choices("mode", [conf]) == choices("modes", [conf])


def test_an_unknown_group_is_refused_with_the_near_one(conf: Path):
    with pytest.raises(ConfigError, match=r"unknown list 'stream'\. Did you mean 'streams'\?"):
        choices("stream", [conf])


@pytest.mark.parametrize(("under", "name"), [("", "default"), ("npugraph_ex", "npugraph_ex")])
def test_the_base_tree_is_what_the_table_prints(under: str, name: str):
    """The shipped choices add nothing to it."""
    assert yaml.safe_load((CONF / "compiler" / f"{name}.yaml").read_text(encoding="utf-8")) == {}
    printed = yaml.safe_load(yaml_of(under))
    assert printed.items() <= CompilerOptions.base_tree().items()
    assert printed == CompilerOptions.base_tree() or under


def test_the_shipped_yaml_asks_for_nothing_and_names_every_settable_leaf():
    tree = yaml.safe_load(yaml_of())
    assert CompilerOptions.of_tree(tree) == CompilerOptions()
    assert tree == CompilerOptions().as_tree()


def test_the_npugraph_ex_yaml_holds_that_tree_only():
    tree = CompilerOptions().as_tree()
    held = {key: tree[key] for key in ("torch_npu_version", "npugraph_ex")}
    assert yaml.safe_load(yaml_of("npugraph_ex")) == held


def test_every_compiler_yaml_has_a_line_for_the_list():
    entries = choices("compiler", [CONF])
    assert {entry.name for entry in entries} >= {"default", "npugraph_ex"}
    assert all(entry.doc for entry in entries)


def test_first_comment_is_found_in_an_empty_file(tmp_path: Path):
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert first_comment(file) == ""


def test_options_are_one_row_for_each_leaf():
    assert [row["option"] for row in options()] == list(LEAVES)


def test_options_can_be_asked_for_below_a_path():
    assert [row["option"] for row in options("inference_config")] == ["inference_config.dynamic_gears_merge_policy"]
    with pytest.raises(ConfigError, match="unknown option 'ge_conf'"):
        options("ge_conf")


def test_a_group_has_nothing_under_a_path(conf: Path):
    with pytest.raises(ConfigError, match="list options --under debug"):
        show("modes", [conf], under="debug")


def test_json_is_the_same_rows(capsys: pytest.CaptureFixture[str], conf: Path):
    show("options", [], as_json=True)
    assert json.loads(capsys.readouterr().out) == list(options())
    show("modes", [conf], as_json=True)
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["bare", "eager"]


def test_the_option_table_shows_values_modes_and_where_a_leaf_is_set(capsys: pytest.CaptureFixture[str]):
    show("options", [])
    lines = capsys.readouterr().out.splitlines()
    (level,) = [line for line in lines if line.strip().startswith("ge_config.oo_level")]
    assert "O1 | O3" in level
    assert "max-autotune" in level
    (mode,) = [line for line in lines if line.split()[:1] == ["mode"]]
    assert "not set here: mode" in " ".join(" ".join(lines).split())
    assert "max-autotune | reduce-overhead" in mode


def test_every_other_key_is_listed_with_what_it_takes_and_whose_it_is(capsys: pytest.CaptureFixture[str]):
    show("keys", [], as_json=True)
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["compile.cache"]["takes"] == "true | false"
    assert rows["compile.cache"]["meaning"].startswith("TorchAir's cache_compile")
    acts_in = set(rows["compile.cache"]["acts_in"])
    assert {"max-autotune", "reduce-overhead", "npugraph_ex"} <= acts_in == {*MODES.names()} - {"eager"}
    assert rows["shapes.gears"]["acts_in"] == rows["compile.training"]["acts_in"] == ["max-autotune"]
    assert rows["seed"]["acts_in"] == []
    assert rows["target.patch_for_hcom"]["of"] == ["npu", "npu_offline"]
    assert rows["target.decompose"]["takes"] == "a list of text"
    assert rows["passes.core_limit.regions"]["takes"] == "a list of a mapping (aicore, vectorcore, match)"
    assert rows["expect.fx_graph"]["takes"] == "static | dynamic"
    assert rows["expect.recompiles"]["takes"] == "integer | null"
    assert rows["logs.levels"]["takes"] == "a mapping to DEBUG | INFO | WARNING | ERROR"
    assert rows["model.factory"]["needed"]
    assert rows["streams.max_streams"]["default"] == 2
    assert rows["streams.device.launch_us"]["takes"] == "number | null"
    assert not any(key.startswith("compiler") for key in rows)
    show("keys", [])
    assert "patch_for_hcom" in capsys.readouterr().out


def test_every_key_of_the_configuration_is_listed():
    """Each plain key of conf/config.yaml, and each key of every target's and pass's file."""
    from npucompose.report.keys import keys

    listed = {row["key"] for row in keys()}
    tree = yaml.safe_load((CONF / "config.yaml").read_text())
    plain = {name: value for name, value in tree.items() if name not in ("defaults", "hydra")}
    wanted: set[str] = set()
    for group, value in plain.items():
        wanted |= {f"{group}.{key}" for key in value} if isinstance(value, dict) else {group}
    for file in (CONF / "target").glob("*.yaml"):
        tree = yaml.safe_load(file.read_text())
        wanted |= {f"target.{key}" for key in tree.get("target", tree) if key not in ("name", "defaults")}
    for file in layout.choices("passes").values():
        for name, given in yaml.safe_load(file.read_text()).items():
            wanted |= {f"passes.{name}.{key}" for key in given} if name != "defaults" else set()
    assert wanted - listed == set()


@pytest.mark.parametrize("kind", ["modes", "keys"])
def test_listing_loads_neither_torch_nor_hydra(kind: str, conf: Path):
    code = (
        "import sys; from pathlib import Path; from npucompose.report.listing import show\n"
        f"show({kind!r}, [Path({str(conf)!r})])\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"modes": "No compilation: the baseline.", "keys": "compile.fullgraph"}[kind] in done.stdout


def test_the_command_that_lists_loads_nothing_of_the_other_commands() -> None:
    code = (
        "import sys; from npucompose.cli import main\n"
        "assert main(['list', 'modes']) == 0\n"
        "others = {'torch', 'hydra', 'airflow_free.store', 'npucompose.experiment', 'npucompose.compose.check'}\n"
        "assert not others & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "max-autotune" in done.stdout


def test_a_strangers_folder_is_listed_and_does_nothing(tmp_path: Path, conf: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "esc.yaml").write_bytes(b"# \x1b]0;title\x07 text\nname: add\n")
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\n# after\n")
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    with (folder / "huge.yaml").open("wb") as huge:
        huge.truncate(1 << 34)
    found = {entry.name: entry.doc for entry in choices("models", [tmp_path, conf])}
    assert found["esc"] == "\\x1b]0;title\\x07 text"
    assert found["bytes"] == "after"
    assert found["huge"] == ""
    assert not {"pipe", "folder"} & set(found)


@pytest.mark.parametrize("kind", ["socs"])
def test_the_table_of_what_has_no_files_is_printed_like_this(
    kind: str, golden: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show(kind, [])
    printed = capsys.readouterr().out
    golden(f"report/list_{kind}.txt", "\n".join(line.rstrip() for line in printed.splitlines()) + "\n")
    show(kind, [], as_json=True)
    rows = capsys.readouterr().out
    assert rows == f"{json.dumps(json.loads(rows), indent=2)}\n"
    assert len(json.loads(rows)) > 10


def test_only_options_lie_under_a_path(conf: Path) -> None:
    with pytest.raises(
        ConfigError, match="only options lie under a path, and operators under a name: `list options --under debug`"
    ):
        show("socs", [conf], under="debug")
