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
from npucompose.vendor.inductor import DECLARED, OURS, OWN, InductorOptions, options, why_not
from npucompose.vendor.inductor_source import InductorOption, installed, read

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


MORE = """
# Of nothing.

a = -1
b: Optional[bool] = None  # at the end
# First
# # second
c: "int" = 3
d = e = 5
f.g = 1
h: int
X_TESTING_Y = 1
i = 1 + 2
j = not a
k = int(os.environ.get("K", "1"))
l = os.getenv("L")
m = "a" if a else None
n = is_fbcode()
o = a or "x"
p: Literal[True] = True
q = [1]
r: dict[str, int] | str = {}
s = "a".lower()
t = 2.5
u = bool(a)
v: Union[int, str] = 1
# of w
w: None = None

class _hidden:
    x = 1

class one(unknown.Base):
    # one's own
    y = 1
    z: int = 2

class two(one, _hidden):
    y = "b"
"""


def test_every_way_to_declare_an_option_is_read():
    found = read(MORE)
    assert {path: " ".join(sorted(option.kinds)) for path, option in found.items()} == {
        "a": "int", "b": "bool null", "c": "other", "d": "int", "i": "int", "j": "bool", "k": "int", "l": "null str",
        "m": "null str", "n": "bool", "o": "other str", "p": "bool", "q": "other", "r": "other str", "s": "str",
        "t": "float int", "u": "bool", "v": "other", "w": "null", "one.y": "int", "one.z": "int", "two.y": "str",
        "two.z": "int", "two.x": "int",
    }  # fmt: skip
    docs = {path: option.doc for path, option in found.items() if option.doc}
    assert docs == {"c": "First second", "w": "of w", "one.y": "one's own"}
    assert (found["p"].choices, found["b"].choices) == ((True,), ())
    assert (found["m"].default, found["k"].default) == ("'a' if a else None", "int(os.environ.get('K', '1'))")
    assert found["two.z"].path == "two.z"
    assert read("# first line\na = 1\n# last line")["a"].doc == "first line"
    assert read('a: Literal["x", -1] = "x"')["a"].choices == ("x",)
    assert list(read("a.b: int = 1\na.c = 1\nd: int = 1")) == ["d"], "what is set of something else is no option"


def made(path: str, *kinds: str, choices: Any = (), doc: str = "doc") -> InductorOption:
    return InductorOption(path=path, kinds=frozenset(kinds), choices=choices, default="1", doc=doc)


HAS = [
    made("freezing", "bool"), made("max_autotune", "bool"), made("size", "int", "null"), made("share", "int", "float"),
    made("how", "str", choices=("a", "b", "both")), made("name", "str"), made("remote_cache", "bool"),
    made("hook", "other"), made("trace.enabled", "bool"), made("cpp.simdlen", "int", "null"), made("cpp.deep", "bool"),
    made("max_autotune_gemm_backends", "str"),
]  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """A torch with few options."""
    from npucompose.vendor import inductor

    monkeypatch.setattr(inductor, "installed", lambda: {option.path: option for option in HAS})
    inductor._groups.cache_clear()  # private: as of another torch
    yield
    inductor._groups.cache_clear()  # private: as of another torch


def problems(tree: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        InductorOptions.of_tree(tree)
    return refused.value.problems


@pytest.mark.usefixtures("small")
def test_a_small_torch_is_asked_for_what_it_has():
    asked = InductorOptions.of_tree({
        "size": 3, "share": 2, "how": "b", "cpp": {"simdlen": 8}, "max_autotune_gemm_backends": "CPP,ATEN",
        "coordinate_descent_tuning": None, "frozen_weights": "error", "freezing": True, "max_autotune": None,
    })  # fmt: skip
    assert asked.changed() == {
        "size": 3, "share": 2, "how": "b", "cpp.simdlen": 8, "max_autotune_gemm_backends": "CPP,ATEN",
        "frozen_weights": "error", "max_autotune": None,
    }  # fmt: skip
    assert asked.changed() is not asked.values
    assert (asked.frozen_weights, InductorOptions().frozen_weights) == ("error", "refreeze")
    assert "frozen_weights" not in asked.settings()
    assert "max_autotune" not in asked.settings()
    assert InductorOptions.of_tree(asked.as_tree()) == asked
    assert InductorOptions.of_tree({"frozen_weights": "refreeze"}) == InductorOptions()
    assert InductorOptions.of_tree({"frozen_weights": None}) == InductorOptions()
    wrapper = InductorOptions.of_tree({"replay": "wrapper"})
    assert (wrapper.replays, InductorOptions().replays, "replay" in wrapper.settings()) == (False, True, False)
    assert not InductorOptions(values={"cpp_wrapper": True}).replays


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            {"coordinate_descent_tuning": True},
            "unknown option 'coordinate_descent_tuning' @ inductor: the Inductor of torch",
        ),
        ({"deep": True}, "Did you mean 'inductor.cpp.deep'? Choices: freezing, max_autotune, size, "),
        ({"cpp": {"simdlne": 1}}, "@ inductor.cpp: the Inductor of torch "),
        (
            {"cpp": {"simdlne": 1}},
            "none of that name. Did you mean 'simdlen'? Choices: simdlen, deep. `npucompose list opt",
        ),
        ({"cpp": {"cpp": {}}}, "unknown option 'cpp' @ inductor.cpp"),
        ({"size": 1.5}, "inductor.size takes integer | null; given 1.5 (float)."),
        ({"share": "a"}, "inductor.share takes number | null; given a (str)."),
        ({"how": "bth"}, "inductor.how takes a | b | both | null; given bth (str). Did you mean 'both'?"),
        ({"name": "x"}, "inductor.name cannot be set in YAML: it takes a name of a program, a folder or a flag."),
        ({"remote_cache": True}, "it reaches out to other machines."),
        ({"hook": 1}, "inductor.hook cannot be set in YAML: it takes Python objects."),
        ({"trace": {"enabled": True}}, "inductor.trace.enabled cannot be set in YAML: it writes outside"),
        ({"freezing": [1]}, "inductor.freezing takes true | false | null; given [1] (list)."),
        ({"max_autotune_gemm_backends": "CPP,"}, "takes text like [A-Z]+(,[A-Z]+)* | null; given CPP, (str)."),
        ({"max_autotune_gemm_backends": 3}, "takes text like"),
        (
            {"frozen_weights": "eror"},
            "inductor.frozen_weights takes refreeze | error; given eror. Did you mean 'error'?",
        ),
        (3, "inductor takes a mapping of options; given 3."),
        ({"cpp": None}, "inductor.cpp takes a mapping of options; given null."),
    ],
)
def test_a_small_torch_refuses_what_it_has_not(tree: Any, words: str):
    (problem,) = problems(tree)
    assert words in problem


@pytest.mark.usefixtures("small")
def test_rows_are_those_below_what_was_asked():
    def names(under: str) -> list[str]:
        return [row["option"].removeprefix("inductor.") for row in options(under)]

    assert names("inductor") == ["frozen_weights", "replay", *(option.path for option in HAS)]
    assert names("inductor.cpp") == ["cpp.simdlen", "cpp.deep"]
    assert names("inductor.cpp.deep") == ["cpp.deep"]
    assert names("inductor.frozen_weights") == ["frozen_weights"]
    for under, words in (("inductor.cp", "unknown option 'cp' @ inductor:"), ("inductor.cpp.x", "'x' @ inductor.cpp:")):
        with pytest.raises(ConfigError, match=words):
            options(under)
    rows = {row["option"].removeprefix("inductor."): row for row in options("inductor")}
    assert rows["frozen_weights"] == {
        "option": "inductor.frozen_weights", "takes": "refreeze | error", "default": "refreeze", "declared": True,
        "settable": True, "doc": OWN["frozen_weights"].doc,
    }  # fmt: skip
    assert (rows["freezing"]["default"], rows["size"]["default"]) == (True, "1")
    assert (rows["freezing"]["declared"], rows["size"]["declared"]) == (True, False)
    assert (rows["hook"]["settable"], rows["size"]["settable"]) == (False, True)
    assert (rows["size"]["doc"], rows["hook"]["doc"]) == ("doc", "doc (not set here: it takes Python objects)")
    assert rows["freezing"]["doc"] == DECLARED["freezing"]
    assert [rows[name]["takes"] for name in ("size", "share", "how", "hook", "freezing")] == [
        "integer | null", "number | null", "a | b | both | null", "a Python object | null", "true | false | null",
    ]  # fmt: skip


def test_more_choices_than_a_message_holds_are_counted(monkeypatch: pytest.MonkeyPatch):
    from npucompose.vendor import inductor

    for count, words in ((38, "Choices: o0, "), (39, "It has 41 options: `npucompose list options --under inductor`")):
        found = {f"o{n}": made(f"o{n}", "int") for n in range(count)}
        monkeypatch.setattr(inductor, "installed", lambda found=found: found)
        inductor._groups.cache_clear()  # private: as of another torch
        assert words in problems({"zzz": 1})[0]
    inductor._groups.cache_clear()  # private: as of another torch


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
    code = "import sys, npucompose.vendor.inductor as i; i.options(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_declared_option_can_be_set_in_the_installed_torch():
    assert [path for path in DECLARED if path not in installed() or why_not(path)] == []


def test_the_base_tree_is_what_the_table_prints_and_asks_for_nothing():
    import yaml

    assert yaml.safe_load((CONF / "inductor" / "default.yaml").read_text(encoding="utf-8")) == {}
    assert InductorOptions.base_tree() == yaml.safe_load(yaml_of("inductor"))
    assert InductorOptions.of_tree(InductorOptions.base_tree()) == InductorOptions()


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
