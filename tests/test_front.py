"""The modules that everything else stands on: errors, the machine, private folders, text, and the command line."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import pickle
import platform
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npucompose import api, cli, completion, errors, garbage, machine, plain_yaml, private
from npucompose.arguments import ArgumentParser
from npucompose.console import _Visible, console, guarded
from npucompose.errors import ConfigError, MissingExtra, NpuComposeError, PlanError, RejectedError, SignatureError
from npucompose.plain_yaml import Limits, plain_data
from npucompose.schema.experiment import Shapes
from npucompose.visible import visible

# Errors.


@pytest.mark.parametrize(
    "error",
    [
        PlanError("race", "mm and add race"),
        MissingExtra("a model", "transformers", "transformers"),
        RejectedError("one", "two"),
        ConfigError("one", "two"),
    ],
)
def test_an_error_comes_through_pickle_with_all_that_it_says(error: Any) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(error, type(back))
    assert (str(back), back.problems) == (str(error), error.problems)
    assert getattr(back, "code", None) == getattr(error, "code", None)


def test_errors_say_what_they_are_made_of() -> None:
    assert str(PlanError("race", "they race")) == "they race [race]"
    assert str(ConfigError("one", "two")) == "one\ntwo"
    assert str(RejectedError("one", "two")) == "one two"
    missing = MissingExtra("target=x", "torch_npu", "npu")
    assert str(missing) == "target=x needs the package 'torch_npu': pip install 'npucompose[npu]'."
    assert (missing.package, missing.extra) == ("torch_npu", "npu")
    assert (NpuComposeError.exit_status, ConfigError.exit_status, PlanError.exit_status) == (3, 2, 2)
    wrong = SignatureError("no", index=3, why="is sparse")
    assert (str(wrong), wrong.index, wrong.why) == ("no", 3, "is sparse")
    assert (SignatureError("no").index, SignatureError("no").why) == (-1, "")


def test_what_is_near_is_offered() -> None:
    assert errors.did_you_mean("benhc", ["bench", "check"]) == "Did you mean 'bench'? "
    assert errors.did_you_mean("xyz", ["bench", "check"]) == ""
    assert errors.did_you_mean("abc", ["abxyz"]) == ""
    assert errors.unknown("pass", "ces", ["cse", "x"]) == "unknown pass 'ces'. Did you mean 'cse'? Choices: cse, x."
    assert errors.unknown("pass", "q", ["cse"], "passes") == "unknown pass 'q' @ passes. Choices: cse."


def test_the_last_line_of_a_traceback_is_the_models() -> None:
    trace = 'File "/a/b.py", line 1, in f\n    first()\nFile "/a/m.py", line 3, in forward\n    return x  \n'
    assert errors.traced_line(trace) == "m.py:3 in forward: return x"
    assert errors.traced_line("nothing") is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied."),
        (OSError(errno.EACCES, "Permission denied", b"/b"), "/b: Permission denied."),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "a path: File name too long."),
        (OSError(errno.ENAMETOOLONG, "too long", "x" * 300), "x" * 200 + ": too long."),
        (OSError(errno.ENOENT, "gone", "/no such/place/file"), "/no such/place is gone: was it deleted meanwhile?"),
        (OSError(errno.ENOENT, "gone", "/tmp/no such file"), None),
        (OSError(errno.ENOENT, "gone"), None),
        (OSError(errno.ENOSPC, "full", "/a"), None),
    ],
)
def test_what_is_wrong_with_a_path_is_a_mistake_of_who_gave_it(error: OSError, words: str | None) -> None:
    told = errors.path_error(error)
    if words is None:
        assert told is None
        return
    assert told is not None
    assert str(told).startswith(words)
    assert told.__cause__ is error


# What is shown.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31m", "\\x1b[31m"),
        ("tab\t", "tab\\t"),
        ("\x7f\r", "\\x7f\\r"),
        ("größe\n\u202e", "größe\n\\u202e"),
    ],
)
def test_text_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


class Terminal(io.StringIO):
    flushed = 0
    encoding = "utf-8"  # type: ignore[assignment]
    errors = "strict"  # type: ignore[assignment]
    buffer = "the buffer"  # type: ignore[assignment]

    def flush(self) -> None:
        self.flushed += 1

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 42


def test_a_guarded_stream_is_the_stream_but_for_what_it_writes() -> None:
    below = Terminal()
    inner = _Visible(below)
    stream: Any = _Visible(inner)  # type: ignore[arg-type]
    assert stream.rich_proxied_file is below
    assert stream.write("a\tb\x1b") == 4
    assert below.getvalue() == "a\tb\\x1b"
    stream.flush()
    assert below.flushed == 1
    assert (stream.isatty(), stream.fileno(), stream.writable()) == (True, 42, True)
    assert (stream.encoding, stream.errors, stream.buffer) == ("utf-8", "strict", "the buffer")


def test_the_guard_is_taken_down_whatever_happens() -> None:
    before = sys.stdout, sys.stderr

    @guarded()
    def act() -> None:
        assert all(isinstance(stream, _Visible) for stream in (sys.stdout, sys.stderr))
        assert sys.stdout is not sys.stderr
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        act()
    assert (sys.stdout, sys.stderr) == before


def test_a_console_obeys_its_own_styles_alone() -> None:
    made = console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    made.print("[bold]x[/] :smile: \x1b[2J", style="red", highlight=False)
    assert made.file.getvalue() == "\x1b[31m[bold]x[/] :smile: \\x1b[2J\x1b[0m\n"  # type: ignore[attr-defined]
    assert type(console()) is type(made)


def test_nothing_is_collected_inside_and_the_collector_is_as_it_was_after() -> None:
    @garbage.kept()
    def act() -> None:
        assert not gc.isenabled()
        with garbage.kept():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("so")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="so"):
        act()
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.kept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# The machine.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name\t: Intel(R) Xeon(R) \nmodel name : other\n", "Intel(R) Xeon(R)"),
        ("Hardware : A board\n", "A board"),
        ("cpu model : MIPS\n", "MIPS"),
        ("CPU implementer\t: 0x48\nCPU part\t: 0xd01\nCPU implementer : 0x49\n", "Arm 0x48 0xd01"),
        ("nothing\n", None),
        (None, None),
    ],
)
def test_the_name_of_the_processor(text: str | None, name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert machine.cpu_model(file) == (name or platform.processor() or platform.machine())


def test_the_cores_are_those_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3} if pid == 0 else set(), raising=False)
    assert machine.cores() == {1, 3}
    assert machine.usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert machine.cores() == {0, 1, 2}
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == {0}


def test_what_is_not_installed_has_no_version() -> None:
    assert machine.installed_version("attrs") == __import__("importlib.metadata").metadata.version("attrs")
    assert machine.installed_version("no-such-package") is None


def groups(tmp_path: Path, own: str, **files: str) -> float | None:
    for path, text in files.items():
        file = tmp_path / "cgroup" / path.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    return machine.cpu_quota(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a/b\n", {"a__b__cpu_DOT_max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a__b__cpu_DOT_max": "max 100000\n", "a__cpu_DOT_max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"cpu_DOT_max": "300000 100000", "a__cpu_DOT_max": "400000 100000"}, 3.0),
        ("0::/../a\n", {"a__cpu_DOT_max": "200000 100000"}, 2.0),
        ("0::/a\n", {"a__cpu_DOT_max": "200000 0"}, None),
        ("0::/a\n", {"a__cpu_DOT_max": "200000"}, None),
        ("3:cpu,cpuacct:/a\n", {"cpu__a__cpu.cfs_quota_us": "50000", "cpu__a__cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpuset:/a\n", {"cpu__a__cpu.cfs_quota_us": "50000", "cpu__a__cpu.cfs_period_us": "100000"}, None),
        ("3:cpu:/a\n", {"cpu__a__cpu.cfs_quota_us": "-1", "cpu__a__cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_share_of_the_cores(own: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert groups(tmp_path, own, **files) == quota


def test_the_cache_lies_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NPUCOMPOSE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for system, place in (("linux", ".cache/npucompose"), ("darwin", "Library/Caches/npucompose")):
        monkeypatch.setattr(sys, "platform", system)
        assert machine.cache_dir() == tmp_path / place
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.cache_dir() == tmp_path / "AppData" / "Local" / "npucompose" / "Cache"
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert machine.cache_dir() == Path("/local/npucompose/Cache")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert machine.cache_dir() == Path("/xdg/npucompose")
    monkeypatch.setenv("NPUCOMPOSE_CACHE", "~/mine")
    assert machine.cache_dir() == tmp_path / "mine"


def test_the_compiler_is_the_one_asked_for_else_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert machine.compilers() == ("g++", "c++", "clang++")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}" if name in ("c++", "clang++") else None)
    assert machine.compiler() == "/bin/c++"
    monkeypatch.setenv("CXX", "clang++")
    assert machine.compilers() == ("clang++", "g++", "c++")
    assert machine.compiler() == "/bin/clang++"
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.compiler() is None


# Private folders.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "a" / "root"
    private.make(place / "b" / "c", place)
    return place


def test_folders_are_made_on_the_whole_way_and_closed(root: Path) -> None:
    for place in (root, root / "b", root / "b" / "c"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for place in (root, root / "b", root / "b" / "c"):
        place.chmod(0o755)
    private.make(root / "b" / "c", root)
    assert {stat.S_IMODE(place.stat().st_mode) for place in (root, root / "b", root / "b" / "c")} == {0o700}
    private.make(root, root)


def test_doubt_names_the_place_and_whether_it_can_be_closed(root: Path) -> None:
    file = root / "b" / "c" / "file"
    file.write_text("x")
    file.chmod(0o600)
    assert private.doubt(file, root) is None
    assert private.doubt_within(root, root) is None
    file.chmod(0o620)
    found = private.doubt(file, root)
    assert found == private.Doubt(f"{file} can be written by others (mode 620)", mine=True)
    assert private.doubt_within(root, root) == found
    assert private.doubt(root / "b", root) is None
    private.close(root)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (root / "b").chmod(0o702)
    assert private.doubt_within(root / "b" / "c", root) == private.Doubt(
        f"{root / 'b'} can be written by others (mode 702)", mine=True
    )
    private.close(root / "b")
    (root / "link").symlink_to(root / "b")
    assert private.doubt(root / "link" / "c", root) == private.Doubt(f"{root / 'link'} is a link", mine=True)
    private.close(root)
    assert (root / "link").is_symlink()
    (root / "link").unlink()
    root.parent.chmod(0o777)
    assert private.doubt(file, root) == private.Doubt(
        f"{root.parent} can be written by everybody (mode 777)", mine=False
    )
    root.parent.chmod(0o1777)
    assert private.doubt(file, root) is None
    root.parent.chmod(0o775)
    assert private.doubt(file, root) is None
    assert private.doubt(root / "nobody" / "there", root) is None


def test_what_is_anothers_is_not_ours_to_close(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found = private.doubt(root / "b", root)
    if root.stat().st_uid == 0:  # root's is everybody's
        assert found is None
    else:
        assert found == private.Doubt(f"{root} belongs to another user (number {root.stat().st_uid})", mine=False)


# YAML.


def test_limits_are_the_last_that_holds() -> None:
    limits = Limits(most_values=4, deepest=2, aliases=True)
    assert plain_data("[1, [2]]", "x", limits) == [1, [2]]
    for text in ("[1, 2, 3, 4]", "[1, 2, [3]]", "[&a 1, *a, *a, *a]"):
        with pytest.raises(ConfigError, match=r"x holds more than 4 values, its aliases written out\."):
            plain_data(text, "x", limits)
    with pytest.raises(ConfigError, match=r"x holds more than 4 values\."):
        plain_data("[1, 2, 3, 4]", "x", Limits(most_values=4, deepest=2, aliases=False))
    with pytest.raises(ConfigError, match="nested more than 2 deep"):
        plain_data("[[[]]]", "x", limits)
    assert plain_data("[&a [1], *a]", "x", Limits(most_values=5, deepest=2, aliases=True)) == [[1], [1]]
    with pytest.raises(ConfigError, match="more than 4 values"):
        plain_data("[&a [1], *a]", "x", limits)


WIDE = Limits(most_values=100, deepest=9, aliases=True)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[&a <<, *a]", ["<<", "<<"]),
        ("{a: &x {k: 1}, b: {<<: [*x, {k: 2, m: 3}], m: 4}}", {"a": {"k": 1}, "b": {"k": 1, "m": 4}}),
        ("{<<: {a: 1}, b: {c: 2}, d: 3}", {"a": 1, "b": {"c": 2}, "d": 3}),
        ("a: !!map {b: !!seq [1]}", {"a": {"b": [1]}}),
        ('a: "12"', {"a": "12"}),
        ("a: ''", {"a": ""}),
        ("a: !!float 1", {"a": 1.0}),
        ("-", [None]),
        ("a: 1_0", {"a": 10}),
        ("? a\n: - b", {"a": ["b"]}),
    ],
)
def test_yaml_is_read_as_it_is_meant(text: str, data: Any) -> None:
    found = plain_data(text, "x", WIDE)
    assert found == data
    assert repr(found) == repr(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!omap [1]", "x, line 1: the tag tag:yaml.org,2002:omap is not read: plain values only."),
        ("a: !!seq {b: 1}", "x, line 1: the tag tag:yaml.org,2002:seq is not read"),
        ("a: !mine 1", "x, line 1: the tag !mine is not read"),
        ("a:\n  b: &a 1\n  <<: [*a]", "x, line 3: the merge key << takes a mapping"),
        ("\n\na: [", "x, line 4 is not YAML: "),
        ("a: !!bool maybe", "x, line 1: 'maybe' is no bool that can be held."),
        ("a: !!int " + "x" * 41, "x, line 1: xxxxxxxxxxxx… (41 characters) is no int that can be held."),
        ("a: !!int " + "x" * 40, f"x, line 1: '{'x' * 40}' is no int that can be held."),
        ("a: \x01", "x is not YAML: "),
    ],
)
def test_yaml_that_is_not_plain_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plain_data(text, "x", WIDE)
    assert str(refused.value).startswith(words)


def test_scalars_are_resolved_by_the_rules_given() -> None:
    import re

    rules = {"o": [(plain_yaml.TAG + "timestamp", re.compile("on")), (plain_yaml.TAG + "bool", re.compile("on$"))]}
    assert plain_data("[on, one, 1]", "x", WIDE, rules) == [True, "one", "1"]


# The notebook's way in.


def test_choices_are_texts_and_lists_of_texts() -> None:
    assert list(api._choices(["a=1", ["b=2", ("c=3",)]])) == ["a=1", "b=2", "c=3"]
    with pytest.raises(ConfigError, match="a choice is a text like 'mode=reduce-overhead'; given 3"):
        list(api._choices(["a=1", [3]]))
    for choice in ("model=add", "+model.x=1", "~pipeline=run", "++pipeline.x=1"):
        with pytest.raises(ConfigError, match="has no meaning here: the model is the caller's"):
            api.materialize(choice)
    with pytest.raises(ConfigError, match="takes a module or a function first, then its choices; given 3"):
        api.compile(3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        ("cse", "cse"),
        (["cse", None], "[cse,null]"),
        (("a",), "[a]"),
        ({"a": {"b": True}, "c": [1, 2]}, "{a:{b:true},c:[1,2]}"),
    ],
)
def test_values_are_written_as_overrides(value: Any, text: str) -> None:
    assert api._text(value) == text


@pytest.mark.parametrize(
    ("overrides", "shapes"),
    [
        (["mode=reduce-overhead"], "auto"),
        (["mode=max-autotune"], None),
        (["mode=eager"], "static"),
        (["mode=reduce-overhead", "shapes=static"], "static"),
        (["mode=reduce-overhead", "shapes.dynamic=true"], "static"),
        (["mode=reduce-overhead", "target=null_device"], "auto"),
    ],
)
def test_where_each_signature_is_recorded_shapes_are_auto(overrides: list[str], shapes: str | None) -> None:
    checked = api.checked(overrides, with_model=False)
    made = api._with_own_shapes(checked)
    captures = checked.target.capabilities(checked.experiment.mode.name).captures
    wanted = shapes or ("auto" if captures else "static")
    assert made.experiment.shapes.name == wanted
    if wanted == "auto":
        assert made.experiment.shapes == Shapes(name="auto", dynamic=None)
        assert made.provenance["shapes.name"] == made.provenance["shapes.dynamic"] == api.OWN_SHAPES
        assert made.provenance["mode.name"] == checked.provenance["mode.name"]
    else:
        assert made is checked


def test_one_set_of_notices_and_one_composer_serve_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api._notices() is api._notices()
    assert api._composer() is api._composer()
    assert api._watching("warn") is api._watching("warn")
    assert api._watching("warn") is not api._watching("error")
    said: list[str] = []
    monkeypatch.setattr(type(api._notices()), "reset", lambda self: said.append("reset"))
    api.dynamo_backend.reset()  # type: ignore[attr-defined]
    assert said == ["reset"]


def test_a_graph_by_the_backend_s_name_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Backend:
        def __init__(self, fuses: bool) -> None:
            self.target = SimpleNamespace(fuses=lambda mode: fuses and mode == "m")
            self.mode, self.inductor = "m", SimpleNamespace(frozen_weights="warn")
            self.frozen = self.notices = None

        def __call__(self, graph: Any, inputs: Any) -> str:
            seen.append((graph, inputs, self.frozen, self.notices))
            return "compiled"

    for fuses in (True, False):
        made = Backend(fuses)

        def materialised(choices: Any, composed: Any, made: Backend = made) -> Any:
            seen.append(tuple(choices))
            assert composed.__self__ is api._composer()
            return SimpleNamespace(backend=made)

        monkeypatch.setattr(api, "_materialised", materialised)
        assert api.dynamo_backend("graph", ["x"], options={"seed": 3, "passes": ["cse"]}) == "compiled"
        assert seen[-2] == ("seed=3", "passes=[cse]")
        assert seen[-1] == ("graph", ["x"], api._watching("warn") if fuses else None, api._notices())
    api.dynamo_backend("graph", [])
    assert seen[-2] == ()


# Completion.


def parser() -> argparse.ArgumentParser:
    made = ArgumentParser(prog="p")
    commands = made.add_subparsers()
    one = commands.add_parser("one")
    one.add_argument("overrides", nargs="*")
    one.add_argument("--kind", choices=("a", "b"))
    one.add_argument("--out")
    one.add_argument("--flag", "-f", action="store_true")
    one.add_argument("--config-dir", "-cd", action="append")
    two = commands.add_parser("two").add_subparsers()
    two.add_parser("deep").add_argument("kind", choices=(1, 2))
    two.add_parser("deeper")
    return made


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ("one", "two")),
        ([""], ("one", "two")),
        (["o"], ("one",)),
        (["two", ""], ("deep", "deeper")),
        (["two", "deep", ""], ("1", "2")),
        (["three", "deep", ""], ("one", "two")),
        (["one", "--"], ("--help", "--kind", "--out", "--flag", "--config-dir")),
        (["one", "--kind", ""], ("a", "b")),
        (["one", "--out", ""], ()),
        (["one", "--flag", "seed"], ("seed=",)),
        (["one", "--kind", "a", "mode=ea"], ("mode=eager",)),
        (["one", "++mode=ea"], ("++mode=eager",)),
        (["one", "passes=[cse,dead"], ("passes=[cse,dead_code",)),
        (["one", "stric"], ("strict=",)),
        (["one", "compile.fullgraph=t"], ("compile.fullgraph=true",)),
        (["one", "compiler.debug.graph_d"], ("compiler.debug.graph_dump.",)),
        (["one", "no.such=x"], ()),
    ],
)
def test_a_word_may_become(words: list[str], wanted: tuple[str, ...]) -> None:
    assert completion.candidates(parser(), words) == wanted


def test_folders_of_ones_own_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mode" / "zebra.yaml").touch()
    (tmp_path / "a_file").touch()
    for flag in ("--config-dir", "-cd"):
        own = ["one", flag, str(tmp_path)]
        assert completion.candidates(parser(), [*own, "mode=z"]) == ("mode=zebra",)
        assert completion.candidates(parser(), [*own, "mi"]) == ("mine=",)
        assert completion.candidates(parser(), [*own, "a_f"]) == ()
    assert completion.candidates(parser(), ["one", "--config-dir", "/no such", "mode=z"]) == ()
    assert completion.candidates(parser(), ["one", "--out", str(tmp_path), "mode=z"]) == ()


@pytest.mark.parametrize(
    ("takes", "words"),
    [
        ("true | false | null", ("true", "false", "null")),
        ("integer", ()),
        ("O1 | O3", ("O1", "O3")),
        ("a list of text", ()),
        ("a | ", ()),
        ("number | null", ()),
    ],
)
def test_a_list_of_values_is_read_from_the_table(takes: str, words: tuple[str, ...]) -> None:
    assert completion._listed(takes) == words


# The command line.


def test_arguments_are_refused_in_our_words() -> None:
    made = parser()
    for words, said in (
        (["one", "--kind", "c"], "unknown kind 'c'. Choices: a, b."),
        (["two", "deep", "3"], "Choices: 1, 2."),
        (["one", "--out"], "argument --out: expected one argument. `p one --help` shows what is possible."),
    ):
        with pytest.raises(ConfigError) as refused:
            made.parse_args(words)
        assert said in str(refused.value)
    with pytest.raises(ConfigError, match=r"^it ends\. `p --help` shows what is possible\.$"):
        made.error("it ends...")


def raised(error: BaseException) -> Any:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("one", "two"), 2, ["npucompose: one", "npucompose: two"]),
        (NpuComposeError("three"), 3, ["npucompose: three"]),
        (OSError(errno.EACCES, "Permission denied", "/a"), 2, ["npucompose: /a: Permission denied."]),
        (
            OSError(errno.ENOSPC, "full"),
            3,
            ["npucompose: internal error, please report it: OSError: [Errno 28] full (--debug shows where)"],
        ),
        (ValueError("x"), 3, ["npucompose: internal error, please report it: ValueError: x (--debug shows where)"]),
    ],
)
def test_every_end_has_its_status_and_its_words(
    error: Exception, status: int, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._status_of(raised(error), debug=False) == status
    assert capsys.readouterr().err.splitlines() == said
    assert cli._status_of(raised(error), debug=True) == status
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("\n".join(said) + "\n")
    end = cli._end_of(raised(error))
    assert isinstance(end, NpuComposeError)
    assert end.exit_status == status
    assert end is error or end.__cause__ is error
    assert cli._end_of(lambda: 7) == 7


def test_what_was_printed_is_flushed_and_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    assert cli._status_of(lambda: 5, debug=False) == 5
    assert out.flushed == 1
    closed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "dup2", lambda one, other: closed.append((one, other)))
    monkeypatch.setattr(os, "open", lambda path, flags: 7 if (path, flags) == (os.devnull, os.O_WRONLY) else -1)
    assert cli._status_of(raised(BrokenPipeError()), debug=False) == cli.PIPE_CLOSED
    assert closed == [(7, 42)]


def test_the_command_line_is_that_of_the_process_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["npucompose", "completion", "fish"])
    assert cli.main() == 0
    assert capsys.readouterr().out == completion.FISH
    assert cli.main(["completion", "candidates", "no such", ""]) == 0
    assert capsys.readouterr().out == "".join(
        f"{name}\n"
        for name in ("run", "explain", "list", "doctor", "fetch", "bisect", "report", "completion", "recipe")
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "modes", "--yaml"], "--yaml, --under and --torch-npu are for `npucompose list options`"),
        (["list", "modes", "--under", "debug"], "not for 'modes'."),
        (["list", "modes", "--torch-npu", "2.6.0"], "not for 'modes'."),
        (["run", "--config-path", "x"], "--config-path would replace the packaged conf/"),
        (["run", "--experimental-rerun", "x.pickle"], "--experimental-rerun would unpickle a file"),
        (["run", "--help", "no_such=1"], "no_such"),
        (["run", "search=optuna", "model=add"], "search=optuna asks for many points: it needs -m."),
    ],
)
def test_what_cannot_be_meant_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_lists_are_of_the_folder_the_tree_and_the_version_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mode" / "zebra.yaml").write_text("# striped\n")
    assert cli.main(["list", "modes", "--config-dir", str(tmp_path), "--json"]) == 0
    assert '"striped"' in capsys.readouterr().out
    assert cli.main(["list", "options", "--yaml", "--under", "debug", "--torch-npu", "2.6.0"]) == 0
    told = capsys.readouterr().out
    assert "# Every option of debug in torch_npu 2.6.0.post5, at its default" in told
    assert cli.main(["list", "options", "--under", "debug.run_eagerly", "--torch-npu", "2.6.0"]) == 0
    assert capsys.readouterr().out.count("run_eagerly") == 1


def test_bisecting_ends_with_who_is_guilty(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import airflow_free.bisect

    for guilty, status in ((None, 0), ("cse", 1)):

        def bisected(composed: Any, store: Any, tell: Any, guilty: str | None = guilty) -> Any:
            assert composed.tree["model"]["name"] == "add"
            tell("a line")
            return SimpleNamespace(guilty=guilty, error="why")

        monkeypatch.setattr(airflow_free.bisect, "bisect", bisected)
        assert cli.main(["bisect", "model=add"]) == status
        last = (
            "it holds with all of its passes." if guilty is None else "passes.cse is the first pass that breaks it: why"
        )
        assert capsys.readouterr().out.splitlines() == ["  a line", last]


def test_fetching_says_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npucompose.targets.npu_offline import fetch, wheel

    asked: list[Any] = []
    for already, problem, words in (
        (True, None, "is in the cache already"),
        (False, "of another torch", "was downloaded"),
    ):
        monkeypatch.setattr(wheel, "torch_problem", lambda tree, problem=problem: problem)
        monkeypatch.setattr(fetch, "fetch", lambda pin, already=already: SimpleNamespace(already=already, tree="/tree"))
        monkeypatch.setattr(
            fetch,
            "pinned",
            lambda *given: (
                asked.append(given) or SimpleNamespace(version="2.13.0", python="3.11", architecture="x86_64")
            ),
        )
        assert cli.main(["fetch", "torch_npu", *(["--version", "2.6.0", "--python", "3.9"] if already else [])]) == 0
        told = capsys.readouterr()
        assert told.out.startswith(f"torch_npu 2.13.0 (Python 3.11, x86_64) {words}")
        assert told.out.endswith(": /tree\n")
        assert told.err == (f"npucompose: {problem}\n" if problem else "")
    assert asked == [("2.6.0", "3.9", None), (fetch.DEFAULT_VERSION, None, None)]


def test_the_doctor_looks_at_the_store_that_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_free.store import Store
    from npucompose.report import doctor

    seen: list[Any] = []
    monkeypatch.setattr(doctor, "diagnose", lambda store: seen.append(store) or SimpleNamespace(exit_status=3))
    monkeypatch.setattr(doctor, "show", lambda found, as_json: seen.append(as_json))
    assert cli.main(["doctor"]) == 3
    assert cli.main(["doctor", "--json"]) == 3
    assert seen == [Store.default().root, False, Store.default().root, True]


def test_hydra_s_ends_become_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.compose import application

    before = list(sys.argv)
    for code, status in ((None, 0), (0, 0), (1, 2), ("words", 2)):

        def run(arguments: Any, composer: Any, task: Any, code: Any = code) -> None:
            assert (arguments, composer, task) == ("a", "c", "t")
            assert sys.argv[0] == "mine"
            raise SystemExit(code)

        monkeypatch.setattr(application, "run_application", run)
        assert cli._hydra("a", "mine run", "c", "t") == status  # type: ignore[arg-type]
        assert sys.argv == before
    monkeypatch.setattr(application, "run_application", lambda *given: None)
    assert cli._hydra("a", "mine run", "c", "t") == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["mode=eager"], ["single"]),
        (["-m", "mode=eager"], ["sweep"]),
        (["--help"], ["look", "hydra"]),
        (["--hydra-help"], ["look", "hydra"]),
        (["--cfg", "job"], ["look", "hydra"]),
        (["--info"], ["look", "hydra"]),
        (["--shell-completion", "query=bash"], ["hydra"]),
    ],
)
def test_hydra_answers_what_is_its_own(words: list[str], done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in ("single", "sweep", "hydra"):
        monkeypatch.setattr(cli, f"_{name}", lambda *given, name=name: said.append(name) or 7)
    monkeypatch.setattr(cli, "_look_first", lambda *given: said.append("look"))
    assert cli.run(words) == 7
    assert said == done


def test_a_composer_is_of_the_folder_and_the_name_given(tmp_path: Path) -> None:
    def given(**words: Any) -> Any:
        made = {"config_dir": None, "config_path": None, "experimental_rerun": None, "config_name": None}
        return SimpleNamespace(**{**made, **words})

    (tmp_path / "mine.yaml").write_text("defaults:\n- config\n- _self_\nseed: 41\n")
    assert cli._composer(given()).compose([]).tree["seed"] != 41
    assert cli._composer(given(config_dir=str(tmp_path), config_name="mine")).compose([]).tree["seed"] == 41
    with pytest.raises(ConfigError):
        cli._look_first(SimpleNamespace(overrides=["no_such=1"]), cli._composer(given()))  # type: ignore[arg-type]
    cli._look_first(SimpleNamespace(overrides=["model=add"]), cli._composer(given()))  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [0, 1, ConfigError("refused"), None])
def test_the_end_of_a_task_inside_hydra_is_the_end_of_the_command(
    end: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(job: Any) -> int:
        if isinstance(end, NpuComposeError):
            raise end
        return end

    def hydra(arguments: Any, program: str, composer: Any, task: Any) -> int:
        if end is not None:
            task(None)
        return 9

    monkeypatch.setattr(cli, "_hydra", hydra)
    monkeypatch.setattr(cli, "_run_here", act)
    assert cli.run(["model=add"]) == (9 if end is None else 2 if isinstance(end, ConfigError) else end)
    assert ("refused" in capsys.readouterr().err) == isinstance(end, ConfigError)


def test_a_sweep_tells_what_is_illegal_and_ends_as_its_runs_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_free.sweep import command

    sweep = SimpleNamespace(illegal_lines=lambda: ["a=1 is illegal"], act=None)
    monkeypatch.setattr(command, "planned", lambda overrides, composer: sweep)
    monkeypatch.setattr(cli, "_hydra", lambda *given: 9)
    assert cli.run(["-m", "model=add"]) == 9
    assert capsys.readouterr().err == "npucompose: a=1 is illegal\n"
    for end, status in ((lambda: 1, 1), (raised(ConfigError("x")), 2)):
        monkeypatch.setattr(cli, "_hydra", lambda *given, end=end: sweep.act(end) or 9)
        assert cli.run(["-m", "model=add"]) == status
        capsys.readouterr()


@pytest.mark.parametrize("others", [True, False])
def test_of_a_refused_run_nothing_is_left_but_what_others_put_there(
    others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    from hydra.core.hydra_config import HydraConfig

    run_dir = tmp_path / "outputs" / "day" / "time"
    (run_dir / ".hydra").mkdir(parents=True)
    (run_dir / ".hydra" / "config.yaml").touch()
    if others:
        (run_dir.parent / "theirs").touch()
    did: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "shutdown", lambda: did.append("closed"))
    for subdir, log in ((".hydra", False), (None, False), (".hydra", True)):
        run_dir.mkdir(parents=True, exist_ok=True)
        if log:
            (run_dir / "run.log").touch()
        config = SimpleNamespace(
            runtime=SimpleNamespace(output_dir=str(run_dir)), output_subdir=subdir, job=SimpleNamespace(name="run")
        )
        monkeypatch.setattr(HydraConfig, "get", lambda config=config: config)
        cli._leave_no_folder()
        assert not run_dir.exists()
        assert run_dir.parent.exists() is others
        assert tmp_path.exists()
    assert did == ["closed"] * 3


# Scopes in a model's source.


def test_a_scope_names_its_stream_and_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from npucompose import scope

    said: list[Any] = []
    monkeypatch.setattr(scope, "_enter", lambda *given: said.append(given))
    monkeypatch.setattr(scope, "_exit", lambda *given: said.append("out"))
    with scope.npu_stream_switch("s", 2), scope.npu_stream_switch("t"):
        pass
    keys = ["_user_stream_label", "_user_stream_priority"]
    assert said == [(keys, ["s", "2"]), (keys, ["t", "0"]), "out", "out"]
    assert isinstance(scope.record(), torch.Tensor)
    assert scope.wait((scope.record(),)) is None


def test_the_package_brings_its_names_late_and_no_others() -> None:
    import npucompose

    for name in npucompose.__all__:
        assert getattr(npucompose, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        _ = npucompose.no_such  # type: ignore[attr-defined]
