from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.compose.overrides import for_hydra
from npucompose.compose.tree import COMMAND_LINE, compose
from npucompose.errors import ConfigError


def test_every_leaf_says_where_it_came_from() -> None:
    composed = compose(["mode=eager", "seed=3", "passes=cse"])
    origins = composed.provenance
    assert origins["seed"] == COMMAND_LINE
    assert origins["mode.name"] == "conf/mode/eager.yaml, chosen on the command line"
    assert origins["passes.cse.stage"] == "conf/passes/cse.yaml, chosen on the command line"
    assert origins["target.name"] == "conf/target/cpu.yaml"
    assert origins["strict"] == "conf/config.yaml"
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
    assert composed.tree["model"] == {"name": "mlp", "hidden": 8}
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


def test_hydra_is_given_a_plus_for_the_keys_of_open_mappings_alone() -> None:
    given = ["-m", "model.config.n_embd=64", "model.config={a: 1}", "model.configs=3", "mode=eager", "~model.config.x"]
    assert for_hydra(given) == ["-m", "++model.config.n_embd=64", "++model.config={a: 1}", *given[3:]]
