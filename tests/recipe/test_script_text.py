"""The text of a script, from parts made by hand; Python as text; the block in its header."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.recipe import header
from npucompose.recipe.ejected import InputMark, Parts, text
from npucompose.recipe.freeze import FrozenGraph
from npucompose.recipe.python_text import (
    WIDTH,
    Code,
    call,
    comment,
    docstring,
    dotted,
    literal,
    name,
    one_line,
    statement,
)
from npucompose.schema.experiment import CompileKeywords, Experiment, Logs, Mode, Shapes
from npucompose.vendor.compiler import CompilerOptions
from npucompose.version import __version__


def graph(digit: str, *edits: str, label: str = "stream_plan") -> FrozenGraph:
    return FrozenGraph(fingerprint=digit * 64, nodes=int(digit), edits={"cse": (), label: edits})


MOVE = 'edit.move("mm", after="x")'
ENTER = 'edit.insert("enter", torch.ops.air.scope_enter.default, (["_user_stream_label"], ["1"]), after="x")'
RECORD = 'edit.insert("record", torch.ops.air.record.default, after="x")'
POOL = "npugraph_ex.use_graph_pool"
PARTS: dict[str, Parts] = {
    "npugraph_ex without options": Parts(experiment=Experiment(mode=Mode(name="npugraph_ex")), recipe={}),
    "npugraph_ex with streams": Parts(
        experiment=Experiment(
            mode=Mode(name="npugraph_ex"),
            compiler=CompilerOptions(values={POOL: "shared"}),
            shapes=Shapes(dynamic=None),
        ),
        recipe={"mode": {"name": "npugraph_ex"}, "model": {"name": "ä\u202e"}},
        graphs={"pre": (graph("3", ENTER, RECORD), graph("4", MOVE))},
    ),
    "npugraph_ex with scopes alone": Parts(
        experiment=Experiment(mode=Mode(name="npugraph_ex")), recipe={}, graphs={"post": (graph("5", ENTER),)}
    ),
    "npugraph_ex as a tree": Parts(
        experiment=Experiment(
            mode=Mode(name="npugraph_ex"), compiler=CompilerOptions(values={"npugraph_ex.clone_input": False})
        ),
        recipe={},
        torch_npu="2.8.0",
        graphs={"pre": (graph("6", RECORD),)},
    ),
    "max-autotune with marks": Parts(
        experiment=Experiment(
            mode=Mode(name="max-autotune"),
            shapes=Shapes(name="dynamic", dynamic=True),
            compile=CompileKeywords(fullgraph=False),
            logs=Logs(artifacts=("graph_code", "aot_graphs"), levels={"torchair": "DEBUG", "x": "ERROR"}),
            compiler=CompilerOptions(
                values={
                    "debug.data_dump.filter": ("mm",),
                    "ge_config.oo_level": "O1",
                    "aclgraph_config.use_custom_pool": "one",
                }
            ),
        ),
        recipe={},
        marks=(
            InputMark(argument="x"),
            InputMark(argument="state", nested=True),
            InputMark(argument="y", dims=(0, 1)),
            InputMark(argument="both", dims=(2,), nested=True),
        ),
        gears={"x": {0: (32, 64), 1: (1, 2)}},
    ),
    "reduce-overhead at both stages": Parts(
        experiment=Experiment(mode=Mode(name="reduce-overhead")),
        recipe={"mode": {"name": "reduce-overhead"}},
        torch_npu="2.7.1",
        graphs={"pre": (graph("7", MOVE),), "post": (graph("8", RECORD), graph("9", label="other"))},
    ),
    "gears alone": Parts(experiment=Experiment(mode=Mode(name="max-autotune")), recipe={}, gears={"x": {0: (32, 64)}}),
}


def test_scripts_are_written_like_this(golden: Any) -> None:
    shown = []
    for about, parts in PARTS.items():
        script = text(parts).replace(f"npucompose {__version__}", "npucompose VERSION")
        carried = script.find("def graph_fingerprint")
        end = script.find("\n\n\n", script.find("def apply_frozen"))
        shown.append(f"## {about}\n{script if carried < 0 else script[:carried] + '…' + script[end:]}")
    golden("recipe/scripts.txt", "\n\n".join(shown))


LONG = "a" * (WIDTH - 5)


def test_a_comment_is_one_line_of_what_can_be_shown() -> None:
    assert comment("one\nline \u202e") == "# one line \\u202e"
    assert comment("") == "#"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (call("f", LONG[:-1], b=[1, 2]), f'f(\n    "{LONG[:-1]}",\n    b=[1, 2],\n)'),
        (call("f", LONG), f'f("{LONG}")'),
        (call("f", LONG + "a"), f'f(\n    "{LONG}a",\n)'),
        (dotted("a" * (WIDTH + 1)), "a" * (WIDTH + 1)),
    ],
)
def test_a_call_is_broken_where_it_is_longer_than_the_width(line: str, wanted: str) -> None:
    assert statement(line) == wanted


def test_a_call_is_broken_sooner_where_it_is_indented() -> None:
    assert statement(call("f", LONG), 1) == f'f(\n     "{LONG}",\n )'
    assert statement(call("f", LONG[:-1]), 1) == f'f("{LONG[:-1]}")'


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("plain", '"plain"'),
        ("it's", '"it\'s"'),
        ('say "it"', "'say \"it\"'"),
        ("back\\slash", r"'back\\slash'"),
        ("line\nend", r"'line\nend'"),
        ("", '""'),
        ({"a": 1, "b": [2.5, -3, None, True]}, '{"a": 1, "b": [2.5, -3, None, True]}'),
    ],
)
def test_texts_have_double_quotes_where_they_can(value: Any, wanted: str) -> None:
    assert literal(value) == wanted
    assert eval(wanted) == value


@pytest.mark.parametrize(
    ("doc", "wanted"),
    [
        ("plain", '"""plain"""'),
        ("two\nlines", '"""two\nlines"""'),
        ('inside "it" stays', '"""inside "it" stays"""'),
        ('"begins', "'\"begins'"),
        ('ends"', "'ends\"'"),
        ("back\\slash", r"'back\\slash'"),
        ('a """ b', '\'a """ b\''),
        ("bell\x07", r"'bell\x07'"),
        ("", '""""""'),
    ],
)
def test_a_docstring_stands_as_it_is_where_it_can(doc: str, wanted: str) -> None:
    assert docstring(doc) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (-1, "-1"),
        (-0.0, "-0.0"),
        (0.0, "0.0"),
        (float("inf"), 'float("inf")'),
        (float("-inf"), 'float("-inf")'),
        (True, "True"),
        (False, "False"),
        (-(2**70), f"-{2**70}"),
        ((), "()"),
        ((1,), "(1,)"),
        ([[-1]], "[[-1]]"),
        ({"a": (None,), 2: []}, '{"a": (None,), 2: []}'),
        (Code("x"), "x"),
        ([Code("x[0]"), {"a": Code("y")}], '[x[0], {"a": y}]'),
    ],
)
def test_values_are_written_as_literals(value: Any, wanted: str) -> None:
    assert literal(value) == wanted


def test_what_has_no_literal_or_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"it would have to say \{1\}"):
        literal({1})
    for no_name in ("for", "a b", "", "1a"):
        with pytest.raises(ConfigError, match=rf"'{no_name}' is no name in Python"):
            name(no_name)
    assert name("ok") == "ok"
    assert one_line("two\nlines \u202e") == "two lines " + one_line("\u202e")


# The header.

RECIPE = {"mode": {"name": "npugraph_ex"}, "compiler": {"npugraph_ex": {"clone_input": False}}, "seed": 3}


def test_a_recipe_is_written_and_read_back() -> None:
    lines = header.written(RECIPE)
    assert lines[0] == header.BEGIN
    assert lines[-1] == header.END
    assert lines[1:-1] == [
        "#   mode:",
        "#     name: npugraph_ex",
        "#   compiler:",
        "#     npugraph_ex:",
        "#       clone_input: false",
        "#   seed: 3",
    ]
    source = "\n".join(["import torch", *(f"{line}  " for line in lines), "#   seed: 4", header.END, "x = 1"])
    assert header.read(source) == RECIPE
    assert header.read("import torch\n") is None


def test_letters_are_written_as_they_are_and_what_does_not_show_as_escapes() -> None:
    assert header.written({"model": {"name": "größe"}})[2] == "#     name: größe"
    assert header.written({"model": {"name": "größe\x7f"}})[2] == '#     name: "größe\\x7F"'
    assert header.written({"model": {"name": "größe\u2028"}})[2].isascii()
    long = "word " * 30
    assert len(header.written({"model": {"name": long}})) > 4


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ([header.BEGIN, "#   mode: {}"], r"line 2: a recipe begins here and '# end of recipe' does not follow\."),
        ([header.BEGIN, "#   - 1", header.END], "line 2: the recipe must be a mapping of mode, shapes, tiling"),
        (
            [header.BEGIN, "#   mod: 1", "#   x: 2", header.END],
            "line 2: unknown section mod, x in the recipe.",
        ),
        ([header.BEGIN, "#   mode: [", header.END], "line 2: the recipe's YAML:2 is not YAML"),
    ],
)
def test_a_block_that_is_no_recipe_is_refused_with_its_line(block: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        header.read("\n".join([header.END, *block]))


def test_the_recipe_of_a_tree_holds_what_a_script_is_about() -> None:
    tree = {
        "mode": {"name": "max-autotune"},
        "benchmark": {"iterations": 3},
        "passes": {},
        "logs": None,
        "adapt": {"name": "none", "rules": []},
        "compiler": {"ge_config": {"oo_level": "O3"}},
        "seed": 0,
        "strict": "on",
    }
    assert header.from_tree(tree) == {"mode": {"name": "max-autotune"}, "seed": 0, "strict": "on"}
    rules = {"name": "mine", "rules": [{"from": "a"}]}
    changed = header.from_tree({**tree, "adapt": rules, "compiler": {"ge_config": {"oo_level": "O1"}}})
    assert changed["adapt"] == rules
    assert changed["compiler"] == {"ge_config": {"oo_level": "O1"}}
    assert "compiler" not in header.from_tree({"mode": {}, "compiler": None})
