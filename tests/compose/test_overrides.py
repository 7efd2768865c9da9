"""What the command line says of keys and choices: refused in words before anything is composed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.compose.merge import Keys
from npucompose.compose.overrides import (
    LONGEST_KEY,
    REFUSED_OF_HYDRA,
    group_problems,
    hydra_problem,
    parsed_overrides,
    short,
    translate_hydra_errors,
    value_problem,
    words,
)
from npucompose.compose.tree import Composer, compose
from npucompose.errors import ConfigError


def override(text: str) -> Any:
    (parsed,) = parsed_overrides([text])
    return parsed


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def test_text_that_is_no_override_is_told_with_every_other_one() -> None:
    good, wrong = "seed=1", ["seed", "a=[", "b=" + "9" * 5000]
    assert [o.input_line for o in parsed_overrides([good, "~passes"])] == [good, "~passes"]
    with pytest.raises(ConfigError) as refused:
        parsed_overrides([wrong[0], good, *wrong[1:]])
    assert len(refused.value.problems) == 3
    for text, problem in zip(wrong, refused.value.problems, strict=True):
        assert problem.startswith(f"'{short(text)}' is not an override: ")
        assert problem.endswith("Write key=value, group=choice, or ~key.")
        assert ".." not in problem.replace("…", "")


@pytest.mark.parametrize("key", REFUSED_OF_HYDRA)
def test_what_hydra_must_not_be_told_is_refused_with_all_below_it(key: str) -> None:
    assert hydra_problem(override(f"{key}=x")) == f"'{key}=x' cannot be set here: {REFUSED_OF_HYDRA[key]}."
    assert "/" in key or hydra_problem(override(f"+{key}.a=x")) is not None
    assert hydra_problem(override("hydra.run.dir=x")) is None
    assert hydra_problem(override(f"{key}s=x")) is None


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("mode=eager", []),
        ("passes=[cse,dead_code]", []),
        ("~passes", []),
        ("mode=eagre", ["unknown mode 'eagre' @ mode=eagre. Did you mean 'eager'? Choices: eager, max-autotune, "]),
        ("passes=[cse,ces]", ["unknown pass 'ces' @ passes=[cse,ces]."]),
        (
            "passes=[cse,cse]",
            ["'cse' is named twice @ passes=[cse,cse]. A mapping holds a name once. To run it twice give"],
        ),
        ("mode=[eager,eager]", ["'eager' is named twice @ mode=[eager,eager]. A mapping holds a name once."]),
        ("passes=[x,x]", ["unknown pass 'x'", "'x' is named twice"]),
        ("mode=null", ["'mode=null' names no choice. ~mode leaves the whole group out."]),
        ("mode={a: 1}", ["'mode={a: 1}' names no choice."]),
        ("mode=1", ["unknown mode '1'"]),
        ("mode=../config", ["unknown mode '../config'"]),
        ("mode=/config", ["unknown mode '/config'"]),
        (
            "mode=eager,max-autotune",
            ["'mode=eager,max-autotune' names several values: a sweep needs -m ("],
        ),
        (f"mode={'x' * (LONGEST_KEY + 1)}", [f"unknown mode '{'x' * 60}…' @ "]),
    ],
)
def test_a_choice_that_is_none_is_told_with_the_choices(composer: Composer, text: str, problems: list[str]) -> None:
    found = group_problems(composer.loader, override(text))
    assert len(found) == len(problems)
    for told, wanted in zip(found, problems, strict=True):
        assert told.startswith(wanted)
    if text.startswith("mode=[eager"):
        assert "To run it twice" not in found[0], "only a pass can run twice"


def test_a_long_text_is_cut_where_it_is_told() -> None:
    assert short("x" * LONGEST_KEY) == "x" * LONGEST_KEY
    assert short("x" * (LONGEST_KEY + 1)) == "x" * 60 + "…"


TREE = {
    "a": {"b": 1, "none": None, "c": {"d": [1, {"e": 2}]}}, "must": "???", "model": {"config": {}}, "empty": {},
    "compiler": {"ge_config": {"oo_level": "O3"}}, "shapes": {"gears": {}}, "passes": {},
}  # fmt: skip
KEYS = Keys({"model.config": False, "shapes.gears": True, "a.none": False})


@pytest.mark.parametrize(
    "text",
    ["a.b=2", "a.none=2", "a.c.d=3", "a.c.d.1.e=3", "must=1", "~a.b", "+x.y=1", "++x.y=1", "hydra.run.dir=x",
     "model.config.any.key=1", "a.c={d: 1}", "model.config={a: {b: 1}}", "shapes.gears.x.0=[1]", "a.none.x=1",
     "passes.again={pass: cse}", "compiler.npugraph_ex.debug.aclgraph.clone_input=1", "compiler={ge_config: {}}"],
)  # fmt: skip
def test_a_value_of_a_key_that_is_there_or_added_is_fine(text: str) -> None:
    assert value_problem(TREE, KEYS, override(text)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a.bb=1", "unknown key 'bb' of a @ a.bb=1. Did you mean 'b'? Choices: b, none, c."),
        ("modle=1", "unknown key 'modle' @ modle=1. Did you mean 'model'? Choices: a, must, model, empty, "),
        ("a.c.x.y=1", "unknown key 'x' of a.c @ a.c.x.y=1. Choices: d."),
        ("empty.x=1", "unknown key 'x' of empty @ empty.x=1. It holds no keys yet: +empty.x=1 adds one."),
        ("a.b.c=1", "'a.b' is a value and has no keys @ a.b.c=1."),
        ("a.b=1,2", "'a.b=1,2' names several values: a sweep needs -m (python run.py -m a.b=1,2)."),
        ("a.c={x: 1}", "unknown key 'x' of a.c @ a.c={x: 1}. Choices: d."),
        ("a={c: {x: 1}}", "unknown key 'x' of a.c @ a={c: {x: 1}}. Choices: d."),
        ("passes.again.stage=post", "unknown key 'again' of passes @ "),
        ("passes.again={stage: post}", "unknown key 'again' of passes @ "),
        ("compiler.npugraph_ex.modes=x", "unknown key 'npugraph_ex' of compiler"),
        ("npugraph_ex.clone_input=1", "unknown key 'npugraph_ex' @"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_there_is_told_with_those_that_are(text: str, problem: str) -> None:
    assert str(value_problem(TREE, KEYS, override(text))).startswith(problem)


class Marked(ValueError):
    problem_mark = SimpleNamespace(name="x.yaml", line=4)
    problem = "found a tab"


def test_an_error_of_hydra_is_one_sentence_the_useful_one() -> None:
    error = ValueError("outer\nsecond")
    assert words(error) == "outer second"
    error.__cause__ = ValueError("inner \n\n object_type=dict\n more")
    assert words(error) == "inner more"
    assert words(ValueError("")) == "ValueError"
    assert words(Marked("text")) == "x.yaml:5: found a tab"
    Marked.problem = ""
    assert words(Marked("text\nmore")) == "x.yaml:5: text"


def test_errors_of_the_libraries_come_after_what_was_known() -> None:
    from yaml import YAMLError

    for error in (ValueError("no"), AssertionError("no"), YAMLError("no")):
        with pytest.raises(ConfigError) as found, translate_hydra_errors(["first"]):
            raise error
        assert found.value.problems == ("first", "no")
        assert found.value.__cause__ is error
    with pytest.raises(KeyError), translate_hydra_errors():
        raise KeyError("not theirs")


def test_wrong_values_and_wrong_choices_are_told_together_and_the_rest_is_composed() -> None:
    found = compose(["mode=eagre", "sead=1", "seed=5", "strict='${seed'", f"{'k' * 501}=1", "hydra.mode=RUN"])
    assert found.tree["seed"] == 5
    told = "\n".join(found.problems)
    assert len(found.problems) == 5
    for part in ("unknown mode 'eagre'", "unknown key 'sead'", "is refused: its ${ is not", "is no key: it has 501 c"):
        assert part in told
    assert "write -m for a sweep" in told


@pytest.mark.parametrize("name", ["../config", "", "a/b", "x" * 101])
def test_the_name_of_a_configuration_is_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--config-name .{0,100}: the name of a file of conf/, without \.yaml\.$"):
        Composer(config_name=name)


def test_what_hydra_itself_is_told_is_checked_by_hydra_once(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = composer.loader.load_configuration

    def load(*args: Any, **more: Any) -> Any:
        asked.append((args[1], more))
        return real(*args, **more)

    monkeypatch.setattr(composer.loader, "load_configuration", load)
    for _ in range(2):
        composer.compose(["mode=eager", "seed=1", "hydra.run.dir=x"])
    assert [texts for texts, _ in asked] == [["mode=eager", "hydra.run.dir=x"]]
    assert asked[0][1]["from_shell"] is False
    with pytest.raises(ConfigError, match="verbos"):
        composer.compose(["hydra.verbos=1"])


def test_passes_that_two_files_bring_are_told_with_both(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "mine.yaml").write_text("defaults: [cse]\ndead_code: {pass: dead_code}\n")
    found = compose(["passes=[mine,cse]"], config_dirs=[str(tmp_path)])
    (problem,) = found.problems
    assert problem.startswith("'cse' is named twice @ passes/mine and passes/cse. A mapping holds a name once.")
    assert compose(["passes=mine"], config_dirs=[str(tmp_path)]).problems == ()
