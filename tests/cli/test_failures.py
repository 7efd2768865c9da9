"""Natural mistakes, and every command of README and docs that fails on purpose, each as a golden text: what is printed
and the exit status. (`failures.py` has the mistakes, the pages have the commands.)

One error once, in this order: what failed, the person's own file and line, the root cause, what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from failures import CASES, FILES, IN_A_WORKER
from nursery import command

from npucompose.cli import main
from npucompose_replay.executor import build
from tests.docs.blocks import ALL, ROOT, Command, blocks

OWN_LINE = {
    "a key misspelt in a file": "mine/experiment/typo.yaml:5",
    "a tab in a file": "mine/experiment/tabs.yaml:3",
    "wrong types in a file": "mine/experiment/types.yaml:2",
    "a model's option in a file": "mine/model/block.yaml:2",
    "a choice misspelt in a file": "mine/experiment/choice.yaml:3",
    "a group misspelt in a file": "mine/experiment/group.yaml:3",
    "a resolver in a file": "mine/experiment/resolver.yaml:2",
    "an option of another mode in a file": "mine/experiment/idle.yaml:4",
    "trust in a file": "mine/experiment/sly.yaml:2",
    "passes as a list in a file": "mine/experiment/listed.yaml:2",
    "a script that is no Python": "unclosed.py:1",
    "a model that fails by itself": "net.py:20 in without_weights",
    "sizes that do not fit": "net.py:24 in with_two_sizes",
    "an operator without a fake": "net.py:28 in without_fake",
    "a factory that raises": "net.py:56 in raising",
    "a factory that returns a number": "net.py:59",
    "inputs of another name": "net.py:63",
    "a file that is no Python": "broken.py:1",
    "an import that fails": "importing.py:3",
    "a pass of another signature": "rewrites.py:11",
    "a pass that raises": "rewrites.py:3 in exploding",
    "a pass that leaves a knot": "rewrites.py:6",
}
"""{mistake: the line that the person wrote}, wherever there is one."""
PRINTED = {command.where: command for block in ALL for command in block.commands() if command.status}
"""Commands that a page says to end with another status than 0."""
SEEN_AT_ONCE = [where for where, command in PRINTED.items() if command.status == 2 and " -m " not in command.text]
VARYING = re.compile(r"\d+(\.\d+)? (ms|µs|s)\b|\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sentences(text: str) -> list[str]:
    """What is long enough to be noticed when it comes twice; what can be chosen is no sentence."""
    lines = text.replace("npucompose: ", "").splitlines()
    found = [part.strip(" .") for line in lines for part in re.split(r"(?<=[.:]) (?=[A-Z])", line)]
    return [one for one in found if len(one) > 24 and not one.startswith(("Choices", "Did you mean", "Write key"))]


def judged(name: str, words: str, status: int, text: str, folder: Path, golden: Callable[[str, str], None]) -> None:
    text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    text = re.sub(r"is not Python 3\.\d+:", "is not Python 3.x:", text)
    assert "Traceback" not in text
    assert [one for one, times in Counter(sentences(text)).items() if times > 1] == []
    if name in OWN_LINE:
        assert OWN_LINE[name] in text
    golden(f"failures/{name.replace(' ', '_')}.txt", f"$ npucompose {words}\n{text}exit {status}\n")


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_answered_as_the_golden_text(
    name: str, here: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    before = sorted(here.rglob("*"))
    status = main(CASES[name].split())
    told = capsys.readouterr()
    assert status == 2
    judged(name, CASES[name], status, told.err, here, golden)
    assert [path for path in here.rglob("*") if path not in before and "__pycache__" not in path.parts] == []


@pytest.fixture(scope="module")
def replayer() -> None:
    """Is there: a first run says that it builds it."""
    build.file()


@pytest.mark.slow
@pytest.mark.usefixtures("replayer")
@pytest.mark.parametrize("name", IN_A_WORKER)
def test_a_mistake_that_only_a_worker_sees_is_answered_the_same_way(
    name: str, here: Path, golden: Callable[[str, str], None]
) -> None:
    done = subprocess.run(
        command("npucompose", *IN_A_WORKER[name].split()), cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2, 3)
    judged(name, IN_A_WORKER[name], done.returncode, VARYING.sub("…", done.stderr), here, golden)
    both = Counter(sentences(done.stderr + done.stdout))
    assert [one for one, times in both.items() if times > 1] == [], "said in both streams"


def page_of(one: Command, folder: Path) -> str:
    """Puts the page's files there, and says how the command is called among the golden texts: `tutorial cpu 2`."""
    for block in blocks(ROOT / one.block.page):
        if block.file is not None:
            block.put(folder)
    number = [where for where, other in PRINTED.items() if other.block.page == one.block.page].index(one.where)
    return f"{Path(one.block.page).stem} {number + 1}"


def typed(one: Command) -> list[str]:
    words = shlex.split(one.text)
    return ["run", *words[2:]] if words[:2] == ["python", "run.py"] else words[1:]


@pytest.mark.parametrize("where", SEEN_AT_ONCE)
def test_a_command_that_a_page_says_to_fail_is_answered_as_the_golden_text(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    name, words = page_of(PRINTED[where], tmp_path), typed(PRINTED[where])
    status = main(words)
    assert status == PRINTED[where].status
    judged(name, shlex.join(words), status, capsys.readouterr().err, tmp_path, golden)


@pytest.mark.slow
@pytest.mark.usefixtures("replayer")
@pytest.mark.parametrize("where", [where for where in PRINTED if where not in SEEN_AT_ONCE])
def test_a_command_that_a_page_says_to_fail_once_it_ran_is_answered_the_same_way(
    where: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    name, words = page_of(PRINTED[where], tmp_path), typed(PRINTED[where])
    done = subprocess.run(command("npucompose", *words), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == PRINTED[where].status
    judged(name, shlex.join(words), done.returncode, VARYING.sub("…", done.stderr), tmp_path, golden)


def test_a_script_is_imported_into_a_folder_that_is_not_there_yet(here: Path) -> None:
    (here / "serve.py").write_text("import torchair\nconfig = torchair.CompilerConfig()\n")
    assert main(["recipe", "import", "serve.py", "--out", "new/folder/serve.yaml"]) == 0
    assert (here / "new" / "folder" / "serve.yaml").read_text().strip()


def test_there_are_sixty_of_them() -> None:
    assert len({*CASES.values(), *IN_A_WORKER.values()}) >= 60
    assert set(OWN_LINE) <= {*CASES, *IN_A_WORKER}


def test_a_sentence_that_comes_twice_is_found() -> None:
    text = (
        "npucompose: a: the model fails at every call it gets\nnpucompose: b: the model fails at every call it gets\n"
    )
    assert len(set(sentences(text * 2))) < len(sentences(text * 2))
    assert [one for one, times in Counter(sentences(text.splitlines()[0] + "\n" + text)).items() if times > 1]
