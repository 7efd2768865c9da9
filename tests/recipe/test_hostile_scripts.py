"""A script says the same whatever a stranger wrote in its texts: no text becomes code, no comment ends early."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npucompose import api
from npucompose.errors import ConfigError
from npucompose.recipe import header, python_text
from npucompose.recipe.ejected import InputMark, Parts
from npucompose.recipe.ejected import text as script
from npucompose.recipe.freeze import FrozenGraph
from npucompose.schema.experiment import Experiment
from tests.recipe.experiments import EXPERIMENTS
from tests.searches import examples

EVIL = (
    '"""\nimport os\n"""',
    "'''\nimport os\n'''",
    "x\nimport os  # ",
    "x\rimport os",
    "x\x0cimport os",
    "x\x85import os\u2028import os\u2029import os",
    "\\",
    '\\"""',
    '"',
    "'",
    "# end of recipe",
    "\n# end of recipe\nimport os\n",
    "{__import__('os')}",
    "\u202etxet desrever\u202c",
    "\x1b]0;title\x07\x1b[2J",
    "a\x00b",
    "\ufeff# coding: utf-7",
    "# -*- coding: utf-7 -*-",
    "𝖆𝖇𝖈 ﹟ ＃ ；",
    "\ud800",
)


@pytest.fixture(scope="module")
def experiments() -> Mapping[str, Experiment]:
    return {name: api.checked(EXPERIMENTS[name]).experiment for name in ("branches", "gears", "sink")}


def parts(experiment: Experiment, said: Callable[[str], str]) -> Parts:
    """A script's worth of what a recipe, a model or a graph may bring, with `said` asked for each text."""
    frozen = FrozenGraph(
        fingerprint=said("0" * 64),
        nodes=3,
        edits={
            said("first"): (),
            said("second"): (
                python_text.call("edit.move", said("mm"), after=said("x")),
                python_text.call("edit.insert", said("n"), python_text.dotted("torch.ops.air.scope_enter.default")),
            ),
        },
    )
    return Parts(
        experiment=experiment,
        recipe={"model": {"name": said("model"), said("key"): [said("value"), {said("in"): said("it")}]}},
        marks=(InputMark(argument=said("x")), InputMark(argument=said("y"), dims=(0,), nested=True)),
        gears={said("z"): {0: [2, 4]}},
        graphs={"pre": (frozen,), "post": (frozen,)},
    )


def statements(source: str) -> list[str]:
    """What a script says, without the texts in it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return [ast.dump(statement) for statement in tree.body]


def comments(source: str) -> list[str]:
    read = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in read if token.type == tokenize.COMMENT]


def is_shown_as_it_is(source: str) -> bool:
    return all(line.isprintable() for line in source.split("\n"))


def evil(function: Any) -> Any:
    for text in EVIL:
        function = example(text=text)(function)
    return function


def assert_says_the_same(experiment: Experiment, text: str) -> None:
    harmless = script(parts(experiment, str))
    hostile = script(parts(experiment, lambda said: said + text))
    assert statements(hostile) == statements(harmless)
    assert hostile.count(f"\n{header.BEGIN}\n") == hostile.count(f"\n{header.END}\n") == 1
    assert len(comments(hostile)) >= len(comments(harmless))
    assert is_shown_as_it_is(hostile)


@example(text="".join(EVIL))
@settings(max_examples=5, deadline=None)
@given(text=st.text(max_size=40))
def test_a_script_has_the_same_statements_whatever_the_texts_say(
    experiments: Mapping[str, Experiment], text: str
) -> None:
    assert_says_the_same(experiments["gears"], text)


@pytest.mark.slow
@evil
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_every_script_has_the_same_statements_whatever_the_texts_say(
    experiments: Mapping[str, Experiment], text: str
) -> None:
    for experiment in experiments.values():
        assert_says_the_same(experiment, text)


@evil
@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(max_size=40))
def test_the_recipe_in_the_header_comes_back_whatever_it_says(text: str) -> None:
    data = {"model": {"name": text, "list": [text, f"a {text}"], f"key {text}": 1}}
    lines = header.written(data)
    assert all(line.startswith("#") and line.isprintable() for line in lines)
    source = "\n".join(["import torch", *lines, "y = 1"])
    if text.isprintable():
        assert header.read(source) == data
    else:  # a recipe that would act on what shows it is not read
        with suppress(ConfigError):
            assert header.read(source) == data


@evil
@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(max_size=40))
@example(text="function")  # what a parameter of our own is called
def test_what_is_no_name_is_never_written_where_names_stand(text: str) -> None:
    for make in (python_text.name, python_text.dotted, lambda t: python_text.call("f", **{t: True})):
        with suppress(ConfigError):
            shown = make(text)
            assert all(part.isidentifier() for part in text.split(".")), shown


@pytest.mark.parametrize("level", ["DEBUG)\nimport os  #", "a.b", "lambda: 0", "None"])
def test_a_name_of_a_log_that_is_none_is_refused(experiments: Mapping[str, Experiment], level: str) -> None:
    experiment = experiments["sink"]
    logs = experiment.logs
    object.__setattr__(logs, "artifacts", (*logs.artifacts, level))
    with pytest.raises(ConfigError, match="is no name in Python"):
        script(parts(evolve(experiment), str))


def test_the_label_of_a_pass_stands_in_a_comment_in_a_docstring_and_in_a_text_and_says_nothing() -> None:
    """What the issue saw: a label with quotes and line ends was written as it was."""
    experiment = api.checked(EXPERIMENTS["gears"]).experiment
    label = 'cse"""\nimport os\nos.system("true")\n"""'
    graph = FrozenGraph(fingerprint="0" * 64, nodes=1, edits={label: ()})
    source = script(Parts(experiment=experiment, recipe={}, graphs={"pre": (graph,)}))
    assert "import os\n" not in source
    assert "os" not in {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert '    # cse""" import os os.system("true") """: nothing to do\n' in source
