"""Finished stages on disk, found by the content of their key. Knows no stage and no experiment.

    root/records/<stage>/<key>.json
    root/files/<stage>/<key>/             what a stage left beside its facts

One file is one record, written whole or not at all, so that a killed run leaves the earlier ones intact and runs at
the same time do not disturb each other: equal keys mean equal results, and the last writer wins.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from airflow_free.errors import OrchestratorError
from airflow_free.foreign_files import is_regular, read_bytes

RECORD_SCHEMA = 1
MOST_BYTES = 2**28
"""Of one record: the facts of the largest graphs have some MiB."""
STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
KEY = re.compile(r"[0-9a-f]{64}")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@frozen(kw_only=True)
class Record:
    """The facts of one finished stage, with what explains them; `key` alone says whether they still hold."""

    stage: str = field()
    key: str = field()
    facts: Mapping[str, Any]
    seconds: float
    created: str = field(factory=now)
    environment: Mapping[str, Any] = field(factory=dict[str, Any])
    provenance: Mapping[str, Any] = field(factory=dict[str, Any])
    """Where it came from (run directory, command line): for a person who reads the record, never for the key."""

    def text(self) -> str:
        return json.dumps({"schema": RECORD_SCHEMA, **attrs.asdict(self)}, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_text(text: str) -> Record:
        """The record; ValueError says why it is none."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a mapping is wanted, not a {type(data).__name__}")
        schema = data.pop("schema", None)
        if schema != RECORD_SCHEMA:
            raise ValueError(f"schema {schema!r}, this version reads {RECORD_SCHEMA}")
        fields = {f.name for f in attrs.fields(Record)}
        if set(data) != fields:
            raise ValueError(f"fields missing or unknown: {', '.join(sorted(fields ^ set(data)))}")
        if not isinstance(data["facts"], dict):
            raise ValueError("'facts' is not a mapping")
        return Record(**data)


def _link(source: Path, place: Path) -> None:
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, place)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, place)


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=3)


@frozen
class Store:
    """Records under `root`. A record that cannot be read counts as absent and is reported to `on_problem`."""

    root: Path = field(converter=Path)
    on_problem: Callable[[str], None] = field(default=_warn, kw_only=True)
    advice: str = field(default="", kw_only=True)
    """What to do where it cannot be written: a sentence for the error."""

    def path(self, stage: str, key: str) -> Path:
        if not STAGE_NAME.fullmatch(stage) or not KEY.fullmatch(key):
            raise ValueError(f"no stage and key that make a file name: {stage!r}, {key!r}")
        return self.root / "records" / stage / f"{key}.json"

    def read(self, stage: str, key: str) -> Record | None:
        """The record, or None when it is absent, half written, unreadable, or of another stage or key."""
        path = self.path(stage, key)
        record = self._load(path)
        if record is not None and (record.stage, record.key) != (stage, key):
            self.on_problem(f"{path} holds the record of another stage or key; it counts as absent.")
            return None
        return record

    def write(self, record: Record) -> Path:
        path = self.path(record.stage, record.key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, record.text())
        except OSError as error:
            advice = f" {self.advice}" if self.advice else ""
            raise OrchestratorError(f"the store {self.root} cannot be written: {error}.{advice}") from error
        return path

    def forget(self, stage: str, key: str) -> None:
        """Take the record away, and the files that were kept with it: a stage that is asked for runs again then."""
        self.path(stage, key).unlink(missing_ok=True)
        shutil.rmtree(self.file(stage, key), ignore_errors=True)

    def keep_files(self, stage: str, key: str, folder: Path, names: Iterable[str]) -> None:
        """Keep those files of `folder` with the record of that key; linked where the disk can, else copied."""
        for name in names:
            _link(folder / name, self.file(stage, key, name))

    def has_files(self, stage: str, key: str, names: Iterable[str]) -> bool:
        """Whether all of them are kept: a run may be killed between writing its record and keeping its files."""
        return all(is_regular(self.file(stage, key, name)) for name in names)

    def bring_files(self, stage: str, key: str, folder: Path) -> None:
        """Put the files that were kept with the record into `folder`."""
        for name in self.file_names(stage, key):
            _link(self.file(stage, key, name), folder / name)

    def file(self, stage: str, key: str, name: str = "") -> Path:
        """Where a file that was kept with the record lies, or the folder of them."""
        return self.root / "files" / self.path(stage, key).parent.name / key / name

    def file_names(self, stage: str, key: str) -> list[str]:
        """Of the files that were kept with the record."""
        kept = self.file(stage, key)
        return sorted(file.relative_to(kept).as_posix() for file in kept.rglob("*") if is_regular(file))

    def put_file(self, stage: str, key: str, name: str, content: bytes) -> None:
        """Keep a file with the record that came from elsewhere."""
        place = self.file(stage, key, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def records(self) -> Iterator[Record]:
        """Every readable record, by stage and key."""
        for path in sorted((self.root / "records").glob("*/*.json")):
            record = self._load(path)
            if record is not None:
                yield record

    def _load(self, path: Path) -> Record | None:
        try:
            return Record.from_text(read_bytes(path, MOST_BYTES).decode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.on_problem(f"{path} cannot be read and counts as absent: {error}.")
            return None


def write_atomically(path: Path, text: str) -> None:
    """Put `text` at `path`: a reader, or a run that is killed here, sees the old file or the new one and no other.

    The temporary file lies in the same folder, because os.replace is atomic only inside one file system; its name is
    not guessable twice, so that writers at the same time do not share one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the file system can (some refuse to sync a folder)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
