"""What a file may say that did not come with the package, and where its choices lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npucompose.compose.conf import added_dirs, choices_of, conf_dir, files_of
from npucompose.compose.sources import DEEPEST, MOST_FILES, Files, Loader
from npucompose.compose.tree import compose
from npucompose.compose.untrusted_config import includes, is_hydra, read_foreign
from npucompose.errors import ConfigError

GROUPS = ("model", "mode", "passes", "passes/deep")


def read(folder: Path, text: str, config_path: str = "experiment") -> Any:
    file = folder / "mine.yaml"
    file.write_text(text)
    return read_foreign(file, config_path, GROUPS.__contains__)


@pytest.mark.parametrize(
    ("text", "config_path", "package", "content"),
    [
        ("", "mine", None, {}),
        ("# words\n\n# @package _global_\nseed: 1e3\n# @package hydra\n", "model/mine", "_global_", {"seed": 1000.0}),
        ("#@package model\nsize: 1\n", "model/mine", "model", {"size": 1}),
        ("# @package passes.deep\na: 1\n", "passes/deep/mine", "passes.deep", {"a": 1}),
        ("seed: 1\n# @other x\n", "mine", None, {"seed": 1}),
        ("of_nobody: {a: 1}\n", "model/mine", None, {"of_nobody": {"a": 1}}),
        (
            "a: ${b.c} and ${d}\nb: $x\nc: ['${e}']\n",
            "model/mine",
            None,
            {"a": "${b.c} and ${d}", "b": "$x", "c": ["${e}"]},
        ),
        ("defaults: [_self_, other]\n", "model/mine", None, {"defaults": ["_self_", "other"]}),
        (
            "defaults:\n- mlp\n- override /mode: eager\n- optional deep: [a, b]\n- /model: null\n",
            "passes/mine",
            None,
            None,
        ),
        ("_Target: x\n__a: y\n", "model/mine", None, {"_Target": "x", "__a": "y"}),
    ],
)
def test_a_file_of_choices_and_values_is_read_as_it_stands(
    tmp_path: Path, text: str, config_path: str, package: Any, content: Any
) -> None:
    found, header = read(tmp_path, text, config_path)
    assert header == package
    assert content is None or found == content


@pytest.mark.parametrize(
    ("text", "config_path", "words"),
    [
        ("# @package\na: 1\n", "model/mine", "its package may be _global_, model, not ''."),
        ("# @package _group_\na: 1\n", "model/mine", "its package may be _global_, model, not '_group_'."),
        ("# @package model\na: 1\n", "mine", "its package may be _global_, not 'model'."),
        ("# @package hydra\na: 1\n", "model/mine", "may not hold hydra.*"),
        ("a: 1\n", "hydra/mine", "may not hold hydra.*"),
        ("unknown: 1\n", "mine", "unknown key 'unknown'"),
        ("a:\n  _target_: x\n", "model/mine", "'a._target_' would name code"),
        ("a: [{_partial_: x}]\n", "model/mine", "'a.0._partial_' would name code"),
        ("a: [b, '${env:X}']\n", "model/mine", "'a.1' uses a resolver (${env:X})"),
        ("a: ${b} ${\n", "model/mine", "'a' is not understood"),
        ("defaults: [{a: 1, b: 2}]\n", "model/mine", "the defaults list may not hold {'a': 1, 'b': 2}"),
        ("defaults: [3]\n", "model/mine", "the defaults list may not hold 3"),
        ("defaults: [../x]\n", "model/mine", "may not name '../x': a choice is a name"),
        ("defaults: [{optional override twice /mode: x}]\n", "mine", "write `override /group: choice`"),
        ("defaults: [{/mo de: x}]\n", "mine", "write `override /group: choice`"),
        ("defaults: [{'': x}]\n", "mine", "may not name ''"),
        ("defaults: [/hydra/launcher/x]\n", "mine", "a choice is a name"),
        ("defaults: [{hydra/launcher: x}]\n", "mine", "only npucompose's own conf/"),
        ("defaults: [{mail: x}]\n", "mine", "unknown group 'mail'"),
        ("defaults: [{deep: x}]\n", "model/mine", "unknown group 'model/deep'"),
    ],
)
def test_a_file_that_says_more_is_refused_with_its_place(
    tmp_path: Path, text: str, config_path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text, config_path)
    assert words in str(refused.value)
    assert all(problem.startswith(f"{tmp_path / 'mine.yaml'}:") for problem in refused.value.problems)


def test_every_mistake_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, "_target_: a\nb: ${x:}\nc: ${x:}\ndefaults: [{/mail: a}, {/mail: b}]\n", "model/mine")
    assert len(refused.value.problems) == 4


def test_a_defaults_list_leads_to_choices_of_its_own_group_or_of_another() -> None:
    defaults = ["one", {"deep": "two"}, {"override /mode": ["a", None]}, {"/": 3}, {"": "x"}, 5]
    assert list(includes(defaults, "passes")) == [
        ("one", "passes", "one"), ("deep", "passes/deep", "two"), ("override /mode", "mode", "a"),
        ("override /mode", "mode", ""), ("/", "", "3"), ("", "passes/", "x"),
    ]  # fmt: skip
    assert list(includes([{"mode": "a"}], "")) == [("mode", "mode", "a")]
    assert list(includes({"mode": "a"}, "")) == list(includes(None, "")) == []


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("hydra", True),
        ("hydra.run", True),
        ("hydra/launcher", True),
        ("hydras", False),
        ("a.hydra", False),
        ("", False),
    ],
)
def test_hydra_is_what_its_first_part_says(path: str, found: bool) -> None:
    assert is_hydra(path) is found


# Folders.


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def loaded(folder: Path, config_path: str) -> Any:
    return Loader(Files([folder])).repository.load_config(config_path)


def test_a_chain_of_defaults_may_be_long_and_is_not_endless(tmp_path: Path) -> None:
    chain = {f"model/a{n}.yaml": f"defaults: [a{n + 1}]\n" for n in range(DEEPEST + 1)}
    written(tmp_path, {**chain, f"model/a{DEEPEST + 1}.yaml": "name: mlp\n"})
    assert DEEPEST == 50
    assert loaded(tmp_path, "model/a1") is not None
    with pytest.raises(ConfigError, match=r"without end: model/a48 -> model/a49 -> model/a50 -> model/a51\.$"):
        loaded(tmp_path, "model/a0")


def test_a_thousand_files_may_be_named_and_no_more(tmp_path: Path) -> None:
    assert MOST_FILES == 1_000
    names = [("hundred", ["ten"] * 9 + ["nine"]), ("ten", ["one"] * 10), ("nine", ["one"] * 9)]
    files = {f"model/{name}.yaml": f"defaults: {inside}\n" for name, inside in names}
    whole = {"model/whole.yaml": f"defaults: {['hundred'] * 9 + ['ten'] * 7 + ['one']}\n"}
    written(tmp_path, {**files, **whole, "model/one.yaml": "name: mlp\n"})
    hundred = 1 + 9 * 11 + 10
    assert 1 + 9 * hundred + 7 * 11 + 1 == 1069
    with pytest.raises(ConfigError, match="model/whole: its defaults lists name more than 1,000 files in all"):
        loaded(tmp_path, "model/whole")
    exactly = {"model/exactly.yaml": f"defaults: {['hundred'] * 9 + ['one'] * 9}\n"}
    written(tmp_path, exactly)
    assert 1 + 9 * hundred + 9 == MOST_FILES
    assert loaded(tmp_path, "model/exactly") is not None
    written(tmp_path, {"model/more.yaml": f"defaults: {['hundred'] * 9 + ['one'] * 10}\n"})
    with pytest.raises(ConfigError, match="more than 1,000"):
        loaded(tmp_path, "model/more")


def test_files_of_other_groups_count_too(tmp_path: Path) -> None:
    files = {"experiment/a.yaml": "# @package _global_\ndefaults:\n- override /model: a\n- override /passes: [a, a]\n"}
    written(tmp_path, {**files, "model/a.yaml": "defaults: [/experiment/a]\n", "passes/a.yaml": "a: {}\n"})
    with pytest.raises(ConfigError, match=r"'/experiment/a': a choice is a name"):
        loaded(tmp_path, "model/a")
    written(tmp_path, {"model/a.yaml": "name: mlp\n"})
    assert loaded(tmp_path, "experiment/a") is not None


def test_hydra_is_handed_a_copy_without_the_values_and_a_missing_file_is_nothing(tmp_path: Path) -> None:
    text = "defaults: [mlp]\nsize: ${seed}\nhidden: {a: 1}\n"
    loader = Loader(Files([written(tmp_path, {"model/mine.yaml": text})]))
    for _ in range(2):
        handed = loader.repository.load_config("model/mine")
        assert handed is not None
        assert handed.config == {"size": None, "hidden": None}
        assert (handed.header, handed.path) == ({"package": None}, f"file://{tmp_path}")
        handed.config["size"] = "other"
    found = loader.files.find("model/mine")
    assert found is not None
    assert (found.values, found.defaults) == ({"size": "${seed}", "hidden": {"a": 1}}, ["mlp"])
    assert loader.repository.load_config("model/nothing") is loader.files.find("model/nothing") is None
    assert loader.files.is_known_group("model")
    assert not loader.files.is_known_group("mine")


def test_a_folder_adds_choices_and_replaces_none_and_the_first_folder_has_the_say(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"model/mlp.yaml": "name: add\n", "model/own.yaml": "name: add\nsize: 1\n"})
    two = written(tmp_path / "two", {"model/own.yaml": "name: add\nsize: 2\n", "model/second.yaml": "name: add\n"})
    folders = [str(one), str(two)]
    assert compose(["model=mlp"], config_dirs=folders).tree["model"]["name"] == "mlp"
    assert compose(["model=own"], config_dirs=folders).tree["model"] == {"name": "add", "size": 1, "sequence": []}
    assert compose(["model=second"], config_dirs=folders).tree["model"] == {"name": "add", "size": 64, "sequence": []}


@pytest.mark.parametrize("header", ["# @package _global_\n", ""])
def test_an_experiment_lies_at_the_top_whether_it_says_so_or_not(header: str, tmp_path: Path) -> None:
    text = header + "defaults:\n  - base\n  - override /mode: eager\n  - override /passes: [cse]\nseed: 3\n"
    folder = written(tmp_path, {"experiment/mine.yaml": text, "experiment/base.yaml": "seed: 2\nstrict: 'off'\n"})
    tree = compose(["experiment=mine"], config_dirs=[str(folder)]).tree
    assert (tree["mode"]["name"], tree["seed"], tree["strict"], list(tree["passes"])) == ("eager", 3, "off", ["cse"])


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("override /passes: [nopass]", "unknown pass 'nopass' @ {place}:2. Choices: adapt, "),
        ("override /passes: [cse, ces]", "unknown pass 'ces' @ {place}:2. Did you mean 'cse'? Choices: adapt, "),
        ("override /mode: [eagre]", "unknown mode 'eagre' @ {place}:2. Did you mean 'eager'?"),
        ("override /passes: nopass", "unknown pass 'nopass' @ {place}:2. Choices: adapt, "),
        ("/mode: eager", "{place}:2: the defaults list may not name '/mode': mode has a choice already; write"),
        ("/passes: [cse]", "write `override /passes: cse`"),
        ("optional /target: cpu", "write `override /target: cpu`"),
    ],
)
def test_a_choice_in_a_defaults_list_is_there_and_replaces_the_one_that_was(
    entry: str, says: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, {"experiment/mine.yaml": f"defaults:\n  - {entry}\n"})
    with pytest.raises(ConfigError) as refused:
        compose(["experiment=mine"], config_dirs=[str(folder)])
    assert says.format(place=folder / "experiment" / "mine.yaml") in str(refused.value)


def test_a_whole_configuration_of_a_folder_chooses_for_itself(tmp_path: Path) -> None:
    text = (conf_dir() / "config.yaml").read_text().partition("\nhydra:")[0]
    folder = written(tmp_path, {"mine.yaml": "\n".join(line for line in text.splitlines() if "hydra" not in line)})
    assert compose([], config_dirs=[str(folder)], config_name="mine").tree == compose([]).tree


def test_the_home_of_a_folder_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every path comes through a shell: `--config-dir=~/mine` and Python's do not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert added_dirs(["~/mine"]) == (tmp_path / "mine",)


def test_folders_of_a_person_are_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert added_dirs([str(tmp_path / "x" / "..")]) == (tmp_path.resolve(),)
    for wrong in (tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=rf"^--config-dir {wrong}: no such folder\.$"):
            added_dirs([str(tmp_path), str(wrong)])
    with pytest.raises(ConfigError, match=r"^--config-dir x+: File name too long\.$"):
        added_dirs(["x" * 5000])
    with pytest.raises(ConfigError, match="embedded null"):
        added_dirs(["a\0b"])


def test_choices_are_the_yaml_files_of_every_folder(tmp_path: Path) -> None:
    written(tmp_path, {"mode/zebra.yaml": "", "mode/note.txt": "", "mode/folder.yaml/x": ""})
    assert [file.name for file in files_of(tmp_path / "mode")] == ["zebra.yaml"]
    ours = choices_of("mode")
    assert ours == ("eager", "max-autotune", "npugraph_ex", "reduce-overhead")
    assert choices_of("mode", [tmp_path]) == (*ours, "zebra")
    assert (conf_dir() / "config.yaml").is_file()
