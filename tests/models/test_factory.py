"""What a factory takes is read in its file, and says the same as the function itself once it is imported."""

from __future__ import annotations

import sys
from inspect import Parameter, Signature
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.models.inputs import shown_signature
from npucompose.models.python import CodeDefault, Declared, live, read

NAMES = ("d", "depth", "width", "bias")
DEFAULTS = (Parameter.empty, 64, -1, 1.5, "relu", None, True, (1, 2), [3])


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    names = draw(st.permutations(NAMES))
    cuts = sorted(draw(st.lists(st.integers(0, len(names)), min_size=2, max_size=2)))
    kinds = [
        Parameter.POSITIONAL_ONLY if at < cuts[0] else
        Parameter.POSITIONAL_OR_KEYWORD if at < cuts[1] else Parameter.KEYWORD_ONLY
        for at in range(len(names))
    ]  # fmt: skip
    made: list[Parameter] = []
    must_have = False
    for name, kind in zip(names, kinds, strict=True):
        default = draw(st.sampled_from(DEFAULTS[1:] if must_have and kind is not Parameter.KEYWORD_ONLY else DEFAULTS))
        must_have = must_have or default is not Parameter.empty
        made.append(Parameter(name, kind, default=default))
    if draw(st.booleans()):
        made.append(Parameter("rest", Parameter.VAR_KEYWORD))
    return Signature(made)


@settings(max_examples=60, deadline=None)
@given(signatures(), st.booleans())
def test_what_is_read_in_the_file_is_what_python_says_of_the_function(
    tmp_path_factory: pytest.TempPathFactory, signature: Signature, in_a_class: bool
) -> None:
    text = f"def make{signature}:\n    pass\n"
    if in_a_class:
        text = f"class make:\n    def __init__(self, {str(signature)[1:]}:\n        pass\n"
    file = tmp_path_factory.mktemp("read") / "net.py"
    file.write_text(text)
    namespace: dict[str, object] = {}
    exec(text, namespace)
    found, known = read(str(file), "make"), live(namespace["make"])  # type: ignore[arg-type]
    assert found is not None
    assert known is not None
    assert found.signature == known.signature
    assert found.place.endswith(f"net.py:{2 if in_a_class else 1}")


@pytest.mark.parametrize(
    "text",
    [
        "import functools\n@functools.cache\ndef make(d): pass",
        "def make(d): pass\nmake = 3",
        "def make(d): pass\nfor make in (): pass",
        "def make(d): pass\ndef other(): global make; make = None",
        "from elsewhere import make",
        "make = lambda d: d",
        "class make(dict): pass",
        "class make(metaclass=type):\n    def __init__(self, d): pass",
        "class make:\n    def __new__(cls, d): pass\n    def __init__(self, d): pass",
        "class make:\n    @staticmethod\n    def __init__(d): pass",
        "class make:\n    def __init__(): pass",
        "async def make(d): pass",
        "if True:\n    def make(d): pass",
        "def make(d: pass",
        "",
    ],
)
def test_a_text_that_does_not_decide_it_is_left_to_the_function_itself(tmp_path: Path, text: str) -> None:
    (tmp_path / "net.py").write_text(text)
    assert read(str(tmp_path / "net.py"), "make") is None


def test_nothing_of_the_file_is_run(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("raise SystemExit(3)\ndef make(d=print('ran'), dtype=torch.float32): pass\n")
    found = read(str(file), "make")
    assert found is not None
    assert str(found).startswith("(d=print('ran'), dtype=torch.float32), ")
    assert found.defaults() == {}  # neither is a plain value


def test_parameters_of_every_kind_are_read(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("def make(a, b=1, /, c=2, *rest, d, e=3, **more): pass")
    found = read(str(file), "make")
    assert found is not None
    assert str(found).startswith("(a, b=1, /, c=2, *rest, d, e=3, **more), ")
    assert found.defaults() == {"b": 1, "c": 2, "e": 3}


def test_plain_defaults_are_shown_and_the_seed_is_not_one(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("def make(d=64, bias=True, act='relu', eps=1e-5, pad=None, sizes=(1, 2), seed=0, **more): pass")
    found = read(str(file), "make")
    assert found is not None
    assert found.defaults() == {"d": 64, "bias": True, "act": "relu", "eps": 1e-5, "pad": None}


def test_problems_name_what_is_missing_and_what_is_not_there() -> None:
    declared = Declared(Signature([Parameter("width", Parameter.POSITIONAL_OR_KEYWORD)]), "net.py:1")
    assert declared.problems({"width": 3}) == []
    assert declared.problems({"widht": 3}) == [
        "it has no parameter 'widht' (did you mean 'width'?)",
        "'width' has no default and is missing",
    ]


def test_a_seed_is_given_where_the_factory_has_one() -> None:
    declared = Declared(Signature([Parameter("seed", Parameter.POSITIONAL_OR_KEYWORD)]), "net.py:1")
    assert declared.problems({}) == []


def test_a_function_without_a_file_has_no_line() -> None:
    namespace: dict[str, object] = {}
    exec(dedent("def make(d): pass"), namespace)
    found = live(namespace["make"])  # type: ignore[arg-type]
    assert found is not None
    assert found.place == "line not known"
    assert live(sys.modules[__name__]) is None  # type: ignore[arg-type]


def test_what_is_no_plain_value_is_shown_as_it_is_written() -> None:
    shown = shown_signature(Signature([Parameter("d", Parameter.KEYWORD_ONLY, default=CodeDefault("torch.float32"))]))
    assert shown == "(*, d=torch.float32)"
