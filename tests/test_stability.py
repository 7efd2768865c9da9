"""What docs/stability.md promises, as texts: a line more is news, a line that goes or changes is a break."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from types import ModuleType
from typing import Any, get_args, get_type_hints

import attrs
import pytest

import airflow_free.ledger
import airflow_free.store
from npucompose.cli.arguments import every_command
from npucompose.commands import Command
from npucompose.experiment import lock
from npucompose.report import keys
from npucompose.results import premises, record
from npucompose.results.measured import TimeSamples
from tests.docs.blocks import ALL, ROOT
from tools.layout import choices

Golden = Callable[[str, str], None]
GOLDEN = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "stability.md"
OURS = ("npucompose", "npucompose_replay", "airflow_free")
REVIEW = "# docs/stability.md promises these: a line that goes or changes is a break, which CHANGELOG.md names\n"


def section(heading: str) -> str:
    return PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]


def promised_names() -> dict[str, list[str]]:
    """{module: names} of the page's table."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", section("Names to import"), re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", cell) for module, cell in rows}


# Names and signatures


def signature(function: Callable[..., Any]) -> str:
    """As it is written: annotations are texts in every module of ours."""
    return re.sub(r"(: |-> )([\"'])(.*?)\2(?=[,)]| = |$)", r"\1\3", str(inspect.signature(function)))


def described(name: str, found: Any) -> Iterator[str]:
    """A class with what it has in public, a function with its signature, of anything else its kind."""
    if inspect.isclass(found):
        yield f"class {name}({', '.join(base.__name__ for base in found.__bases__ if base is not object)})"
        yield from (f"    {line}" for line in members(found))
    elif inspect.isfunction(found):
        yield f"def {name}{signature(found)}"
    elif inspect.ismodule(found):
        yield f"module {name}"
        public = {inner: value for inner, value in vars(found).items() if not inner.startswith("_")}
        for inner, value in public.items():
            if getattr(value, "__module__", "") == found.__name__:
                yield from (f"    {line}" for line in described(inner, value))
    else:
        kind = type(found)
        yield f"{name}: {kind.__name__ if kind.__module__.startswith(OURS) else found}"


def members(cls: type[Any]) -> Iterator[str]:
    """Fields (`= …` where one may be left out), then methods, its own and those that it has of our classes."""
    abstract = getattr(cls, "__abstractmethods__", frozenset())
    if attrs.has(cls):
        # Not the type of the field, which is resolved once somebody has made the class from plain data.
        written = {
            name: kind for owner in reversed(cls.__mro__) for name, kind in inspect.get_annotations(owner).items()
        }
        for field in attrs.fields(cls):
            if field.init and not field.name.startswith("_"):
                yield f"{field.name}: {written[field.name]}{'' if field.default is attrs.NOTHING else ' = …'}"
    seen: set[str] = set()
    for owner in (one for one in cls.__mro__ if one.__module__.partition(".")[0] in OURS):
        for name, kind in inspect.get_annotations(owner).items():
            if name[0] != "_" and (str(kind).startswith("ClassVar") or not attrs.has(owner)):
                yield f"{name}: {kind}"
        for name, member in vars(owner).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            seen.add(name)
            word = "to write: " if name in abstract else ""
            if isinstance(member, (property, cached_property)):
                yield f"{word}{name}: property"
            elif inspect.isfunction(function := inspect.unwrap(getattr(member, "__func__", member))):
                yield f"{word}def {name}{signature(function)}"


def test_names_and_signatures_are_those_that_were_reviewed(golden: Golden) -> None:
    lines = [REVIEW]
    for module, names in promised_names().items():
        for name in names:
            lines += [f"{line}\n" for line in described(name, pkgutil.resolve_name(f"{module}.{name}"))]
        lines.append("\n")
    golden("stability/python.txt", "".join(lines))


def test_what_documents_and_new_files_import_is_promised() -> None:
    sources = {block.where: block.body for block in ALL if block.kind.startswith("python")}
    folders = (ROOT / "src" / "npucompose" / "cli" / "new_files", ROOT / "examples" / "extension" / "npucompose_demo")
    sources |= {str(file): file.read_text() for folder in folders for file in folder.glob("*.py*") if file.is_file()}
    found = {(where, *name) for where, text in sources.items() for name in imported(text)}
    assert len(found) > 20
    promised = promised_names()
    assert sorted(name for name in found if name[2] not in promised.get(name[1], ())) == []


def imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what is ours; texts have places to fill in, so lines are read one by one."""
    for line in text.splitlines():
        if re.match(rf"\s*from ({'|'.join(OURS)})(\.\w+)* import [\w, ]+$", line):
            (statement,) = ast.parse(line.strip()).body
            assert isinstance(statement, ast.ImportFrom)
            yield from ((str(statement.module), alias.name) for alias in statement.names)


def test_a_name_that_changes_is_noticed() -> None:
    """The control."""

    class Before:
        field: int

        def act(self, one: int, other: str = "x") -> None: ...

    class After:
        field: str

        def act(self, one: int) -> None: ...

    for cls in (Before, After):
        cls.__module__ = "npucompose.example"
    assert list(members(Before)) == ["field: int", "def act(self, one: int, other: str = 'x') -> None"]
    assert list(members(Before)) != list(members(After))


def test_entry_points_are_those_that_were_reviewed(golden: Golden) -> None:
    document = (ROOT / "docs" / "extensions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `(npucompose\.\w+)` \| (.*?) \|", document, re.MULTILINE)
    named = {group: " ".join(re.findall(r"`([\w.]+)`", what)) for group, what in rows}
    golden(
        "stability/entry_points.txt",
        REVIEW + "".join(f"{group}: {what}".strip() + "\n" for group, what in named.items()),
    )
    sources = "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    assert named.keys() - {"npucompose.conf"} == set(re.findall(r'group="(npucompose\.\w+)"', sources))


# What is typed and written


def options(command: Command) -> Iterator[str]:
    for one in command.arguments:
        fixed = one.settings.get("choices")
        choices = "" if fixed is None or callable(fixed) else f" {{{', '.join(map(str, fixed))}}}"
        takes = "" if one.settings.get("action") == "store_true" else " VALUE"
        names = ", ".join(one.names)
        words = one.names[0].startswith("-")
        needed = " (needed)" if one.settings.get("required") else ""
        yield f"{names}{takes if words else ''}{choices}{needed}"


def commands(below: str, found: dict[str, Command]) -> Iterator[str]:
    for name, command in found.items():
        if command.actions:
            yield from commands(f"{below} {name}", dict(command.actions))
        else:
            yield f"{below} {name}\n" + "".join(f"    {line}\n" for line in options(command))


def test_commands_options_and_exit_statuses_are_those_that_were_reviewed(golden: Golden) -> None:
    statuses = "".join(f"exit status of {status}: {number}\n" for status, number in record.EXIT_STATUS.items())
    golden("stability/commands.txt", REVIEW + "".join(commands("npucompose", every_command())) + statuses)


def test_groups_and_choices_are_those_that_were_reviewed(golden: Golden) -> None:
    golden("stability/choices.txt", REVIEW + "".join(f"{name}\n" for name in choices()))


def fields(cls: type[Any], path: str = "", without: Collection[str] = ()) -> Iterator[str]:
    """`passes.name: text` for each field, in the order of the file."""
    hints = get_type_hints(cls)
    for field in attrs.fields(cls):
        if field.name in without:
            continue
        # without the names of what lies below: another one there is another line, and no change of this one
        yield f"{path}{field.name}: {re.sub(r' [(][^()]*[)]', '', keys.takes(hints[field.name]))}"
        for inner in records_in(hints[field.name]):
            if inner is not TimeSamples:  # a baseline's: as those of the benchmark itself
                yield from fields(inner, f"{path}{field.name}.")


def records_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and attrs.has(hint):
        yield hint
    for argument in get_args(hint):
        yield from records_in(argument)


def test_fields_of_report_json_are_those_that_were_reviewed(golden: Golden) -> None:
    golden("stability/report.txt", REVIEW + "".join(f"{line}\n" for line in fields(record.Report)))


def test_fields_of_a_recipe_are_those_that_were_reviewed(golden: Golden) -> None:
    of_the_file = fields(lock.Locked, without={"lacks"})  # what a reader found; `Locked.text` does not write it
    own = "".join(f"{line}\n" for line in of_the_file if line.count(".") < 2)
    golden("stability/recipe.txt", REVIEW + own)


# The page itself

NUMBERS = {
    "recipe.lock.yaml": lock,
    "report.json": record,
    "results.json": premises,
    "a record of the store": airflow_free.store,
    "the ledger of a sweep": airflow_free.ledger,
}


def test_the_numbers_of_formats_are_those_of_the_code() -> None:
    table = section("Schema numbers of the stored formats")
    rows = re.findall(r"^\| (.*?) \| (\d+) \| `(\S+)` \|", table, re.MULTILINE)
    assert len(rows) == len(NUMBERS)
    for (file, number, place), (name, module) in zip(rows, NUMBERS.items(), strict=True):
        assert name in file
        assert int(number) == schema(module)
        assert str(module.__file__).endswith(place)


def schema(module: ModuleType) -> int:
    return getattr(module, "SCHEMA", None) or module.RECORD_SCHEMA


def test_every_promise_names_tests_that_are_there() -> None:
    rows = [line for line in section("What is promised").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 8
    for row in rows:
        found = re.findall(r"`((?:tests|tools)/[\w/]+\.py)(?:::(\w+))?`", row)
        assert found, f"no test holds this: {row}"
        for file, name in found:
            text = (ROOT / file).read_text()
            assert not name or f"def {name}(" in text, f"{file} has no {name}"


def test_the_page_names_what_every_file_of_the_golden_texts_holds() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [file.name for file in (GOLDEN / "stability").iterdir() if f"`{file.name}`" not in page] == []


SAID = {
    "python.txt": ("def compile(model", "class Pass(ABC)", "    to write: def rewrite(", "class ConfigError("),
    "report.txt": ("stages.benchmark.p50_us: number", "streams.trials.threads: integer", "status: ok | uncompiled"),
    "commands.txt": ("npucompose recipe verify\n    --against VALUE\n", "exit status of illegal: 2\n"),
}


@pytest.mark.parametrize("name", SAID)
def test_the_texts_say_enough_to_change(name: str) -> None:
    text = (GOLDEN / "stability" / name).read_text()
    assert [words for words in SAID[name] if words not in text] == []
