"""From a plain tree to a checked experiment: choices, sections that points share, and an origin for every leaf."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.compose import check as checking
from npucompose.compose.check import Checked, SectionCache, check
from npucompose.compose.tree import COMMAND_LINE, Composed, compose
from npucompose.compose.untrusted_config import address_problems, path_problems
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Choice
from npucompose.schema.sections import Extensions
from npucompose.schema.sweep import Local, Ray
from npucompose.vendor.compiler import CompilerOptions


def checked(*overrides: str) -> Checked:
    return check(compose(["target=null_device", "model=add", *overrides]))


def test_a_choice_is_a_name_and_its_options() -> None:
    told: list[str] = []
    tree = {
        "target": {"name": "cpu", "soc": 1},
        "model": {"name": "add"},
        "passes": {"a": None, 3: {"pass": "cse", "x": 1}},
    }
    assert checking.shaped(tree, told) == {
        "target": Choice(name="cpu", options={"soc": 1}), "model": Choice(name="add"),
        "passes": {"a": Choice(name="a"), "3": Choice(name="cse", options={"x": 1})},
    }  # fmt: skip
    assert told == []
    assert tree["target"] == {"name": "cpu", "soc": 1}, "the tree is shared and stays what it was"
    assert checking.shaped({"target": 3, "passes": 1}, told) == {"target": 3, "passes": 1}
    assert checking.shaped({}, told) == {"passes": {}}
    assert checking.shaped({"target": {"soc": 1}, "passes": {"a": 3}}, told) == {"passes": {"a": Choice(name="a")}}
    assert told == [
        "'name' is missing @ target: it says which target this is.",
        "this must be a mapping of the pass's options: 3 @ passes.a",
    ]


def test_a_list_of_passes_in_a_file_says_how_it_is_written_there() -> None:
    told: list[str] = []
    assert checking.shaped({"passes": ["cse", "dead_code"]}, told) == {"passes": {}}
    (problem,) = told
    assert "- override /passes: [cse, dead_code]" in problem
    assert "passes: {cse: {}, dead_code: {}}" in problem


def test_sections_that_are_one_object_are_made_once_and_wrong_ones_are_left_for_later() -> None:
    sections = SectionCache()
    section = {"warmup": 7}
    one, other = (sections.with_sections({"benchmark": section, "seed": n, "target": {}}) for n in (1, 2))
    assert one["benchmark"] is other["benchmark"]
    assert one["benchmark"].warmup == 7
    assert (one["seed"], other["seed"], one["target"]) == (1, 2, {})
    equal = sections.with_sections({"benchmark": {"warmup": 7}})["benchmark"]
    assert equal is not one["benchmark"]
    wrong = {"warmpu": 7}
    assert sections.with_sections({"benchmark": wrong})["benchmark"] is wrong
    assert sections.with_sections({"benchmark": wrong})["benchmark"] is wrong
    assert sections.with_sections({"benchmark": 5})["benchmark"] == 5


def test_the_torch_npu_of_this_machine_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(checking, "found_here", lambda: asked.append(1))
    sections = SectionCache()
    for _ in range(2):
        check(compose(["target=null_device", "model=add"]), sections=sections)
    assert asked == [1]


def test_every_mistake_of_every_kind_is_told_at_once_and_each_once() -> None:
    with pytest.raises(ConfigError) as refused:
        check(
            compose(
                ["sead=1", "target=cuda", "model=gpt_decode", "model.heads=7", "+passes.x={pass: nope}", "trust=true"]
            )
        )
    told = refused.value.problems
    assert len(set(told)) == len(told)
    for part in ("unknown key 'sead'", "model.heads=7 does not divide", "unknown pass 'nope'"):
        assert any(part in problem for problem in told), told


def test_without_a_model_nobody_asks_for_one() -> None:
    composed = compose(["target=null_device", "model=gpt_decode", "model.heads=7"])
    assert check(composed, with_model=False).model is None
    with pytest.raises(ConfigError, match=r"model\.heads=7"):
        check(composed)


def test_trust_is_the_command_lines_to_give() -> None:
    assert checked("trust=true").experiment.trust
    composed = compose(["target=null_device", "model=add"])
    for said_by, words in (
        ({"trust": "a file"}, r"'trust' is true \(it comes from a file\)"),
        ({}, r"'trust' is true \(it comes from default\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            check(Composed(tree={**composed.tree, "trust": True}, provenance=said_by))


@pytest.mark.parametrize("keyword", ["training", "cache"])
def test_folded_parameters_can_neither_be_trained_nor_cached(keyword: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked("passes=fold_parameters", f"compile.{keyword}=true", "strict=off", "pipeline=check")
    assert f"passes.fold_parameters makes constants of parameters, which compile.{keyword}=true" in str(refused.value)
    assert "pipeline" not in str(refused.value)
    assert checked("passes=fold_parameters").passes[0][0] == "fold_parameters"
    assert checked("passes=cse", f"compile.{keyword}=true", "strict=off", "pipeline=check").passes


# Origins.


def test_every_leaf_has_an_origin_and_what_nobody_named_is_a_default() -> None:
    made = checked("passes=cse", "compiler.ge_config.oo_level=O1", "inductor.freezing=false", "mode=max-autotune")
    origins = made.provenance
    assert origins["seed"] == "default"
    assert origins["compiler.ge_config.oo_level"] == origins["inductor.freezing"] == COMMAND_LINE
    assert origins["passes.cse.pass"] == "conf/passes/cse.yaml, chosen on the command line"
    bare = check(Composed(tree={"mode": {"name": "eager"}, "target": {"name": "null_device"}, "model": {"name": "add"}},
                          provenance={"mode.name": COMMAND_LINE, "target.name": "a file"}))  # fmt: skip
    assert bare.provenance["benchmark.warmup"] == bare.provenance["seed"] == "default"
    assert bare.provenance["mode.name"] == COMMAND_LINE
    assert "target" not in bare.provenance
    assert "passes" in bare.provenance
    assert "compiler" not in bare.provenance


def test_tiling_is_a_compiler_option_by_its_short_name() -> None:
    made = checked("tiling=sink", "mode=max-autotune")
    assert made.experiment.compiler[checking.TILING_SINK] is True
    assert made.provenance[f"compiler.{checking.TILING_SINK}"] == made.provenance["tiling.schedule"]
    plain = checked("mode=max-autotune")
    assert plain.experiment.compiler[checking.TILING_SINK] is False
    assert plain.provenance[f"compiler.{checking.TILING_SINK}"] == "default"


def test_rules_bring_the_pass_that_follows_them_in_front_of_the_others() -> None:
    made = checked("adapt=ascend", "passes=cse")
    assert list(made.experiment.passes) == ["adapt", "cse"]
    assert made.provenance["passes.adapt.pass"] == made.provenance["adapt.name"]
    own = checked("adapt=ascend", "passes=dead_code", "~passes.dead_code", "+passes.mine={pass: adapt}")
    assert list(own.experiment.passes) == ["mine"]
    assert list(checked("passes=cse").experiment.passes) == ["cse"]
    named = checked("adapt=ascend", "passes=[adapt,cse]")
    assert list(named.experiment.passes) == ["adapt", "cse"]
    assert named.provenance["passes.adapt.pass"].startswith("conf/passes/adapt.yaml")


def test_all_that_is_wrong_with_sections_of_packages_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        Extensions.of_tree({"vllm": {"general": "fast"}, "vlm": {}}, "extensions")
    first, second = refused.value.problems
    assert first.startswith("'general' must be one of inductor, eager: 'fast' @ extensions.vllm")
    assert second.startswith("unknown section 'vlm' @ extensions. Did you mean 'vllm'?")


def test_who_chose_a_section_is_the_file_that_brought_it() -> None:
    def chose(origins: dict[str, str]) -> str:
        return checking._who_chose("passes.a", origins)

    assert chose({"passes.a.x": COMMAND_LINE, "passes.a.y": "a file", "passes.a.z": "another"}) == "a file"
    assert (
        chose({"passes.a": COMMAND_LINE}) == chose({"passes.a.x": COMMAND_LINE, "passes.ab": "a file"}) == COMMAND_LINE
    )
    assert chose({"passes.ab.x": "a file"}) == chose({}) == "default"


# Strangers.


@pytest.mark.parametrize(
    ("place", "leads_out"),
    [
        ("dumps", False),
        ("a/b", False),
        ("/abs", True),
        ("../x", True),
        ("a/../b", True),
        ("~/x", True),
        ("a..b", False),
    ],
)
def test_a_folder_that_leads_out_is_named_by_the_person_alone(place: str, leads_out: bool) -> None:
    options = CompilerOptions(values={"debug.graph_dump.path": place, "dump_config.dump_path": place})
    told = list(path_problems(options, lambda key: "a file"))
    assert len(told) == 2 * leads_out
    assert all(f"={place!r} leads out of the run directory and comes from a file" in one for one in told)
    assert list(path_problems(options, lambda key: COMMAND_LINE)) == []
    one = path_problems(options, lambda key: COMMAND_LINE if key == "compiler.debug.graph_dump.path" else "a file")
    assert len(list(one)) == leads_out
    assert (
        list(path_problems(CompilerOptions(values={"fusion_config.fusion_switch_file": "/x"}), lambda key: "f")) == []
    )


@pytest.mark.parametrize(
    ("executor", "origin", "trust", "told"),
    [
        (Ray(address="a:1"), "a file", False, True), (Ray(address="a:1"), "a file", True, False),
        (Ray(address="a:1"), COMMAND_LINE, False, False), (Ray(), "a file", False, False),
        (Local(), "a file", False, False),
    ],
)  # fmt: skip
def test_a_cluster_is_named_by_the_person_alone(executor: Any, origin: str, trust: bool, told: bool) -> None:
    def said_by(key: str) -> str:
        assert key == "executor.address"
        return origin

    assert len(list(address_problems(executor, said_by, trust=trust))) == told
