"""No word of a command line is lost: each is in the recipe, in a note or in a line; a shell says which words it has."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_lines import STARTED, Started

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.recipe import Imported, import_command_line, import_file
from npucompose.table.structure import flat
from npucompose_extras.engine_dialects.start_script import MOST_CHARACTERS, Script

PROGRAMS = ("vllm", "sglang", "python", "python3", "nohup", "numactl", "docker")
IN_THE_RECIPE = {
    "mode", "level", "cudagraph_mode", "cudagraph_capture_sizes", "enforce_eager", "no_enforce_eager", "cuda_graph_bs",
    "optimization_level", "enable_npugraph_ex", "enabled", "disable_cuda_graph", "enable_torch_compile", "O", "cc",
}  # fmt: skip
"""Names whose values are the recipe's mode and sizes, which each case says."""
UNKNOWN = {"CC": "w7001", "SIZES": "7002", "ROLE": "w7003", "PORT": "7004", "MORE": "", "LD_PRELOAD": ""}
"""What the environment of the shell has for variables that a text does not set."""
each = pytest.mark.parametrize("case", STARTED, ids=[case.about for case in STARTED])


def lines(found: Imported) -> str:
    return "\n".join([*found.notes, *map(str, found.unread)])


def test_there_are_sixty_of_three_engines() -> None:
    assert len(STARTED) >= 60
    of_ascend = sum("HCCL" in case.text or "ASCEND" in case.text for case in STARTED)
    assert of_ascend >= 7
    assert sum("sglang" in case.text for case in STARTED) >= 8


@each
def test_a_command_line_becomes_a_recipe_and_lines(case: Started) -> None:
    found = import_command_line(case.text)
    assert found.tree["mode"]["name"] == case.mode
    section = found.tree.get("extensions", {}).get("vllm", {})
    assert section.get("sizes") == (None if case.sizes is None else list(case.sizes))
    assert [words for words in case.says if words not in lines(found)] == [], lines(found)
    assert "hf_abc" not in lines(found)


def given(case: Started, folder: Path) -> list[str]:
    """The words that a shell gives the engine; its programs do nothing but write them down."""
    programs, out = folder / "programs", folder / "words"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(f"#!/bin/sh\nprintf '%s\\0' {name} \"$@\" > '{out}'\n")
        (programs / name).chmod(0o755)
    environment = {**UNKNOWN, "PATH": str(programs)}
    shell = ["/bin/bash", "--norc", "-c", f"{case.text}\nwait"]
    subprocess.run(shell, cwd=folder, env=environment, capture_output=True, timeout=60)
    words = out.read_text().split("\0")[:-1]
    starts = [at for at, word in enumerate(words) if word in ("serve", "sglang.launch_server") or ".api_server" in word]
    return words[starts[0] + 1 :]


def leaves(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(the last name, a value) of each option: an option alone has an empty one, JSON all that it holds."""
    option = "model_tag"
    for at, word in enumerate(words):
        if word.startswith("-") and not word[1:2].isdigit():
            option, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-O") and word[2:].isdigit():
                option, equals, value = "O", "=", word[2:]
            alone = at + 1 == len(words) or words[at + 1].startswith("-")
            if not (equals or alone):
                continue
        else:
            value = word
        try:
            data: Any = json.loads(value)
        except ValueError:
            data = value
        name = option.rstrip("+").rpartition(".")[2].replace("-", "_")
        for path, leaf in flat({name: data}).items():
            values: list[Any] = leaf if isinstance(leaf, list) else [leaf]
            yield from ((path.rpartition(".")[2], value) for value in map(str, values))


def lost(words: Sequence[str], said: str) -> list[tuple[str, str]]:
    """Those that no note and no line names."""
    secret = {"api_key": "…"}
    known = {value: name for name, value in UNKNOWN.items() if value}
    found: list[tuple[str, str]] = []
    for name, value in leaves(words):
        if name in IN_THE_RECIPE and value not in known:
            continue
        asked = f"${known[value]}" if value in known else secret.get(name, value)
        shown = {"True": "true", "False": "false"}.get(asked, asked)
        named = name.removeprefix("no_") in said or f"-{name}" in said
        if not named or shown.strip("$") not in said:
            found.append((name, value))
    return found


@pytest.mark.parametrize("case", [case for case in STARTED if case.runs], ids=[c.about for c in STARTED if c.runs])
def test_every_word_that_a_shell_gives_is_in_the_recipe_or_in_a_list(case: Started, tmp_path: Path) -> None:
    words = given(case, tmp_path)
    assert words
    assert lost(words, lines(import_command_line(case.text))) == []


def test_the_words_are_counted(tmp_path: Path) -> None:
    """The control: without its notes and lines a command line has lost its words."""
    total, missing = 0, 0
    for number, case in enumerate(one for one in STARTED if one.runs):
        (tmp_path / str(number)).mkdir()
        words = given(case, tmp_path / str(number))
        total += len(list(leaves(words)))
        missing += len(lost(words, ""))
    assert total > 150
    assert missing > 70


@pytest.mark.parametrize(("value", "mode", "says"), [
    ("serve.yaml", "reduce-overhead", "--config serve.yaml is read, too"),
    ("./serve.yaml", "reduce-overhead", "--config ./serve.yaml is read, too"),
    ("other.yaml", "max-autotune", "line 2: --config other.yaml: there is no such file beside"),
    ("../serve.yaml", "max-autotune", "--config ../serve.yaml: only a file beside it is read"),
    ("/etc/hostname", "max-autotune", "--config /etc/hostname: only a file beside it is read"),
    ("$FILE", "max-autotune", "config=$FILE: $FILE is not known here"),
])  # fmt: skip
def test_a_file_of_options_beside_the_script_is_read(value: str, mode: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    script = tmp_path / "inner" / "serve.sh"
    script.write_text(f"cd /data\nvllm serve m --config {value} --port 1 -cc.mode=0\n")
    text = "compilation-config: {mode: 3, cudagraph_mode: FULL}\nenforce-eager: false\nport: 3\nseed: 7\n"
    for folder in (tmp_path, script.parent):
        (folder / "serve.yaml").write_text(text.replace("mode: 3, ", ""))
    script.write_text(script.read_text().replace(" -cc.mode=0", " -O0" if mode == "reduce-overhead" else ""))
    found = import_file(script)
    assert found.tree["mode"]["name"] == mode
    assert says in lines(found)
    assert ("seed=7" in lines(found)) == (mode == "reduce-overhead")


def test_what_a_command_line_says_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("port: 3\n")
    (tmp_path / "serve.sh").write_text("vllm serve m --port 1 --config serve.yaml\n")
    said = lines(import_file(tmp_path / "serve.sh"))
    assert "port=1" in said
    assert "--port is given twice: the last counts" in said


def test_a_file_that_holds_no_options_is_refused(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("- port\n")
    (tmp_path / "serve.sh").write_text("vllm serve m --config serve.yaml\n")
    with pytest.raises(ConfigError, match=r"serve\.yaml: options of an engine are wanted, name: value"):
        import_file(tmp_path / "serve.sh")


def test_a_command_line_may_be_long(capsys: pytest.CaptureFixture[str]) -> None:
    text = "vllm serve m -O0 " + " ".join(f"--option-{number} {number}" for number in range(400))
    assert main(["recipe", "import", text]) == 0
    assert "option_399=399" in capsys.readouterr().err


def test_a_command_line_without_options_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "import", "vllm serve org/model-1.5"]) == 0
    assert "model_tag=org/model-1.5" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "says"), [
    ("vllm serve m \\\n --x 'x --enforce-eager", "the command line:2: a quote ' is not closed: nothing of it is read."),
    ('vllm serve m -cc "{', 'the command line:1: a quote " is not closed: nothing of it is read.'),
    ("vllm serve m --host $(hostname", "the command line:1: $( is not closed: nothing of it is read."),
    ("ARGS=(--port 1\nvllm serve m -O3", "the command line:2: ( is not closed: nothing of it is read."),
])  # fmt: skip
def test_what_is_not_closed_is_one_sentence(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "import", text]) == 2
    assert capsys.readouterr() == ("", f"npucompose: {says}\n")


@pytest.mark.parametrize("text", [
    "$(" * 30_000, '"' * 60_001, "`" * 60_001, "a=(" * 20_000, "$x" * 30_000, "(" * 60_000, "<<A\n" * 15_000,
    "'" * 60_001,
    "\\\n" * 30_000, "if " * 20_000, "B0=xxxx\n" + "".join(f'B{n}="$B{n - 1}$B{n - 1}"\n' for n in range(1, 3_000)),
])  # fmt: skip
def test_a_text_of_any_kind_is_read_in_one_go(text: str) -> None:
    """Or refused; a reader that goes over it again and again would not end within the limit of a test."""
    assert len(text) <= MOST_CHARACTERS
    with suppress(ConfigError):
        assert Script(text, "it").commands is not None


def test_nothing_of_a_text_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", '{"mode": 0}')
    monkeypatch.chdir(tmp_path)
    found = import_command_line('touch a; vllm serve $(touch b) -O3 -cc "$CC" `touch c`')
    assert os.listdir(tmp_path) == []
    assert found.tree["mode"]["name"] == "max-autotune"
