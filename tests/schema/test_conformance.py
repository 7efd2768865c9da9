"""Our tables and the genuine classes of the wheel, read live: neither has anything that the other has not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from nursery import command

from npucompose.compose.tree import compose
from npucompose.npu.torchair.config import node_filter
from npucompose.targets.npu_offline.option_trees import leaves_of, live_tree, read_tree
from npucompose.targets.npu_offline.wheel import fetch, pinned
from npucompose.targets.npu_offline.wheel import version as wheel_version
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES, CompilerOptions, illegal_in_mode
from npucompose.vendor.option_specs import INT64_MAX, OptionSpec, VendorOption, differences, stored_path
from npucompose.vendor.versions import genuine_tree, known, tree_of, versions

OURS = tuple(LEAVES.values())
GENUINE_DUMP_STEP = r"^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$"
OTHER_PATTERN = {
    "dump_config.dump_step": GENUINE_DUMP_STEP,
    "npugraph_ex.dump_config.dump_step": GENUINE_DUMP_STEP,
}
"""Ours takes less: the genuine pattern takes exponential time on a long text (decisions/2026-11-21-option-trees.md)."""


@pytest.fixture(scope="session")
def genuine(torch_npu_tree: Path) -> tuple[VendorOption, ...]:
    return read_tree(torch_npu_tree)


def told(ours: Sequence[OptionSpec], theirs: Sequence[VendorOption]) -> list[str]:
    return differences(ours, theirs, OTHER_PATTERN)


# The same.


def test_every_leaf_kind_value_and_default_is_the_genuine_one(genuine: tuple[VendorOption, ...]):
    assert len(genuine) == 103
    assert told(OURS, genuine) == []


def test_the_committed_tree_of_2_13_0_is_the_genuine_one(genuine: tuple[VendorOption, ...]):
    assert {leaf.path: leaf for leaf in genuine} == genuine_tree("2.13.0")


def test_what_a_configuration_keeps_for_itself_hides_no_option_behind_it():
    """vars() gives attributes in the order in which they were set, and the wheel's constructors may set any first."""

    class Inner:
        def __init__(self) -> None:
            self._fixed_attrs = ["level"]
            self.level = 3

    class Configuration:
        def __init__(self) -> None:
            self._fixed_attrs = ["inner", "mode"]
            self.inner = Inner()
            self.npugraphex_config = {"a": 1}
            self.mode = "max-autotune"

    found = {leaf.path: leaf.default for leaf in leaves_of(Configuration())}
    assert found == {"inner.level": 3, "mode": "max-autotune"}


@pytest.mark.parametrize("version", versions())
def test_the_table_of_each_version_is_the_committed_one(version: str):
    assert told(tuple(tree_of(version).values()), tuple(genuine_tree(version).values())) == []


# Negative controls: altered on either side, it is noticed. The committed tree of 2.13.0 stands in for the wheel's.

COMMITTED = tuple(genuine_tree("2.13.0").values())


def altered(leaves: Sequence[Any], path: str, **changes: Any) -> tuple[Any, ...]:
    assert any(leaf.path == path for leaf in leaves)
    return tuple(attrs.evolve(leaf, **changes) if leaf.path == path else leaf for leaf in leaves)


def without(leaves: Sequence[Any], path: str) -> tuple[Any, ...]:
    return tuple(leaf for leaf in leaves if leaf.path != path)


@pytest.mark.usefixtures("warm_readers")
def test_a_wheel_whose_classes_were_altered_is_noticed(torch_npu_tree: Path, tmp_path: Path):
    """Live: a leaf, a default, an allowed value and a range changed in a copy of the wheel's own source."""
    configs = with_own_configs(torch_npu_tree, tmp_path)
    rewritten(configs / "ge_config.py", 'self.oo_level = OptionValue("O3", ["O1", "O3"])',
              'self.oo_level = OptionValue("O3", ["O1", "O2", "O3"]); self.added = OptionValue(None)')  # fmt: skip
    rewritten(configs / "inference_config.py", '("zip", ["zip", "product"])', '("product", ["zip", "product"])')
    rewritten(configs / "debug_config.py", "IntRangeValue(64, 1,", "IntRangeValue(64, 2,")
    assert told(OURS, read_tree(tmp_path)) == [
        "ge_config.added: only in the genuine class",
        "debug.aclgraph.static_capture_size_limit: ours begins at 1, the genuine range is 2 to 9223372036854775807",
        "inference_config.dynamic_gears_merge_policy: our default is zip, the genuine one product",
        "ge_config.oo_level: we allow [O1, O3], the genuine class [O1, O2, O3]",
    ]


def with_own_configs(tree: Path, copy: Path) -> Path:
    """`copy` becomes the wheel by links, but for torchair's configs, which are files of their own."""
    torchair = copy / "torch_npu" / "dynamo" / "torchair"
    torchair.mkdir(parents=True)
    dynamo = tree / "torch_npu" / "dynamo"
    (torchair.parent / "npugraph_ex").symlink_to(dynamo / "npugraph_ex")
    for entry in (dynamo / "torchair").iterdir():
        if entry.name != "configs":
            (torchair / entry.name).symlink_to(entry)
    return Path(shutil.copytree(dynamo / "torchair" / "configs", torchair / "configs"))


def rewritten(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text, file.name
    file.write_text(text.replace(before, after))


@pytest.mark.parametrize("path", LEAVES)
def test_a_leaf_that_one_side_lacks_is_noticed(path: str):
    stored = stored_path(LEAVES[path])
    assert told(without(OURS, path), COMMITTED) == [f"{stored}: only in the genuine class"]
    assert told(OURS, without(COMMITTED, stored)) == [f"{stored}: only in our table"]


@pytest.mark.parametrize("path", LEAVES)
def test_an_altered_default_is_noticed_on_either_side(path: str):
    stored = stored_path(LEAVES[path])
    (ours,) = told(altered(OURS, path, default="another"), COMMITTED)
    (theirs,) = told(OURS, altered(COMMITTED, stored, default="another"))
    assert ours.startswith(f"{stored}: our default is another")
    assert theirs.endswith("the genuine one another")


def test_a_default_of_another_type_is_noticed():
    assert told(altered(OURS, "experimental_config.aot_config_output_loss_index", default=False), COMMITTED)
    assert told(OURS, altered(COMMITTED, "ge_config.export_compile_stat", default=2))


@pytest.mark.parametrize("path", [path for path, leaf in LEAVES.items() if leaf.choices is not None])
def test_an_altered_set_of_values_is_noticed_on_either_side(path: str):
    choices = LEAVES[path].choices or ()
    stored = stored_path(LEAVES[path])
    for values in ((*choices, "another"), choices[1:], None):
        assert len(told(altered(OURS, path, choices=values), COMMITTED)) == 1
        assert len(told(OURS, altered(COMMITTED, stored, allowed=values))) == 1


@pytest.mark.parametrize("path", [path for path, leaf in LEAVES.items() if leaf.kind == "bool"])
def test_a_flag_that_takes_more_or_less_is_noticed(path: str):
    for values in ((True,), (True, False, "auto"), (1, 0), None):
        assert told(OURS, altered(COMMITTED, stored_path(LEAVES[path]), allowed=values))


@pytest.mark.parametrize(
    "changes", [{"least": 2}, {"most": INT64_MAX - 1}, {"kind": "StrOptionValue"}, {"kind": "plain"}]
)
def test_another_range_or_class_is_noticed(changes: dict[str, Any]):
    assert told(OURS, altered(COMMITTED, "debug.aclgraph.static_capture_size_limit", **changes))


@pytest.mark.parametrize("path", ["dump_config.dump_step", "dump_config.dump_layer"])
def test_another_pattern_is_noticed_also_where_ours_differs_on_purpose(path: str):
    assert told(OURS, altered(COMMITTED, path, pattern="^x$"))


def test_another_kind_of_ours_is_noticed():
    assert told(altered(OURS, "aclgraph_config.use_custom_pool", kind="int"), COMMITTED)


# Set through YAML, read back from the genuine object.


def another_value(leaf: OptionSpec, folder: Path) -> Any:
    """A value that is legal for the genuine class and is not the default (but where only the default is allowed)."""
    if leaf.choices is not None:
        return next((c for c in leaf.choices if c != leaf.default), leaf.default)
    file = folder / "file.json"
    values: dict[str, Any] = {
        "bool": not leaf.default, "int": 7, "ints": [2, 4], "names": ["mm", "aten.add*"], "dict": {"a": 1},
        "path": str(folder), "dir": str(folder), "file": str(file), "pool": "shared", "str": leaf.example or "text",
    }  # fmt: skip
    return values[leaf.kind]


def through_yaml(leaves: Sequence[OptionSpec], version: str, folder: Path) -> CompilerOptions:
    """Every settable leaf given on the command line, composed with conf/ by Hydra, and structured."""
    (folder / "file.json").write_text("{}")
    given = {leaf.path: another_value(leaf, folder) for leaf in leaves if leaf.set_by == "compiler"}
    overrides = [f"{'' if path in LEAVES else '+'}compiler.{path}={hydra_text(value)}" for path, value in given.items()]
    composed = compose([f"compiler.torch_npu_version={version}", "mode=max-autotune", *overrides])
    assert composed.problems == ()
    options = CompilerOptions.of_tree(composed.tree["compiler"])
    same = {path for path in given if given[path] == EVERY_LEAF[path].default}
    assert set(options.changed()) == set(given) - same
    assert same <= {"experimental_config.jit_compile", "npugraph_ex.mode"}, "only what takes one value"
    return options


def hydra_text(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ",".join(hydra_text(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{hydra_text(v)}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


LEFT_ALONE = ("mode", "ge_config.aicore_num")


def read_back(tree: Path, version: str, folder: Path) -> dict[str, Any]:
    """What the genuine objects of the wheel hold after every leaf was set; see set_and_read_back.py."""
    options = through_yaml(tuple(tree_of(version).values()), version, folder)
    return printed("set_and_read_back.py", tree, *LEFT_ALONE, told=json.dumps(options.as_tree(changed_only=True)))


def printed(script: str, *arguments: object, told: str = "") -> Any:
    """The JSON that a script beside this file prints last, in a process of its own."""
    ran = subprocess.run(
        command(str(Path(__file__).with_name(script)), *map(str, arguments)),
        input=told, capture_output=True, text=True, check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def held(torch_npu_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return read_back(torch_npu_tree, "2.13.0", tmp_path_factory.mktemp("options"))


def test_103_of_103_leaves_are_set_through_yaml_and_read_back(held: dict[str, Any]):
    assert held["leaves"] == dict.fromkeys(LEAVES, True)
    assert len(held["leaves"]) == 103


def test_what_is_set_reaches_the_genuine_as_dict(held: dict[str, Any]):
    assert held["as_dict"]["torchair"]["ge.oo.level"] == "O1"
    assert held["as_dict"]["torchair"]["ge.topoSortingMode"] == "3"
    assert held["as_dict"]["npugraph_ex"]["capture_limit"] == "7"


def test_what_is_left_alone_does_not_arrive_and_that_is_noticed(held: dict[str, Any]):
    """The negative control of the two tests above."""
    assert [path for path, there in held["control"].items() if not there] == ["ge_config.aicore_num", "mode"]
    assert "ge.aicoreNum" not in held["as_dict"]["torchair"]


@pytest.mark.slow
@pytest.mark.parametrize("version", [name for name in versions() if name != "2.13.0"])
def test_every_leaf_of_the_other_versions_is_set_through_yaml_and_read_back(version: str, tmp_path: Path):
    tree = fetched(version)
    assert {leaf.path: leaf for leaf in read_tree(tree)} == genuine_tree(version)
    assert read_back(tree, version, tmp_path)["leaves"] == dict.fromkeys(tree_of(version), True)


WHEELS = (
    "2.5.1", "2.5.1.post1", "2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.10.0", "2.10.0.post7", "2.11.0", "2.12.0", "2.13.0",
    "2.14.0",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("version", WHEELS)
def test_the_tree_that_is_taken_for_a_wheel_is_that_of_its_own_classes(version: str):
    """Also of releases that the table has not: what is taken is found by the files, what is compared is read anew."""
    tree = fetched(version, exactly=True)
    assert wheel_version(tree) == version
    taken, own = live_tree(tree) or (), read_tree(tree)
    assert len(taken) == len(own)
    assert {leaf.path: leaf for leaf in taken} == {leaf.path: leaf for leaf in own}


def fetched(version: str, *, exactly: bool = False) -> Path:
    """The wheel of another version. Only its Python files are read, so that any Python may read that of 3.11."""
    from npucompose.errors import FetchError

    try:
        return fetch(pinned(version if exactly else known(version), "3.11", "x86_64"))[0]
    except FetchError as error:
        pytest.skip(f"needs the wheel of torch_npu {version}: {error}")


def test_a_filter_of_names_takes_nodes_and_operators():
    torch = pytest.importorskip("torch")
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    add = graph.call_function(torch.ops.aten.add.Tensor, (x, x))
    mul = graph.call_function(torch.ops.aten.mul.Tensor, (add, x))
    assert node_filter(("aten.add",))(add) is add
    assert node_filter(("aten.add*",))(add) is add
    assert node_filter(("mul_*", add.name))(add) is add
    assert node_filter(("aten.add",))(mul) is None


# Legality: what the genuine package warns about.

ACTS_ALTHOUGH_WARNED = {
    ("dump_config.enable_dump", "reduce-overhead"): "the captured graph reads it, and dumps",
}
"""{(path, mode): why we let it through although torchair warns}: docs/decisions/2026-11-21-option-trees.md."""


Warned = list[tuple[str, str, Any]]


@pytest.fixture(scope="session")
def warned(torch_npu_tree: Path) -> Warned:
    """(path, mode, value) that the wheel's own check warns about, from its lists, each tried live."""
    return [tuple(row) for row in printed("genuine_warnings.py", torch_npu_tree)]


def test_what_torchair_warns_about_is_illegal_here_too(warned: Warned):
    let_through = [
        (path, mode)
        for path, mode, value in warned
        if value != LEAVES[path].default and not illegal_in_mode(CompilerOptions(values={path: value}), mode)
    ]
    assert let_through == list(ACTS_ALTHOUGH_WARNED)


def test_the_warnings_are_those_of_both_lists(warned: Warned):
    assert {mode for _, mode, _ in warned} == {"max-autotune", "reduce-overhead"}
    assert {path for path, _, _ in warned} <= set(LEAVES)
    assert len({path for path, _, _ in warned}) == 25, "5 of max-autotune, 20 of reduce-overhead"


def test_the_one_default_that_torchair_warns_about_is_enable_view_optimize(warned: Warned):
    """A default cannot be illegal here, and ours reads the same in every mode."""
    assert {path for path, _, value in warned if value == LEAVES[path].default} == {
        "experimental_config.enable_view_optimize"
    }
