"""Inductor's options: read from torch's source as text, and every wrong one refused with what is possible."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.report.listing import yaml_of
from npucompose.schema.inductor import DECLARED, OURS, InductorOptions, options, why_not
from npucompose.schema.inductor_source import InductorOption, installed, read

CONF = Path(__file__).parents[2] / "conf"
KINDS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "NoneType": "null"}

SOURCE = '''
import os

# Fold constants
# and pack.
freezing: bool = os.environ.get("F", "0") == "1"
backends = os.environ.get("B", "A,B").upper()
how: Literal["a", "b"] | None = None
_private = 1
hook: Callable[[int], int] | None = None

class cutlass:
    """A group."""
    level = 3

class cuda(cutlass):
    share: float = 0.5
'''


def test_the_source_gives_names_kinds_choices_and_comments():
    found = read(SOURCE)
    assert list(found) == ["freezing", "backends", "how", "hook", "cutlass.level", "cuda.level", "cuda.share"]
    assert found["freezing"].doc == "Fold constants and pack."
    assert {path: sorted(option.kinds) for path, option in found.items()} == {
        "freezing": ["bool"],
        "backends": ["str"],
        "how": ["null", "str"],
        "hook": ["null", "other"],
        "cutlass.level": ["int"],
        "cuda.level": ["int"],
        "cuda.share": ["float", "int"],
    }
    assert found["how"].choices == ("a", "b")


def test_what_is_read_is_what_torch_has():
    """Every name exists in torch's live module and its value there is of a kind that was read; none is missing."""
    from torch._inductor import config

    for path, option in installed().items():
        value = functools.reduce(getattr, path.split("."), config)
        kind = KINDS.get(type(value).__name__, "other")
        assert "other" in option.kinds or kind in option.kinds, (path, option.kinds, value)
    live = {path for path in config._config if not any(part.startswith("_") for part in path.split("."))}
    assert {path for path in live - set(installed()) if "TESTING" not in path} == {"TYPE_CHECKING", "global_cache_dir"}


def test_reading_the_options_loads_no_torch():
    code = "import sys, npucompose.schema.inductor as i; i.options(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_declared_option_can_be_set_in_the_installed_torch():
    assert [path for path in DECLARED if path not in installed() or why_not(path)] == []


def test_the_shipped_yaml_is_what_the_table_generates_and_asks_for_nothing():
    import yaml

    text = (CONF / "inductor" / "default.yaml").read_text(encoding="utf-8")
    assert text == yaml_of("inductor")
    assert InductorOptions.of_tree(yaml.safe_load(text)) == InductorOptions()


def test_the_mode_s_own_settings_hold_until_something_else_is_said():
    assert InductorOptions().settings() == OURS
    asked = InductorOptions.of_tree({"freezing": False, "cpp": {"simdlen": 256, "threads": None}})
    assert asked.settings() == {"max_autotune": True, "freezing": False, "cpp.simdlen": 256}
    assert asked.changed() == {"freezing": False, "cpp.simdlen": 256}


def test_null_leaves_an_option_to_torch():
    assert InductorOptions.of_tree({"freezing": None}).settings() == {"max_autotune": True}
    assert InductorOptions.of_tree({"cpp": {"simdlen": None}}) == InductorOptions()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"frezing": True}, "unknown option 'frezing' @ inductor: the Inductor of torch"),
        ({"frezing": True}, "Did you mean 'freezing'?"),
        ({"simdlen": 256}, "Did you mean 'inductor.cpp.simdlen'?"),
        ({"cpp": {"simdle": 256}}, "Choices: threads, no_redundant_loops,"),
        ({"cpp": 3}, "inductor.cpp takes a mapping of options; given 3."),
        ({"max_autotune": 1}, "inductor.max_autotune takes true | false | null; given 1 (int)."),
        ({"cpp": {"simdlen": True}}, "inductor.cpp.simdlen takes integer | null; given true (bool)."),
        ({"max_autotune_gemm_search_space": "exhaustive"}, "takes DEFAULT | EXHAUSTIVE | null; given exhaustive"),
        ({"max_autotune_gemm_backends": "CPP; rm"}, "takes text like [A-Z]+(,[A-Z]+)* | null; given CPP; rm (str)."),
        ({"cpp": {"cxx": "/tmp/evil"}}, "inductor.cpp.cxx cannot be set in YAML: it takes Python objects."),
        pytest.param(
            {"cpp": {"march": "native -fplugin=x"}},
            "cannot be set in YAML: it takes a name of a program, a folder or",
            marks=pytest.mark.skipif("cpp.march" not in installed(), reason="this torch has no such option"),
        ),
        ({"post_grad_custom_pre_pass": "os:system"}, "cannot be set in YAML: it takes Python objects."),
        ({"trace": {"enabled": True}}, "cannot be set in YAML: it writes outside the run's folder"),
        ({"freezing_discard_parameters": True}, "it takes the weights from the model that results are compared with"),
        ({"fx_graph_remote_cache": True}, "cannot be set in YAML: it reaches out to other machines."),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_possible(tree: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as refused:
        InductorOptions.of_tree(tree)
    assert words in str(refused.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as refused:
        InductorOptions.of_tree({"frezing": True, "cpp": {"threads": "two", "cxx": "x"}, "epilogue_fusion": 2})
    assert len(refused.value.problems) == 4


def settable() -> list[InductorOption]:
    return [option for path, option in installed().items() if why_not(path) is None]


@given(st.data())
def test_what_is_asked_for_is_read_back(data: st.DataObject):
    values: dict[str, Any] = {}
    for option in data.draw(st.lists(st.sampled_from(settable()), max_size=5, unique_by=lambda o: o.path)):
        texts = list(option.choices) or ["CPP"] * (option.path == "max_autotune_gemm_backends")
        kinds = {"bool": st.booleans(), "int": st.integers(), "float": st.floats(allow_nan=False)}
        ways = [way for kind, way in kinds.items() if kind in option.kinds and not option.choices]
        ways += [st.sampled_from(texts)] if texts else []
        if ways:
            values[option.path] = data.draw(st.one_of(ways))
    asked = InductorOptions(values=values)
    assert InductorOptions.of_tree(asked.as_tree()) == asked
    assert asked.settings() == {**OURS, **values}


def test_the_list_says_what_can_be_set_here():
    rows = {row["option"]: row for row in options("inductor.cpp")}
    assert rows["inductor.cpp.simdlen"]["settable"]
    assert not rows["inductor.cpp.cxx"]["settable"]
    assert all(option.startswith("inductor.cpp.") for option in rows)
    with pytest.raises(ConfigError, match="unknown option 'cppp' @ inductor"):
        options("inductor.cppp")
