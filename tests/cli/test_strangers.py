"""Configuration from a stranger runs no code, reads no secret and leaves nothing behind: exit 2, and a sentence why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npucompose.cli import run

TOUCH = "{_target_: pathlib.Path.touch, self: {_target_: pathlib.Path, _args_: [executed]}}"
CALLBACK = "{_target_: subprocess.run, args: [touch, executed]}"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

FILES: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    # what: ({file: text}, command, words)
    "_target_ among a model's options": (
        {"model/evil.yaml": f"name: add\nhook: {TOUCH}\n"},
        ["model=evil"],
        ["'hook._target_' would name code to run"],
    ),
    "_target_ in an experiment": (
        {"experiment/evil.yaml": f"# @package _global_\nlogs:\n  levels: {TOUCH}\n"},
        ["experiment=evil"],
        ["would name code to run"],
    ),
    "hydra.callbacks": (
        {"experiment/evil.yaml": f"# @package _global_\nhydra:\n  callbacks:\n    c: {CALLBACK}\n"},
        ["experiment=evil"],
        ["experiment/evil.yaml: a file may not hold hydra.*"],
    ),
    "hydra.callbacks by package": (
        {"experiment/evil.yaml": f"# @package hydra.callbacks\nc: {CALLBACK}\n"},
        ["experiment=evil"],
        ["a file may not hold hydra.*"],
    ),
    "hydra.callbacks by the package of another group": (
        {
            "experiment/evil.yaml": "# @package _global_\ndefaults:\n  - /stranger@hydra.callbacks.c: touch\n",
            "stranger/touch.yaml": "_target_: subprocess.run\n",
        },
        ["experiment=evil"],
        ["the defaults list may not name '/stranger@hydra.callbacks.c'"],
    ),
    "hydra.job_logging of one's own": (
        {
            "experiment/evil.yaml": "# @package _global_\ndefaults:\n  - override /hydra/job_logging: evil\n",
            "hydra/job_logging/evil.yaml": "version: 1\nhandlers: {h: {class: subprocess.Popen, args: [touch, x]}}\n",
        },
        ["experiment=evil"],
        ["the defaults list may not name 'override /hydra/job_logging'"],
    ),
    "a hydra group on the command line from a stranger's folder": (
        {"hydra/job_logging/evil.yaml": "version: 1\nhandlers: {h: {class: subprocess.Popen, args: [touch, x]}}\n"},
        ["hydra/job_logging=evil", "model=add"],
        ["hydra/job_logging/evil.yaml: a file may not hold hydra.*"],
    ),
    "hydra.sweeper.params that sets trust": (
        {
            "experiment/evil.yaml": "# @package _global_\nhydra:\n  sweeper:\n    params: {trust: 'true'}\n",
        },
        ["-m", "experiment=evil", "model=add,mlp"],
        ["a file may not hold hydra.*"],
    ),
    "a primary file of one's own with hydra in it": (
        {"mine.yaml": "defaults: [config, _self_]\nhydra: {run: {dir: ../../outside}}\n"},
        ["--config-name", "mine"],
        ["mine.yaml: a file may not hold hydra.*"],
    ),
    "hydra by a package that begins with _global_": (
        {"experiment/evil.yaml": "# @package _global_.hydra\njob: {env_set: {PYTHONPATH: theirs}}\n"},
        ["experiment=evil"],
        ["its package may be _global_, not '_global_.hydra'"],
    ),
    "hydra by a package with a key before it": (
        {"experiment/evil.yaml": "# @package seed._global_.hydra\nrun: {dir: ../outside}\n"},
        ["experiment=evil"],
        ["its package may be _global_, not 'seed._global_.hydra'"],
    ),
    "a header after others": (
        {"experiment/evil.yaml": "# theirs\n\n#  @package _global_.hydra.run\ndir: ../outside\n"},
        ["experiment=evil"],
        ["not '_global_.hydra.run'"],
    ),
    "a package of several words": (
        {"experiment/evil.yaml": "# @package _global_ hydra\nseed: 1\n"},
        ["experiment=evil"],
        ["not '_global_ hydra'"],
    ),
    "hydra by the package of a defaults entry": (
        {
            "experiment/evil.yaml": "# @package _global_\ndefaults:\n  - /x@_global_.hydra: b\n",
            "x/b.yaml": "job_logging: {handlers: {file: {filename: victim}}}\n",
        },
        ["experiment=evil"],
        ["the defaults list may not name '/x@_global_.hydra'"],
    ),
    "hydra by the package of a harmless group": (
        {
            "experiment/evil.yaml": "# @package _global_\ndefaults:\n  - /model@_global_.hydra: b\n",
            "model/b.yaml": "run: {dir: ../outside}\n",
        },
        ["experiment=evil"],
        ["the defaults list may not name '/model@_global_.hydra'"],
    ),
    "a group that is not npucompose's": (
        {"theirs/a.yaml": "name: add\n"},
        ["+theirs=a"],
        ["theirs/a.yaml: 'theirs' is no group of npucompose"],
    ),
    "a key that is not npucompose's": (
        {"experiment/evil.yaml": "# @package _global_\nsecrets: {a: 1}\n"},
        ["experiment=evil"],
        ["experiment/evil.yaml:2: unknown key 'secrets'"],
    ),
    "a resolver whose name is another value": (
        {
            "experiment/evil.yaml": (
                "# @package _global_\ntracker:\n  experiment: oc.env\n"
                "pipeline:\n  name: '${${tracker.experiment}:SECRET}'\n"
            )
        },
        ["experiment=evil"],
        ["'pipeline.name' uses a resolver (${${tracker.experiment}:SECRET})"],
    ),
    "a reference made of references": (
        {"experiment/evil.yaml": "# @package _global_\nseed: '${${mode.name}}'\n"},
        ["experiment=evil"],
        ["'seed' is not understood (${${mode.name}})"],
    ),
    "a resolver made by joining two values": (
        {
            "experiment/evil.yaml": (
                "# @package _global_\ntracker: {experiment: '$'}\n"
                "pipeline: {name: '${tracker.experiment}{oc.env:SECRET}'}\nmode: {name: '${pipeline.name}'}\n"
            )
        },
        ["experiment=evil"],
        ["'name' must be one of max-autotune", "'${oc.env:SECRET}' @ mode"],
    ),
    "a value that refers to itself": (
        {"experiment/evil.yaml": "# @package _global_\nseed: ${strict}\nstrict: ${seed}\n"},
        ["experiment=evil"],
        ["refers to itself: seed -> strict -> seed"],
    ),
    "references that grow": (
        {
            "experiment/evil.yaml": "# @package _global_\nlogs:\n  levels:\n    a0: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"    a{n + 1}:\n" + f"      - ${{logs.levels.a{n}}}\n" * 10 for n in range(12))
        },
        ["experiment=evil"],
        ["holds more than 200,000 values, its references followed"],
    ),
    "text that grows by references": (
        {
            "experiment/evil.yaml": "# @package _global_\nlogs:\n  levels:\n    a0: xxxxxxxxxx\n"
            + "".join(f"    a{n + 1}: '{f'${{logs.levels.a{n}}}' * 10}'\n" for n in range(12))
        },
        ["experiment=evil"],
        ["has more than 1,000,000 characters, its references followed"],
    ),
    "a key given twice": (
        {"experiment/evil.yaml": "# @package _global_\nseed: 1\nstrict: all\nseed: 2\n"},
        ["experiment=evil"],
        ["evil.yaml:4: the key 'seed' stands in line 2 already"],
    ),
    "files that include one another": (
        {"passes/a.yaml": "defaults: [b]\n", "passes/b.yaml": "defaults: [a]\n"},
        ["passes=a"],
        ["lead from file to file without end: passes/a -> passes/b -> passes/a"],
    ),
    "defaults lists that double": (
        {f"passes/p{n}.yaml": f"defaults: [p{n + 1}, p{n + 1}]\n" for n in range(30)}
        | {"passes/p30.yaml": "cse: {}\n"},
        ["passes=p0"],
        ["its defaults lists name more than 1,000 files in all"],
    ),
    "an escape character": (
        {"experiment/evil.yaml": '# @package _global_\npipeline: {name: "\\e]0;x"}\n'},
        ["experiment=evil"],
        [":2: the text holds \\x1b"],
    ),
    "text that is shown in another order": (
        {"experiment/evil.yaml": "# @package _global_\npipeline: {name: 'a\u202eb'}\n"},
        ["experiment=evil"],
        ["the text holds \\u202e"],
    ),
    "a number of 5,000 digits": (
        {"experiment/evil.yaml": f"# @package _global_\nseed: {'9' * 5000}\n"},
        ["experiment=evil"],
        [":2: 999999999999… (5,000 characters) is no int that can be held"],
    ),
    "an alias of itself": (
        {"experiment/evil.yaml": "# @package _global_\nlogs: &a {levels: *a}\n"},
        ["experiment=evil"],
        ["*a stands for nothing that was read before it"],
    ),
    "two documents": (
        {"model/evil.yaml": "name: add\n---\nname: mlp\n"},
        ["model=evil"],
        [":2: a second document begins"],
    ),
    "trust in a file": (
        {"experiment/evil.yaml": "# @package _global_\ntrust: true\n"},
        ["experiment=evil", "model=python", "model.factory=os:getcwd"],
        ["'trust' is true, and only the command line", "evil.yaml:2"],
    ),
    "oc.env": (
        {"model/evil.yaml": "name: ${oc.env:SECRET}\n"},
        ["model=evil"],
        ["'name' uses a resolver (${oc.env:SECRET})"],
    ),
    "oc.env inside of a longer text": (
        {"streams/evil.yaml": "name: 'of ${ oc.env : SECRET}'\nkind: none\n"},
        ["streams=evil"],
        ["uses a resolver"],
    ),
    "a resolver in a list": (
        {"pipeline/evil.yaml": "name: evil\nstages: ['${oc.decode:x}']\n"},
        ["pipeline=evil"],
        ["'stages.0' uses a resolver"],
    ),
    "a path with .. as a choice": (
        {"model/x.yaml": "name: add\n"},
        ["model=../model/x"],
        ["unknown model '../model/x'"],
    ),
    "a path with .. in a defaults list": (
        {"experiment/evil.yaml": "# @package _global_\ndefaults:\n  - override /model: ../../secret\n"},
        ["experiment=evil"],
        ["the defaults list may not name '../../secret'"],
    ),
    "a link out of the folder": (
        {"model/link.yaml": "->../../secret.yaml"},
        ["model=link"],
        ["lies outside of the folder"],
    ),
    "an absolute path": ({}, ["model=/etc/passwd"], ["unknown model"]),
    "a folder to write to, elsewhere": (
        {
            "experiment/evil.yaml": (
                "# @package _global_\ncompiler:\n  debug:\n    graph_dump: {type: py, path: /tmp/out}\n"
            )
        },
        ["experiment=evil", "target=npu"],
        ["compiler.debug.graph_dump.path='/tmp/out' leads out of the run directory and comes from conf/experiment"],
    ),
    "a folder to write to, above": (
        {"compiler/evil.yaml": "defaults: [default]\ndump_config: {dump_path: ../../x}\n"},
        ["compiler=evil", "mode=max-autotune", "target=npu"],
        ["compiler.dump_config.dump_path='../../x' leads out of the run directory"],
    ),
    "a folder to write to, of whoever runs it": (
        {"compiler/evil.yaml": "defaults: [default]\ndump_config: {dump_path: ~/x}\n"},
        ["compiler=evil", "mode=max-autotune", "target=npu"],
        ["compiler.dump_config.dump_path='~/x' leads out of the run directory"],
    ),
    "the address of a cluster that answers with code": (
        {"executor/evil.yaml": "name: ray\naddress: evil.example:6379\n"},
        ["-m", "executor=evil", "seed=1,2"],
        ["executor.address=evil.example:6379 comes from conf/executor/evil.yaml, chosen on the command line, and"],
    ),
    "lines for sbatch": (
        {"executor/evil.yaml": "name: slurm\npartition: |\n  x\n  touch executed\n"},
        ["-m", "executor=evil", "seed=1,2"],
        ["'partition' must be one plain word for sbatch"],
    ),
    "a program for sbatch": (
        {"executor/evil.yaml": "name: slurm\nparameters: {wrap: touch executed}\n"},
        ["-m", "executor=evil", "seed=1,2"],
        ["unknown option of sbatch 'wrap'"],
    ),
    "no mapping at all": ({"model/evil.yaml": "0\n"}, ["model=evil"], ["evil.yaml is no configuration"]),
    "a billion laughs": ({"model/evil.yaml": LAUGHS}, ["model=evil"], ["evil.yaml holds more than 20,000 values"]),
    "deep nesting": ({"model/evil.yaml": "a: " + "[" * 60 + "]" * 60}, ["model=evil"], ["nested more than 40 deep"]),
    "no text": ({"model/evil.yaml": "\udcff\udcfe"}, ["model=evil"], ["evil.yaml is not text in UTF-8"]),
    "a Python object": (
        {"model/evil.yaml": "name: !!python/object/apply:os.system ['touch executed']\n"},
        ["model=evil"],
        [":1: the tag tag:yaml.org,2002:python/object/apply:os.system is not read"],
    ),
    "a resolver on the command line": ({}, ["seed=${oc.env:SECRET}"], ["uses a resolver"]),
    "another search path": ({}, ["hydra.searchpath=[file:///tmp]"], ["add a folder of choices with --config-dir"]),
    "a pickle of an earlier run": ({}, ["--experimental-rerun", "job.pickle"], ["would unpickle a file"]),
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a secret file beside the stranger's folder and a secret variable."""
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.yaml").write_text("name: add\n")
    return tmp_path


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:])
        else:
            path.write_text(text, errors="surrogateescape")


@pytest.mark.parametrize(("files", "command", "words"), FILES.values(), ids=FILES.keys())
def test_a_hostile_configuration_is_refused_and_nothing_is_executed(
    files: dict[str, str],
    command: list[str],
    words: list[str],
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = elsewhere / "theirs"
    folder.mkdir()
    written(folder, files)
    status = run(["--config-dir", str(folder), *command], program="run.py")
    told = capsys.readouterr()
    assert status == 2, told
    for word in words:
        assert word in told.err
    assert "internal error" not in told.err
    assert "Traceback" not in told.err
    assert "hunter2" not in told.err + told.out
    assert sorted(p.name for p in elsewhere.iterdir()) == ["secret.yaml", "theirs"]


@pytest.mark.parametrize("question", [["--cfg", "job", "--resolve"], ["--info", "config"], ["--help"]], ids=str)
def test_questions_to_hydra_are_answered_after_the_same_look(
    question: list[str], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(elsewhere / "theirs", {"model/evil.yaml": "name: ${oc.env:SECRET}\n"})
    assert run(["--config-dir", "theirs", "model=evil", *question], program="run.py") == 2
    told = capsys.readouterr()
    assert "uses a resolver" in told.err
    assert "hunter2" not in told.out + told.err


def test_a_huge_file_is_refused_unread(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "theirs" / "model").mkdir(parents=True)
    with (elsewhere / "theirs" / "model" / "huge.yaml").open("wb") as huge:
        huge.truncate(1 << 30)
    assert run(["--config-dir", "theirs", "model=huge"], program="run.py") == 2
    assert "huge.yaml has 1,073,741,824 bytes" in capsys.readouterr().err


def test_a_harmless_folder_is_taken(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control: references, anchors, comments and packages are not refused."""
    folder = elsewhere / "theirs"
    written(
        folder,
        {
            "model/mine.yaml": "# mine\nname: mlp\nhidden: 8\n",
            "experiment/mine.yaml": (
                "# @package _global_\ndefaults:\n  - override /model: mine\n  - override /mode: eager\n"
                "seed: &n 3\nbenchmark:\n  warmup: *n\n  min_calls: ${benchmark.warmup}\n"
            ),
        },
    )
    assert run(["--config-dir", str(folder), "experiment=mine", "--cfg", "job", "--resolve"], program="run.py") == 0
    from npucompose.compose.check import check
    from npucompose.compose.tree import compose

    checked = check(compose(["experiment=mine"], config_dirs=[str(folder)]))
    assert (checked.experiment.seed, checked.experiment.benchmark.min_calls) == (3, 3)
    assert "min_calls: 3" in capsys.readouterr().out


def test_hydra_is_handed_the_finished_tree(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left in it that OmegaConf could resolve, and no file is opened a second time."""
    written(elsewhere / "theirs", {"benchmark/mine.yaml": "warmup: ${seed}\nmin_calls: 7\n"})
    opened: list[str] = []
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
    assert run(["--config-dir", "theirs", "benchmark=mine", "seed=3", "--cfg", "job"], program="run.py") == 0
    assert "warmup: 3\n" in capsys.readouterr().out
    assert len([path for path in opened if path.endswith("mine.yaml")]) == 1
