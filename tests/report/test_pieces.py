"""The pieces that reports are made of: files, markup, lists of choices and keys, who is faster."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs import evolve
from jinja2 import UndefinedError
from report_examples import FULL, FULL_BENCHMARK, timing

from airflow_free.store import write_atomically
from npucompose.errors import ConfigError
from npucompose.report import comparison, html, keys, listing
from npucompose.report import json as report_json
from npucompose.report.words import modes_sentence
from npucompose.results.measured import Behind, ModeFacts, ModeTime, Numerics
from npucompose.results.record import Environment, Report
from npucompose.vendor.compiler import LEAVES
from npucompose.vendor.versions import tree_of

# Files.


def test_a_file_lasts_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    did: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if place.is_file():
            assert place.read_text() == "new ä"
            assert place.parent == tmp_path
            assert place.name.startswith(".report.json.")
        did.append("folder" if place == tmp_path else "file")
        fsync(handle)

    def replaced(one: Any, other: Any) -> None:
        assert path.read_text() == "old"
        did.append("replaced")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_atomically(path, "new ä")
    assert did == ["file", "replaced", "folder"]
    assert [(one.name, one.read_text(encoding="utf-8")) for one in tmp_path.iterdir()] == [("report.json", "new ä")]


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "full")

    path = tmp_path / "report.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.json", "old")]


def test_a_folder_that_cannot_be_synced_is_no_error_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_dir():
            raise OSError(22, "not here")

    monkeypatch.setattr(os, "fsync", refused)
    before = len(os.listdir("/proc/self/fd"))
    write_atomically(tmp_path / "x", "new")
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "x").read_text() == "new"


def test_a_report_is_found_in_its_folder_or_by_its_file(tmp_path: Path) -> None:
    path = report_json.write(FULL, tmp_path)
    assert path == tmp_path / "report.json"
    assert report_json.load(tmp_path) == report_json.load(path) == FULL
    text = path.read_text()
    assert text.startswith('{\n "')
    assert text.endswith("}\n")
    report_json.write(evolve(FULL, error="größe"), tmp_path)
    assert "größe" in path.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        report_json.write(evolve(FULL, numerics=evolve(FULL.numerics, max_abs_err=float("nan"))), tmp_path)
    assert "größe" in path.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "{} is not a report: a mapping is wanted, not a list."),
        ("{", "{} is not a report: Expecting property name"),
        ("[" * 100_000, "{} is not a report: "),
        ('{"key": 3}', "{}: "),
        (b"\xff", "{} is not text in UTF-8"),
    ],
)
def test_a_file_that_is_no_report_is_named(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refused:
        report_json.load(tmp_path)
    assert all(problem.startswith(words.format(path)) for problem in refused.value.problems)
    with pytest.raises(ConfigError, match=r"there is no report\.json at .*; give a run directory or the file itself"):
        report_json.load(tmp_path / "nobody")


# Markup.


def part(name: str, *values: object, template: str = "parts.html") -> str:
    return getattr(html.environment().get_template(template).module, name)(*values)


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (2.504, "2.5"), (0.126, "0.13"), (10, "10"), (30.0, "30")])
def test_numbers_of_a_picture_are_short(value: float, text: str) -> None:
    assert html.number(value) == text


def test_parts_are_written_like_this() -> None:
    assert part("table", ("a", 1), [("<", None), ('b"', "'")], "c", (0,)) == (
        '<div class="scroll"><table class="c"><thead><tr><th scope="col">a</th><th scope="col">1</th></tr></thead>'
        "<tbody><tr><td><code>&lt;</code></td><td></td></tr>"
        "<tr><td><code>b&#34;</code></td><td>&#39;</td></tr></tbody></table></div>"
    )
    assert part("list", ["a & b", "c"]) == "<ul><li>a &amp; b</li><li>c</li></ul>"
    assert part("list", []) == ""
    assert part("status_chip", "ok", "<b>") == '<span class="status ok">&lt;b&gt;</span>'
    assert part("data_block", '"', ["</script>&ä"]) == (
        '<script type="application/json" id="&#34;">["\\u003c/script\\u003e\\u0026\\u00e4"]</script>'
    )
    rect = '<rect x="1" y="2.5" width="0.13" height="10" class="c0"'
    assert part("rect", 1.0, 2.504, 0.126, 10, "c0", template="pictures.html") == f"{rect}/>"
    assert part("rect", 1.0, 2.504, 0.126, 10, "c0", "<", template="pictures.html") == (
        f"{rect}><title>&lt;</title></rect>"
    )


def test_a_page_names_what_may_run_and_look_by_its_content() -> None:
    plain = html.page("page.html", "t & t", style="page.css")
    scripted = html.page("page.html", "t", style="page.css wide.css", script="comparison.js")
    style, script = html.source("page.css"), html.source("comparison.js")
    assert "script-src &#39;none&#39;" in plain
    assert "<script>" not in plain
    assert plain.startswith("<!doctype html>\n<html lang")
    assert f"<title>t &amp; t</title><style>{style}</style></head><body><a class=" in plain
    assert plain.endswith('<main id="main"></main></body></html>\n')
    for text, page in ((style, plain), (style + html.source("wide.css"), scripted), (script, scripted)):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in page
    assert "script-src &#39;sha256-" in scripted
    assert scripted.count("sha256-") == 2
    assert f"</main><script>{script}</script></body>" in scripted


def test_a_template_asks_for_nothing_that_is_not_there() -> None:
    with pytest.raises(UndefinedError, match="'report' is undefined"):
        html.page("run.html", "t", style="page.css")


# Lists.


@pytest.fixture
def conf(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name, text in (
        (first, "b", "# @package _global_\nx: 1\n  #  mine  \n# other\n"),
        (second, "b", "# theirs\n"),
        (first, "aa", "x: 1\n"),
        (second, "a", "x: 1\n"),
        (second, "c", "# " + "long " * 100 + "\x1b\n"),
        (second, "d", "x: 1 # no\n" + "y: 1\n" * 2000 + "# too late\n"),
    ):
        (folder / "mode").mkdir(parents=True, exist_ok=True)
        (folder / "mode" / f"{name}.yaml").write_text(text)
    return first, second


def test_a_group_is_its_files_the_first_folder_s_first(conf: tuple[Path, Path]) -> None:
    found = {one.name: one for one in listing.choices("modes", conf)}
    assert list(found) == ["a", "aa", "b", "c", "d"]
    assert [one.doc for one in found.values()] == ["", "", "mine  ".strip(), ("long " * 100)[:300], ""]
    assert found["b"].file == str(conf[0] / "mode" / "b.yaml")
    assert listing.choices("mode", conf[1:])[1].doc == "theirs"
    assert listing.choices("experiments", conf) == ()
    assert not any(one.file for one in listing.choices("targets", conf))  # registered, without a YAML of their own
    with pytest.raises(ConfigError, match=r"unknown list 'modez'\. Did you mean 'modes'"):
        listing.choices("modez", conf)


def test_lists_are_printed_like_this(conf: tuple[Path, Path], golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    listing.show("mode", conf[1:])
    listing.show("options", (), under="debug.graph_dump")
    listing.show("options", (), under="npugraph_ex", version="2.13.0", as_json=True)
    listing.show("options", (), under="debug.graph_dump.type", version="2.6.0")
    golden("report/lists.txt", capsys.readouterr().out.replace(str(conf[1]), "CONF"))
    listing.show("keys", ())
    shown = capsys.readouterr().out
    assert "seed" in shown
    listing.show("options", (), under="inductor")
    assert "inductor." in capsys.readouterr().out
    with pytest.raises(
        ConfigError, match="only options lie under a path, and operators under a name: `list options --under x`"
    ):
        listing.show("mode", conf, under="x")
    with pytest.raises(ConfigError, match="inductor's options are torch's, not torch_npu's: leave"):
        listing.options("inductor.freezing", "2.6.0")
    with pytest.raises(ConfigError, match="unknown option 'debugg'"):
        listing.options("debugg")


def test_options_are_those_at_or_below_a_path() -> None:
    assert [row["option"] for row in listing.options("debug.graph_dump.type")] == ["debug.graph_dump.type"]
    assert all(row["option"].startswith("debug.") for row in listing.options("debug"))
    assert [row["option"] for row in listing.options()] == list(LEAVES)
    assert listing.options("debug.graph_dump.type")[0]["default"] == LEAVES["debug.graph_dump.type"].default


def test_the_yaml_of_a_subtree_and_of_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    text = listing.yaml_of("debug.graph_dump", "2.6.0")
    asked = "--under debug.graph_dump --torch-npu 2.6.0"
    assert text.splitlines()[:5] == [
        "# Every option of debug.graph_dump in torch_npu 2.6.0.post5, at its default: override what you need.",
        f"# Written by `npucompose list options --yaml {asked}`; do not edit by hand.",
        "# Whose option tree is meant; null is the torch_npu that is found here, or 2.13.0 where none is.",
        'torch_npu_version: "2.6.0.post5"',
        "debug:",
    ]
    assert text.splitlines()[5] == "  graph_dump:"
    named = [line.strip().partition(":")[0] for line in text.splitlines()[6:] if "#" not in line]
    wanted = [path for path, leaf in tree_of("2.6.0.post5").items() if leaf.set_by == "compiler"]
    assert named == [path.rpartition(".")[2] for path in wanted if path.startswith("debug.graph_dump.")]
    monkeypatch.setattr(listing.inductor, "yaml_default", lambda: "Inductor's")
    assert listing.yaml_of("inductor") == "Inductor's"
    assert "torch_npu_version: null\n" in listing.yaml_of("debug.graph_dump")


@attrs.frozen
class Inner:
    x: int = 0
    y: str = ""


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "integer"),
        (bool | None, "true | false | null"),
        (int | float | int, "integer | number"),
        (Literal["a", None, 1], "a | null | 1"),
        (tuple[int, ...], "a list of integer"),
        (tuple[str | None, ...], "a list of text | null"),
        (Mapping[str, float], "a mapping to number"),
        (Inner, "a mapping (x, y)"),
        (Any, "anything"),
    ],
)
def test_a_type_in_words(hint: Any, words: str) -> None:
    assert keys.takes(hint) == words


def test_equal_options_of_several_choices_are_told_once() -> None:
    rows = keys.keys()
    by_key: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row)
    assert by_key["target.decompose"][0]["of"] == ["npu", "npu_offline"]
    assert by_key["passes.cse.stage"][0]["default"] == "pre"
    assert by_key["seed"][0]["of"] == []
    assert any(row["needed"] and row["default"] is None for row in rows)
    assert not any(row["needed"] for row in by_key["seed"])
    assert all(row["meaning"] and row["takes"] for row in rows if row["key"].count("."))
    assert len({(row["key"], row["takes"], row["meaning"]) for row in rows}) == len(rows)


# Who is faster.


def with_mode(name: str, ratio: float, *, spread: float = 0.0, **changes: Any) -> Report:
    own = (100.0, 100.0 * (1 + spread), 100.0 * (1 - spread), 100.0)
    benchmark = evolve(
        FULL_BENCHMARK,
        samples_us=own,
        p50_us=100.0,
        baselines={"eager": evolve(timing(100.0), samples_us=(100.0 * ratio,) * 4)},
        speedup={"eager": ratio},
    )
    report = evolve(
        FULL,
        experiment={**FULL.experiment, "mode": {"name": name}},
        stages=evolve(FULL.stages, benchmark=benchmark),
    )
    return evolve(report, **changes)


@pytest.mark.parametrize(
    ("one", "other", "begins"),
    [
        (
            with_mode("a", 2.0),
            with_mode("b", 1.0),
            "mode=a is 2.00 × as fast as mode=b: medians 100.0 µs and 100.0 µs, speed-up over eager "
            "2.00 and 1.00, each against eager in its own process. ",
        ),
        (with_mode("a", 1.0), with_mode("b", 3.0), "mode=b is 3.00 × as fast as mode=a: "),
        (with_mode("a", 2.0), with_mode("a", 1.0), "the first run is 2.00 × as fast as the second run: "),
        (with_mode("a", 1.05), with_mode("b", 1.0), "mode=a and mode=b are equally fast within 5% (1.05 ×): "),
        (with_mode("a", 1.06), with_mode("b", 1.0), "mode=a is 1.06 × as fast as mode=b: "),
        (
            with_mode("a", 1.2, spread=0.5),
            with_mode("b", 1.0, spread=0.5),
            "mode=a and mode=b cannot be told apart (1.20 ×, and the quartiles overlap): ",
        ),
    ],
)
def test_two_runs_are_compared_in_one_sentence(one: Report, other: Report, begins: str) -> None:
    said = comparison.verdict(one, other)
    assert said is not None
    assert said.startswith(begins)
    assert said.endswith("equals eager bit for bit.")


def test_runs_that_do_not_compete_have_no_sentence() -> None:
    one = with_mode("a", 2.0)
    assert comparison.verdict(one, one) is not None
    for other in (
        evolve(one, status="numerics_failed"),
        evolve(one, stages=evolve(one.stages, benchmark=None)),
        evolve(one, stages=evolve(one.stages, benchmark=evolve(one.stages.benchmark, speedup={}))),
        evolve(one, environment=Environment(cpu={"model": "another"})),
        evolve(one, environment=None),
        evolve(one, experiment={**one.experiment, "target": {"name": "npu"}}),
        evolve(one, experiment={**one.experiment, "seed": 1}),
    ):
        assert comparison.verdict(one, other) is None


def test_quartiles_are_those_of_the_rounds() -> None:
    one = with_mode("a", 2.0)
    assert one.stages.benchmark is not None
    rounds = evolve(
        one.stages.benchmark,
        samples_us=(100.0,) * 5,
        baselines={"eager": evolve(timing(1.0), samples_us=(100.0, 200.0, 300.0, 400.0, 500.0))},
    )
    speed = comparison._speed("x", evolve(one, stages=evolve(one.stages, benchmark=rounds)))
    assert speed is not None
    assert (speed.low, speed.middle, speed.high) == (2.0, 2.0, 4.0)
    alone = evolve(rounds, baselines={})
    speed = comparison._speed("x", evolve(one, stages=evolve(one.stages, benchmark=alone)))
    assert speed is not None
    assert (speed.low, speed.middle, speed.high) == (2.0, 2.0, 2.0)


def test_quartiles_that_touch_overlap() -> None:
    fast, slow = with_mode("a", 2.0), with_mode("b", 1.0)
    assert slow.stages.benchmark is not None
    eager = evolve(timing(1.0), samples_us=(100.0, 100.0, 200.0, 200.0))
    touching = evolve(slow.stages.benchmark, samples_us=(100.0,) * 4, baselines={"eager": eager})
    said = comparison.verdict(fast, evolve(slow, stages=evolve(slow.stages, benchmark=touching)))
    assert said is not None
    assert said.startswith("mode=a and mode=b cannot be told apart (2.00 ×")


@pytest.mark.parametrize(
    ("numerics", "words"),
    [
        (None, "was not compared with eager"),
        (FULL.numerics, "equals eager bit for bit"),
        (
            Numerics(reference="eager", max_abs_err=3e-5, bitwise=False, passed=True),
            "agrees with eager (largest difference 3.0e-05)",
        ),
        (Numerics(reference="eager", max_abs_err=None, bitwise=False, passed=True), "does not agree with eager"),
        (Numerics(reference="eager", max_abs_err=1.0, bitwise=False, passed=False), "does not agree with eager"),
    ],
)
def test_agreement_in_words(numerics: Numerics | None, words: str) -> None:
    assert comparison._agrees(numerics) == words


def facts(won: bool, *behind: tuple[str, float, float, float], fastest: str | None = "a", rounds: int = 3) -> ModeFacts:
    timed = evolve(timing(10.0), samples_us=(10.0,) * rounds)
    first = ModeTime(mode="a", passed=True, timing=timed)
    others = tuple(
        ModeTime(mode=mode, passed=True, timing=timed, behind=Behind(ratio=ratio, low=low, high=high))
        for mode, ratio, low, high in behind
    )
    return ModeFacts(fastest=fastest, won=won, modes=(first, *others))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(True, ("b", 1.2, 1.1, 1.3)), "a won: 1.20x as fast as b (quartiles 1.10x to 1.30x)"),
        (facts(False), "nobody won: no two modes gave results that may be timed"),
        (facts(True, ("b", 2, 2, 2), fastest=None), "nobody won: no two modes gave results that may be timed"),
        (
            facts(False, ("b", 2, 1.5, 2), ("c", 1.2, 0.9, 1.3)),
            "nobody won: a and c are even within the spread (1.20x, quartiles 0.90x to 1.30x)",
        ),
        (
            facts(False, ("b", 1.2, 1.0, 1.3)),
            "nobody won: a and b are even within the spread (1.20x, quartiles 1.00x to 1.30x)",
        ),
        (
            facts(False, ("b", 1.2, 1.01, 1.3), rounds=7),
            "nobody is said to have won: 7 rounds are too few; a was ahead",
        ),
    ],
)
def test_who_won_in_one_sentence(given: ModeFacts, words: str) -> None:
    assert modes_sentence(given) == words


def test_a_report_says_its_kinds_of_keys_as_json() -> None:
    rows = keys.keys()
    assert [row["key"] for row in json.loads(json.dumps(rows))] == [row["key"] for row in rows]
    assert listing.kinds()[:2] == ("passes", "modes")
    assert set(listing.kinds()) >= {"options", "keys", "mode", "modes"}
