"""Compiled code is loaded from no folder in which another user could have put it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npucompose import private
from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.experiment.job import set_up_worker, worker_task

ANOTHER = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as /tmp is; no variable names a cache."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private.tempfile, "tempdir", str(folder))
    monkeypatch.setattr(private, "_SEEN", set())  # private: as in another process
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for cache in private.CACHES:
        monkeypatch.setenv(cache.variable, "to be taken away at the end")
        monkeypatch.delenv(cache.variable)
    return folder


def usual(temporary: Path) -> Path:
    place = private.CACHES[0].usual()
    assert place.parent == temporary
    return place


def used_instead() -> str | None:
    return os.environ.get("TORCHINDUCTOR_CACHE_DIR")


def test_inductors_folder_is_named_as_torch_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert str(private.CACHES[0].usual()) == default_cache_dir()
    monkeypatch.setenv("LOGNAME", 'a\\b:c*"d')
    assert str(private.CACHES[0].usual()) == default_cache_dir()


def test_a_folder_of_ours_is_used_and_made_before_others_can_make_it(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private.make_private()
    assert usual(temporary).stat().st_mode & 0o777 == 0o700
    assert (used_instead(), capsys.readouterr().err) == (None, "")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_could_write_to_is_replaced_and_said_in_one_line(
    mode: int, temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual(temporary).mkdir()
    usual(temporary).chmod(mode)
    private.make_private()
    private.make_private()
    instead = tmp_path / "cache" / "compiled" / "inductor"
    assert used_instead() == str(instead)
    assert instead.stat().st_mode & 0o777 == 0o700
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"npucompose: the compiled code in {usual(temporary)} is not used, {usual(temporary)} can be written by others "
        f"(mode {mode:o}); {instead} is."
    )


def test_what_lies_deep_inside_counts_unless_the_folder_is_closed(temporary: Path) -> None:
    inside = usual(temporary) / "fxgraph" / "ab"
    inside.mkdir(parents=True)
    usual(temporary).chmod(0o755)
    inside.chmod(0o777)
    private.make_private()
    assert used_instead() is not None


def test_the_folder_above_may_not_be_exchanged(temporary: Path) -> None:
    temporary.chmod(0o777)
    usual(temporary).mkdir(mode=0o700)
    private.make_private()
    assert used_instead() is not None


@pytest.mark.parametrize("cache", private.CACHES, ids=lambda cache: cache.name)
def test_a_folder_that_a_variable_names_is_held_to_the_same(
    cache: private.ExecutedCache, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv(cache.variable, str(tmp_path / "shared"))
    private.make_private()
    assert os.environ[cache.variable] == str(tmp_path / "cache" / "compiled" / cache.name)


def test_where_our_own_cache_is_no_better_the_code_is_this_process_s_alone(temporary: Path, tmp_path: Path) -> None:
    usual(temporary).mkdir()
    usual(temporary).chmod(0o777)
    (tmp_path / "cache").write_text("a file")
    private.make_private()
    instead = Path(used_instead() or "")
    assert instead.parent == temporary
    assert instead.stat().st_mode & 0o777 == 0o700


def test_a_run_looks_through_the_caches_once_and_none_of_its_workers_does(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Path] = []
    monkeypatch.setattr(private, "doubt_within", lambda folder, root: walked.append(folder))
    usual(temporary).mkdir()
    usual(temporary).chmod(0o755)
    checked = check(compose(["model=add", "pipeline=compile_only"]))
    assert walked == [], "what is composed and checked compiles nothing"
    tasks = [worker_task(checked, "a:b", {"n": n}, tmp_path / "log") for n in range(2)]
    assert walked == [usual(temporary)]
    monkeypatch.setattr(private, "_SEEN", set())  # private: as in another process
    set_up_worker(json.loads(json.dumps(tasks[1].payload)))
    private.make_private()
    assert walked == [usual(temporary)]
    monkeypatch.setattr(private, "_SEEN", set())  # private: as in another process
    set_up_worker({"n": 0})  # on another machine
    private.make_private()
    assert walked == [usual(temporary)] * 2


@pytest.mark.slow
@ROOT
def test_nothing_of_another_user_is_loaded_by_a_run(tmp_path: Path) -> None:
    """The other user has taken Inductor's folder first, fills it, and lets everybody write."""
    temporary, work = tmp_path / "tmp", tmp_path / "work"
    for folder in (temporary, work):
        folder.mkdir()
    temporary.chmod(0o1777)
    theirs = temporary / f"torchinductor_{private.getpass.getuser()}"
    first = "import os, sys; os.setuid(65534); os.umask(0); os.makedirs(sys.argv[1] + '/fxgraph')"
    subprocess.run([sys.executable, "-S", "-c", first, theirs.name], check=True, cwd=temporary)
    assert theirs.stat().st_uid == ANOTHER
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"TMPDIR": str(temporary), "NPUCOMPOSE_CACHE": str(tmp_path / "cache")}
    words = ["run", "model=add", "mode=max-autotune", "pipeline=compile_only"]
    ran = subprocess.run(
        [sys.executable, "-c", "from npucompose.cli import main; raise SystemExit(main())", *words],
        cwd=work, env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(f"the compiled code in {theirs} is not used") == 1
    assert list(theirs.rglob("*")) == [theirs / "fxgraph"], "nothing was written there"
    assert list((tmp_path / "cache" / "compiled" / "inductor").rglob("*.py")), "compiled in a folder of our own"
