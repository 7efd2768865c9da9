from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from npucompose.compose.tree import COMMAND_LINE, DEFAULT, Composer, compose
from npucompose.errors import ConfigError


def test_every_leaf_says_where_it_came_from() -> None:
    composed = compose(["mode=eager", "seed=3", "passes=cse"])
    origins = composed.provenance
    assert origins["seed"] == COMMAND_LINE
    assert origins["mode.name"] == "conf/mode/eager.yaml, chosen on the command line"
    assert origins["passes.cse.stage"] == "conf/passes/cse.yaml, chosen on the command line"
    assert origins["target.name"] == "conf/target/cpu.yaml"
    assert origins["strict"] == DEFAULT
    assert composed.tree["seed"] == 3


def test_a_preset_is_the_origin_of_what_it_overrides() -> None:
    origins = compose(["experiment=decode", "expect.bitwise=false"]).provenance
    assert origins["expect.captures"] == "conf/experiment/decode.yaml, chosen on the command line"
    assert origins["expect.bitwise"] == COMMAND_LINE
    assert origins["model.name"] == "conf/model/gpt_decode.yaml, chosen by conf/experiment/decode.yaml"


def test_a_mapping_given_whole_on_the_command_line_is_the_origin_of_its_leaves() -> None:
    origins = compose(["++compile={fullgraph: false}"]).provenance
    assert origins["compile.fullgraph"] == COMMAND_LINE


@pytest.mark.parametrize(
    ("written", "order"),
    [
        (["passes=[stream_plan,cse]"], ["stream_plan", "cse"]),
        (["passes=[cse,stream_plan]"], ["cse", "stream_plan"]),
        (["passes=cse"], ["cse"]),
        (["passes=[]"], []),
        (["passes=[dead_code,cse]", "~passes.cse"], ["dead_code"]),
        (["passes=cse", "+passes.again={pass: dead_code}"], ["cse", "again"]),
    ],
)
def test_passes_keep_the_order_written(written: list[str], order: list[str]) -> None:
    assert list(compose(written).tree.get("passes", {})) == order


def test_a_folder_of_ones_own_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("# mine\nname: mlp\nhidden: 8\n")
    composed = compose(["model=wide"], config_dirs=[str(tmp_path)])
    assert composed.tree["model"] == {"name": "mlp", "batch": 32, "hidden": 8, "layers": 3, "sequence": []}
    assert composed.provenance["model.hidden"].startswith("conf/model/wide.yaml")


def test_mistakes_are_collected_and_the_rest_is_composed() -> None:
    composed = compose(["mode=eagr", "sede=1", "seed=5"])
    assert len(composed.problems) == 2
    assert composed.tree["seed"] == 5


def test_yaml_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("name: [\n")
    with pytest.raises(ConfigError, match="broken"):
        compose(["model=broken"], config_dirs=[str(tmp_path)])


def test_a_target_s_own_default_pipeline_names_the_target_and_yields_to_the_command_line() -> None:
    chosen = compose(["target=npu_offline"])
    assert chosen.tree["pipeline"]["name"] == "check"
    assert chosen.provenance["pipeline.name"] == "conf/pipeline/check.yaml, chosen by conf/target/npu_offline.yaml"
    asked = compose(["target=npu_offline", "pipeline=compile_only"])
    assert asked.tree["pipeline"]["name"] == "compile_only"
    assert asked.provenance["pipeline.name"] == "conf/pipeline/compile_only.yaml, chosen on the command line"


def test_a_library_s_configuration_takes_any_key_in_every_way_of_writing() -> None:
    chosen = ["model=transformers", "model.architecture=GPT2LMHeadModel"]
    whole = compose([*chosen, "model.config={n_embd: 64, n_layer: 3}"])
    singly = compose([*chosen, "model.config.n_embd=64", "model.config.n_layer=3"])
    assert whole.tree["model"]["config"] == singly.tree["model"]["config"] == {"n_embd": 64, "n_layer": 3}
    assert whole.provenance["model.config.n_embd"] == COMMAND_LINE
    assert not whole.problems + singly.problems


def test_a_marked_dimension_needs_no_plus() -> None:
    assert compose(["shapes.mark_dynamic={x: [0]}"]).tree["shapes"]["mark_dynamic"] == {"x": [0]}


FREE = (
    (["shapes.gears={x.0: [2, 4]}"], "shapes.gears", {"x.0": [2, 4]}),
    (["shapes.gears.x.0=[2,4]", "+shapes.gears.y.1=[2]"], "shapes.gears", {"x.0": [2, 4], "y.1": [2]}),
    (["shapes.mark_dynamic={x: [0]}", "shapes.mark_dynamic.y=[1]"], "shapes.mark_dynamic", {"x": [0], "y": [1]}),
    (["logs.levels={torchair: DEBUG}"], "logs.levels", {"torchair": "DEBUG"}),
    (["logs.levels.torch.fx=DEBUG", "+logs.levels.x=INFO"], "logs.levels", {"torch.fx": "DEBUG", "x": "INFO"}),
    (["expect.rules.relu=2"], "expect.rules", {"relu": 2}),
    (["sinking.operators={a.b: {}}"], "sinking.operators", {"a.b": {}}),
    (["executor=ray", "executor.resources.a3=1"], "executor.resources", {"a3": 1}),
    (["executor=slurm", "executor.parameters={account: me}"], "executor.parameters", {"account": "me"}),
    (["search=optuna", "search.objectives={p50_us: minimize}"], "search.objectives", {"p50_us": "minimize"}),
    (["search=optuna", "search.space={mode: {one_of: [a]}}"], "search.space", {"mode": {"one_of": ["a"]}}),
)
"""Overrides of every mapping whose keys are the user's, and what the mapping then is."""


@pytest.mark.parametrize(("written", "path", "value"), FREE)
def test_a_key_of_the_user_s_needs_no_plus_and_may_have_dots(
    written: list[str], path: str, value: dict[str, object]
) -> None:
    composed = compose(written)
    assert composed.problems == ()
    section, key = path.split(".")
    assert composed.tree[section][key] == value
    assert {composed.provenance[f"{path}.{inside}"] for inside in value if value[inside] != {"one_of": ["a"]}} <= {
        COMMAND_LINE
    }


@pytest.mark.parametrize("target", ["cpu", "npu_offline"])
def test_what_hydra_writes_down_is_what_is_composed(target: str) -> None:
    """`.hydra/config.yaml` and `--cfg` come from Hydra's loader, which merges in the same way."""
    from hydra.types import RunMode

    overrides = [f"target={target}", *FREE[1][0], "passes=cse", "passes.again={pass: dead_code}", "~retry", "+seed=3"]
    composer = Composer()
    config = composer.application().load_configuration("config", [*overrides, "hydra.run.dir=x"], RunMode.RUN)
    written: Any = OmegaConf.to_container(config, resolve=False)
    assert written.pop("hydra")["run"]["dir"] == "x"
    assert written == composer.compose(overrides).tree
    assert list(config.hydra.overrides.task) == overrides
    assert config.hydra.job.override_dirname.startswith("+seed=3,")


def test_a_folder_of_ones_own_need_not_spell_out_what_can_be_set(tmp_path: Path) -> None:
    for group, text in (("target", "name: cpu\nexecutor: portable\n"), ("compiler", "ge_config: {oo_level: O1}\n")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    values = [
        "target.index=1",
        "target.when_full=replace",
        "compiler.debug.run_eagerly=true",
        "shapes.gears={x.0: [2]}",
    ]
    composed = compose(["target=mine", "compiler=mine", *values[1:]], config_dirs=[str(tmp_path)])
    assert composed.problems == ()
    assert (composed.tree["target"]["executor"], composed.tree["target"]["when_full"]) == ("portable", "replace")
    assert composed.tree["compiler"]["ge_config"]["oo_level"] == "O1"
    assert composed.tree["compiler"]["debug"]["run_eagerly"] is True
    (problem,) = compose(["target=mine", values[0]], config_dirs=[str(tmp_path)]).problems
    assert problem.startswith("unknown key 'index' of target @ target.index=1.")


def test_who_changes_a_tree_changes_no_later_one() -> None:
    tree: Any = compose(["model=add"]).tree
    del tree["model"]["name"]
    tree["benchmark"].clear()
    again = compose(["model=add"]).tree
    assert again["model"]["name"] == "add"
    assert again["benchmark"]
