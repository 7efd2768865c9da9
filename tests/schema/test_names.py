"""What a configuration may name: identifiers, and closed lists of what could read, write or load something."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.compose.check import check
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError
from npucompose.table.options import CLOSED, DOWNLOADING, INTERNAL, foreign_config_problems, is_name, operator_problem

RULE = {"kind": "fill_args", "op": "aten.relu.default", "args": ["$self"]}


def refused(**sections: Any) -> str:
    """The problems of an experiment that a recipe brings."""
    tree = {**compose(["target=null_device"]).tree, **sections}
    with pytest.raises(ConfigError) as found:
        check(Composed(tree=tree, provenance=dict.fromkeys(tree, "recipe.lock.yaml")))
    return "\n".join(found.value.problems)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": {"attn_implementation": "org/kernel"}}, "'config.attn_implementation' must be one of eager, sdpa"),
        ({"config": {"attn_implementation": "flash_attention_2"}}, "must be one of eager, sdpa, flex_attention"),
        ({"config": {"attn_implementation": {"text_config": "org/kernel"}}}, "must be one of eager"),
        ({"config": {"text_config": {"attn_implementation": "a/b"}}}, "'config.text_config.attn_implementation' must"),
        ({"config": {"experts_implementation": "sonicmoe"}}, "must be one of eager, batched_mm, grouped_mm"),
        ({"config": {"_attn_implementation": "eager"}}, "'config._attn_implementation' is no key"),
        (
            {"config": {"quantization_config": {"quant_method": "bitsandbytes"}}},
            "'config.quantization_config' is no key",
        ),
        ({"config": {"auto_map": {"AutoModel": "evil.Model"}}}, "'config.auto_map' is no key"),
        ({"config": {"backbone": "microsoft/resnet-50"}}, "'config.backbone' must be a plain word"),
        ({"config": {"architectures": ["hf-hub:org/model"]}}, "'config.architectures.0' must be a plain word"),
        ({"config_class": "os.system"}, "'config_class' must be a plain name"),
        ({"architecture": "../evil"}, "'architecture' must be a plain name"),
        ({"architecture": "L" * 200}, "'architecture' must be a plain name of at most 100 letters"),
    ],
)
def test_a_model_of_transformers_is_named_by_words_and_loads_no_kernel(options: Any, words: str) -> None:
    assert words in refused(model={"name": "transformers", **options})


@pytest.mark.parametrize("label", ["a b", '"""', "a\nimport os", "'", "", "../up", "x" * 101, "a/b"])
def test_a_pass_s_label_is_a_name(label: str) -> None:
    assert "a pass's label must be a plain name" in refused(passes={label: {"pass": "cse"}})


@pytest.mark.parametrize("group", ["shapes", "pipeline", "streams"])
def test_a_choice_calls_itself_by_a_name(group: str) -> None:
    section = {**compose([]).tree[group], "name": "<script>"}
    assert f"'name' must be a plain name of at most 100 letters: '<script>' @ {group}" in refused(**{group: section})


@pytest.mark.parametrize(
    "operator",
    ["aten.save.default", "aten.from_file.default", "debugprims.load_tensor.default", "c10d.send.default",
     "load_library.__self__.x", "aten.relu", "os.system.x y"],
)  # fmt: skip
def test_a_rule_calls_no_operator_that_reads_or_writes(operator: str) -> None:
    assert operator_problem(operator)
    assert f"'{operator}' is no operator" in refused(adapt={"name": "mine", "rules": [{**RULE, "to": operator}]})


def test_a_method_of_torch_ops_is_no_operator() -> None:
    from npucompose.graphs.matching import operator_of

    assert operator_of("aten.relu.default") is not None
    assert operator_of("__class__.mro.x") is None
    assert operator_of("import_module.__func__.default") is None


def test_a_name_is_plain_and_at_most_a_hundred_letters() -> None:
    assert is_name("x" * 100)
    assert not is_name("x" * 101)
    assert [is_name(text) for text in ("a.b-c+1", "_a", "", "-a", "a b", "a\n")] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("config", [
    {"a": 1, "b": 2.5, "c": True, "d": None, "e": "gelu_new", "f": "", "g": [1, ["x"], {"h": 3}], "i": {"j": (1, 2)}},
    {"a": 2**63 - 1, "b": -(2**63 - 1)},
    *({key: value} for key, values in CLOSED.items() for value in (*values, None)),
    {"attn_implementation": {"text_config": "eager", "vision_config": "sdpa"}},
])  # fmt: skip
def test_numbers_words_and_what_holds_them_are_a_model_s_shape(config: dict[str, Any]) -> None:
    assert list(foreign_config_problems(config, "config")) == []


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        *(({key: None}, f"'config.{key}' is no key of a model's shape") for key in sorted(DOWNLOADING)),
        ({"_a": 1}, "'config._a' is no key"),
        ({"a b": 1}, "'config.a b' is no key"),
        ({"a" * 101: 1}, f"'config.{'a' * 93}' is no key"),
        ({1: {"_x": 2}}, "'config.1._x' is no key"),
        ({"a": 2**63}, "'config.a' must be a finite number of at most 64 bits"),
        ({"a": -(2**63)}, "'config.a' must be a finite number"),
        ({"a": float("nan")}, "'config.a' must be a finite number"),
        ({"a": [1, float("inf")]}, "'config.a.1' must be a finite number"),
        ({"a": ("b", "c/d")}, "'config.a.1' must be a plain word, no address and no path: 'c/d'"),
        ({"a": "x" * 101}, f"'config.a' must be a plain word, no address and no path: '{'x' * 100}'"),
        (
            {"attn_implementation": {"a": "eager", "b": "org/kernel"}},
            "'config.attn_implementation' must be one of eager,",
        ),
        ({"experts_implementation": "x" * 101}, f"must be one of eager, batched_mm, grouped_mm: '{'x' * 100}'"),
    ],
)
def test_what_more_a_configuration_holds_is_refused_once(config: dict[Any, Any], problem: str) -> None:
    (told,) = foreign_config_problems(config, "config")
    assert problem in told


def test_operators_of_a_model_are_called_and_no_others() -> None:
    assert operator_problem("aten.mul.Tensor") is None
    assert operator_problem("a.b." + "c" * 96) is None
    assert str(operator_problem("a.b." + "c" * 97)).startswith(f"'a.b.{'c' * 96}' is no operator: write")
    for namespace in INTERNAL:
        assert "talks to other processes" in str(operator_problem(f"{namespace}.any.default"))
    assert "reads or writes files" in str(operator_problem("aten.save.x"))
    assert operator_problem("aten.save_all.x") is None
