"""What a command writes where it was told to: whole, through links, into pipes, or refused with the option's name."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from npucompose import commands
from npucompose.errors import ConfigError


def test_missing_folders_are_made(tmp_path: Path) -> None:
    commands.write(tmp_path / "a" / "b" / "c.yaml", "é\n")
    assert (tmp_path / "a" / "b" / "c.yaml").read_text(encoding="utf-8") == "é\n"


def test_a_file_that_was_there_is_kept_where_writing_ends_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    commands.write(file, "before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"^--html .*a\.yaml cannot be written: No space left on device\.$"):
        commands.write(file, "after", "--html")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.yaml", "before")]


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "link.yaml").symlink_to(tmp_path / "file.yaml")
    for text in ("new", "over it"):
        commands.write(tmp_path / "link.yaml", text)
        assert (tmp_path / "link.yaml").is_symlink()
        assert (tmp_path / "file.yaml").read_text() == text


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    commands.write(pipe, "text")
    reader.join(timeout=10)
    assert read == ["text"]
    assert pipe.is_fifo()


@pytest.mark.parametrize(("below", "words"), [("", "Is a directory"), ("file/x", "Not a directory|File exists")])
def test_what_the_file_system_refuses_is_told_with_the_option(below: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"^--out .* cannot be written: ({words})\.$"):
        commands.write(tmp_path / below, "text")
