"""Options that fit one by one and not together: searches, executors, adaptation rules."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest

from npucompose.errors import ConfigError
from npucompose.schema.adapt import (
    DTYPES,
    KINDS,
    REFERENCE,
    CastAround,
    Compose,
    Contract,
    FillArgs,
    LayoutAround,
    OperatorCall,
    Rule,
    RuleSet,
    Tolerance,
    When,
    references,
)
from npucompose.schema.experiment import Experiment
from npucompose.schema.sweep import PARAMETERS, Dimension, Local, NoSearch, Optuna, Ray, Slurm
from npucompose.table.options import choices_of_field, option, set_by_engine
from npucompose.table.structure import structure

# Searches.


@pytest.mark.parametrize(
    "fits",
    [
        {"one_of": (1,)}, {"one_of": ("a", "b")}, {"low": 1, "high": 1}, {"low": 1, "high": 8, "step": 2},
        {"low": 0.0, "high": 1.0}, {"low": 0.1, "high": 9, "log": True}, {"low": -3, "high": 3},
        {"low": 0.0, "high": 1.0, "step": 0.001},
    ],
)  # fmt: skip
def test_a_dimension_is_a_list_or_a_range(fits: dict[str, Any]) -> None:
    assert attrs.asdict(Dimension(**fits)).items() >= fits.items()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "either 'one_of', or 'low' and 'high'"),
        ({"low": 1}, "either 'one_of'"),
        ({"high": 1}, "either 'one_of'"),
        ({"one_of": (1,), "low": 1, "high": 2}, "either 'one_of'"),
        ({"one_of": ()}, "'one_of' takes at least one value"),
        ({"one_of": (1,), "step": 1}, "neither 'step' nor 'log'"),
        ({"one_of": (1,), "log": True}, "neither 'step' nor 'log'"),
        ({"low": 2, "high": 1}, "from 'low' 2 to 'high' 1 by 'step' None there is nothing"),
        ({"low": 1, "high": 2, "step": 0}, "by 'step' 0 there is nothing"),
        ({"low": 1, "high": 2, "step": -1}, "by 'step' -1 there is nothing"),
        ({"low": 0, "high": 2, "log": True}, "'log' needs a 'low' above 0"),
        ({"low": -1, "high": 2, "log": True}, "'log' needs a 'low' above 0"),
        ({"low": 1, "high": 2, "step": 1, "log": True}, "takes no 'step'"),
    ],
)
def test_a_dimension_that_holds_nothing_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Dimension(**wrong)


@pytest.mark.parametrize(
    ("numbers", "whole"),
    [((1, 8, None), True), ((1, 8, 2), True), ((1, 8.0, None), False), ((1.0, 8, None), False), ((1, 8, 0.5), False)],
)
def test_a_dimension_is_whole_where_all_its_numbers_are(numbers: Any, whole: bool) -> None:
    low, high, step = numbers
    assert Dimension(low=low, high=high, step=step).whole is whole


# Executors.


@pytest.mark.parametrize("name", PARAMETERS)
def test_sbatch_takes_where_and_when(name: str) -> None:
    assert Slurm(parameters={name: "gpu-1,gpu[2-3]|a:b=c@d/e"}).parameters[name]
    assert Slurm(parameters={name: 3}).parameters[name] == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"parameters": {"output": "x"}}, "unknown option of sbatch 'output'.*[^.]$"),
        ({"parameters": {"qos": "a b"}}, "'qos' must be one plain word for sbatch: 'a b'"),
        ({"parameters": {"qos": "a\nb"}}, "'qos' must be one plain word"),
        ({"parameters": {"qos": "a\n"}}, "'qos' must be one plain word"),
        ({"parameters": {"qos": ""}}, "'qos' must be one plain word"),
        ({"partition": "a;b"}, "'partition' must be one plain word"),
        ({"gres": "npu:1 --wrap"}, "'gres' must be one plain word"),
    ],
)
def test_what_is_no_plain_word_reaches_no_script(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Slurm(**wrong)


@pytest.mark.parametrize(("name", "cls"), [("local", Local), ("ray", Ray), ("slurm", Slurm)])
def test_an_executor_is_chosen_by_its_name(name: str, cls: type[Any]) -> None:
    assert type(read(executor={"name": name, "jobs": 3}).executor) is cls
    made = cls()
    assert read(executor=made).executor is made


def read(**sections: Any) -> Experiment:
    return structure(Experiment, {"mode": {"name": "eager"}, **sections})


def test_without_a_name_the_first_class_is_meant_and_another_name_is_refused() -> None:
    assert read(executor={"jobs": 2}).executor == Local(jobs=2)
    assert read(search={"trials": 3, "name": "optuna"}).search == Optuna(trials=3)
    assert read(search={}).search == NoSearch()
    assert refused(executor={"name": "slrum"}) == (
        "'executor' must be a mapping whose name is one of local, ray, slurm: 'slrum'. Did you mean 'slurm'?",
    )
    assert refused(executor=3) == ("'executor' must be a mapping: 3",)
    assert refused(executor={"name": "ray", "poll_s": 1}) == (
        "unknown key 'poll_s' @ executor. Choices: name, address, jobs, cpus, devices, resources.",
    )


def refused(**sections: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as found:
        read(**sections)
    return found.value.problems


# Options.


def test_an_option_is_checked_as_it_was_declared() -> None:
    @attrs.frozen(kw_only=True)
    class Made:
        free: Any = option(None, "anything", optional=True)
        above: float = option(1.0, gt=0, le=2)
        maybe: int | None = option(None, ge=1, optional=True)
        fresh: list[int] = option(factory=list)
        seed: int = option(0, from_experiment="seed")
        kind: Literal["a", "b"] | None = option("a", optional=True)
        one_of: int = option(1, choices=(1, 2))

    assert Made(free="x", above=2).free == "x"
    assert Made().fresh is not Made().fresh
    for wrong in ({"above": 0}, {"above": 2.1}, {"maybe": 0}, {"kind": "c"}, {"one_of": 3}):
        with pytest.raises(ValueError, match="must be"):
            Made(**wrong)
    assert set_by_engine(Made) == {"seed": "seed"}
    assert choices_of_field(Made, attrs.fields(Made).above) is None
    assert choices_of_field(Made, attrs.fields(Made).kind) == ("a", "b")
    assert choices_of_field(Made, attrs.fields(Made).one_of) == (1, 2)
    with pytest.raises(TypeError):
        attrs.make_class("Needed", {"one": option(doc="needed")})()


# Adaptation rules.

OP = "aten.relu.default"


def test_a_contract_is_bitwise_or_says_how_far() -> None:
    assert Tolerance().bitwise
    assert not Tolerance(rtol=1e-9).bitwise
    assert not Tolerance(atol=1e-9).bitwise
    assert Contract.of_tree("bitwise", "at") == Contract()
    assert Contract.of_tree({"rtol": 0.1, "atol": 0.2, "range_check": True}, "at") == Contract(
        rtol=0.1, atol=0.2, range_check=True
    )
    with pytest.raises(ConfigError, match=r"^a contract is 'bitwise' or a mapping of rtol, .*: 'exact' @ at$"):
        Contract.of_tree("exact", "at")
    with pytest.raises(ConfigError, match="'rtol' must be >= 0"):
        Contract.of_tree({"rtol": -1}, "at")


def test_a_condition_names_dtypes_that_exist() -> None:
    for name in (*DTYPES, "floating", "integer", "complex"):
        assert When(dtype={"x": (name,)}).dtype == {"x": (name,)}
    with pytest.raises(ValueError, match=r"^unknown dtype 'float23' @ dtype\.y\..*Did you mean 'float32'.*[^.]$"):
        When(dtype={"x": ("int8",), "y": ("bool", "float23")})


@pytest.mark.parametrize(
    "good",
    [
        "$x",
        "$x[0]",
        "$x[12].size(-1)",
        "$x.size(1)",
        *(f"$x.{w}" for w in ("dtype", "device", "shape", "ones", "shape[1:]", "ones[2:]", "numel", "rank")),
    ],
)
def test_a_reference_is_an_argument_or_something_of_it(good: str) -> None:
    assert REFERENCE.fullmatch(good)
    assert OperatorCall(op=OP, args=([good],), kwargs={"a": {"b": good}}).args == ([good],)


@pytest.mark.parametrize(
    "wrong", ["$", "$x.sizes", "$x.size()", "$x.size(a)", "$x y", "$x[a]", "$x.rank[1:]", "*$x", "*$x.numel"]
)
def test_what_is_no_reference_is_refused_wherever_it_stands(wrong: str) -> None:
    for arguments in ({"args": (1, [wrong])}, {"kwargs": {"a": {"b": wrong}}}):
        with pytest.raises(ValueError, match="is no reference: write"):
            OperatorCall(op=OP, **arguments)
        with pytest.raises(ValueError, match="is no reference: write"):
            FillArgs(op=OP, to=OP, **arguments)


def test_references_are_found_in_nested_arguments_and_other_text_is_none() -> None:
    assert references((["$a", 1, "b$", "*b"], {"k": ("$c", None)}, "$d", "*$e")) == ["$a", "$c", "$d", "*$e"]


def test_every_operator_of_a_rule_is_checked() -> None:
    wrong = "aten.save.default"
    for make in (
        lambda: OperatorCall(op=wrong),
        lambda: Rule(op=wrong),
        lambda: FillArgs(op=wrong, to=OP),
        lambda: FillArgs(op=OP, to=wrong),
        lambda: CastAround(op=wrong, compute="float32", inputs=("x",)),
        lambda: LayoutAround(op=wrong, perm=(0,), inputs=("x",)),
        lambda: Compose(op=wrong, steps=(OperatorCall(op=OP),)),
    ):
        with pytest.raises(ValueError, match="is no operator of a model"):
            make()


def test_a_rule_that_does_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'inputs' must name at least one argument"):
        CastAround(op=OP, compute="float32", inputs=())
    with pytest.raises(ValueError, match="'inputs' must name at least one argument"):
        LayoutAround(op=OP, perm=(1, 0), inputs=())
    with pytest.raises(ValueError, match="'steps' must hold at least one call"):
        Compose(op=OP, steps=())
    for perm in ((), (1, 2), (0, 0), (0, 2)):
        with pytest.raises(ValueError, match=r"'perm' must hold each of 0 to n-1 once: \["):
            LayoutAround(op=OP, perm=perm, inputs=("x",))
    assert LayoutAround(op=OP, perm=(0, 3, 1, 2), inputs=("x",)).perm == (0, 3, 1, 2)


def test_the_call_of_a_filled_operator_has_all_that_was_said() -> None:
    rule = FillArgs(op=OP, to="aten.abs.default", args=("$x", 1), kwargs={"k": 2}, result=1)
    assert rule.calls == (OperatorCall(op="aten.abs.default", args=("$x", 1), kwargs={"k": 2}, result=1),)


RULES: list[Any] = [
    {"kind": "fill_args", "op": OP, "to": OP, "args": ["$x"], "when": {"dtype": {"x": ["int8"]}}, "priority": 2},
    {"kind": "cast_around", "op": OP, "compute": "float32", "inputs": ["x"], "contract": {"rtol": 0.1}, "name": "mine"},
    {"kind": "layout_around", "op": OP, "perm": [1, 0], "inputs": ["x"], "set": {"f": "NCHW"}},
    {"kind": "compose", "op": OP, "steps": [{"op": OP, "let": "a"}], "results": ["$a"]},
    {"kind": "dispatch", "op": OP, "by": "mode", "cases": {"sum": {"op": OP}}},
    {"kind": "reject", "op": OP, "message": "no"},
]


def test_rules_are_read_in_order_named_after_their_place_and_written_back() -> None:
    found = structure(RuleSet, {"name": "set", "rules": RULES}, "adapt")
    assert [rule.name for rule in found.rules] == ["set.0", "mine", "set.2", "set.3", "set.4", "set.5"]
    assert [rule.kind for rule in found.rules] == list(KINDS)
    assert structure(RuleSet, found.as_tree(), "adapt") == found
    assert structure(RuleSet, {"rules": list(found.rules), "name": "set"}, "adapt") == found
    assert structure(RuleSet, {}, "adapt") == RuleSet()


@pytest.mark.parametrize(
    ("tree", "problems"),
    [
        (3, ["adapt"]),
        ({"name": "n", "rules": "all"}, ["'rules' must be a list: 'all' @ adapt"]),
        ({"name": 3, "rules": "all"}, ["'name' must be text: 3 @ adapt", "'rules' must be a list: 'all'"]),
        ({"name": 3}, ["'name' must be text: 3 @ adapt"]),
        ({"rules": [3]}, ["a rule must be a mapping: 3 @ adapt.rules[0]"]),
        ({"rules": [{"op": OP}]}, ["'kind' is missing @ adapt.rules[0]. Choices: fill_args, cast_around, "]),
        ({"rules": [{"kind": "rejct"}]}, ["unknown kind 'rejct' @ adapt.rules[0]. Did you mean 'reject'?"]),
        ({"rules": [RULES[1], RULES[0], RULES[1]]}, ["two rules are called 'mine' @ adapt"]),
        ({"rules": [RULES[0], {}, {"kind": "reject", "op": OP}]}, ["'kind' is missing @ adapt.rules[1]",
                                                                 "'message' is missing @ adapt.rules[2]"]),
    ],
)  # fmt: skip
def test_every_mistake_in_a_rule_set_is_told_with_its_place(tree: Any, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as found:
        structure(RuleSet, tree, "adapt")
    assert len(found.value.problems) == len(problems)
    for told, wanted in zip(found.value.problems, problems, strict=True):
        assert wanted in told
